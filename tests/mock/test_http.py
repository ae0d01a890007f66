"""HTTP/1.1, as a server has to speak it."""

import asyncio
import json
import socket
import time

import pytest
import uvloop

from tests.mock.running import ask, chat, read_answer, request, running


def test_keep_alive():
    with running() as mock, mock.connect() as sock:
        for body in (chat(), chat(stream=True), chat()):
            sock.sendall(request("/v1/chat/completions", body))
            answer, rest = read_answer(sock)
            assert (answer.status, answer.complete, rest) == (200, True, b"")
        assert mock.do(lambda server: server.stats.connections_accepted) == 1
        assert mock.do(lambda server: len({entry.connection for entry in server.stats.ledger})) == 1


def test_requests_sent_together_are_answered_in_order():
    names = [f"request-{number}" for number in range(100)]
    with running(itl_s=0.0005, output_tokens=(2, 2)) as mock, mock.connect() as sock:
        data = [
            request("/v1/chat/completions", chat(), headers=f"x-request-id: {name}\r\n") for name in names
        ]
        sock.sendall(b"".join(data))
        rest = b""
        for name in names:
            answer, rest = read_answer(sock, rest)
            assert answer.header("x-request-id") == name


def test_one_byte_at_a_time():
    with running() as mock, mock.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request("/v1/chat/completions", chat(stream=True)):
            sock.sendall(bytes([byte]))
        answer, _ = read_answer(sock)
        assert answer.kinds[-1] == "[DONE]"


def test_a_body_in_chunks():
    body = json.dumps(chat()).encode()
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7)
    )
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with running() as mock, mock.connect() as sock:
        sock.sendall(head + chunks + b"0\r\n\r\n")
        assert read_answer(sock)[0].status == 200


def test_expect_100_continue():
    body = json.dumps(chat()).encode()
    with running() as mock, mock.connect() as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert read_answer(sock)[0].status == 200


@pytest.mark.parametrize("body", [chat(), chat(stream=True)], ids=["whole", "stream"])
def test_http_1_0_ends_with_the_connection(body):
    data = request("/v1/chat/completions", body).replace(b"HTTP/1.1", b"HTTP/1.0")
    with running() as mock, mock.connect() as sock:
        sock.sendall(data)
        answer, _ = read_answer(sock)
        assert answer.header("transfer-encoding") is None
        assert (b"[DONE]" in answer.body) is bool(body.get("stream"))
        assert sock.recv(1) == b""


def test_connection_close_is_obeyed():
    with running() as mock, mock.connect() as sock:
        sock.sendall(request("/health", headers="connection: close\r\n"))
        answer, _ = read_answer(sock)
        assert answer.header("connection") == "close"
        assert sock.recv(1) == b""


MALFORMED = [
    ("no HTTP", b"hello\r\n\r\n", 400),
    ("a space in a name", b"GET / HTTP/1.1\r\nbad name: x\r\n\r\n", 400),
    ("two lengths", b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
    ("a bad chunk", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", 400),
    ("a huge head", b"GET / HTTP/1.1\r\n" + b"x-filler: %b\r\n" % (b"y" * 1000) * 70, 431),
    ("a huge length", b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413),
]


@pytest.mark.parametrize(("what", "data", "status"), MALFORMED, ids=[row[0] for row in MALFORMED])
def test_malformed(what, data, status):
    with running() as mock, mock.connect() as sock:
        sock.sendall(data)
        answer, _ = read_answer(sock)
        assert (answer.status, answer.header("connection")) == (status, "close")
        mock.until(lambda server: server.stats.connections_open == 0)


def test_what_came_before_a_malformed_request_is_answered():
    with running(ttft_s=0.05) as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat()) + b"nonsense\r\n\r\n")
        first, rest = read_answer(sock)
        second, _ = read_answer(sock, rest)
        assert (first.status, second.status) == (200, 400)


def test_an_upgrade_is_declined_by_answering():
    upgrade = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n"
    with running() as mock:
        assert ask(mock, "/health", headers=upgrade).status == 200


def test_routes_and_methods():
    with running() as mock:
        assert ask(mock, "/nowhere").status == 404
        assert ask(mock, "/v1/chat/completions").status == 405
        assert ask(mock, "/health", {}).status == 405
        assert ask(mock, "/mock/nothing").status == 404
        with mock.connect() as sock:
            sock.sendall(request("/v1/models", method="HEAD"))
            assert sock.recv(65536).endswith(b"\r\n\r\n")


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_client_that_does_not_read_costs_little(make_loop):
    with (
        running(make_loop, output_tokens=(300_000, 300_000), max_model_len=400_000) as mock,
        mock.connect() as sock,
    ):
        sock.sendall(request("/v1/chat/completions", chat(stream=True)))
        mock.until(lambda server: any(connection.paused for connection in server._connections))
        held = mock.do(lambda s: sum(c.transport.get_write_buffer_size() for c in s._connections))
        assert held < 1_000_000  # of some 40 MB
        sock.settimeout(60)
        answer, _ = read_answer_fast(sock)
        assert answer.count(b"data: ") == 300_000 + 3
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def read_answer_fast(sock):
    parts = []
    while True:
        parts.append(sock.recv(1 << 20))
        if not parts[-1] or parts[-1].endswith(b"0\r\n\r\n"):
            return b"".join(parts), b""


def test_tokens_take_their_time():
    with running(ttft_s=0.05, itl_s=0.05) as mock, mock.connect() as sock:
        began_at = time.monotonic()
        sock.sendall(request("/v1/chat/completions", chat(stream=True)))
        answer, _ = read_answer(sock)
        assert answer.complete
        assert time.monotonic() - began_at >= 0.05 + 4 * 0.05
