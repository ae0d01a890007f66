"""relayd's own questions are bounded, go where they are sent, and fail in a few words."""

from __future__ import annotations

import asyncio
import socket
import ssl

import aiohttp
import pytest

from relayd import net
from relayd.net import FetchError, fetch, words_for


def fetched(
    answer: bytes,
    *,
    close: bool = True,
    timeout_s: float = 5.0,
    seen: list | None = None,
    path: str = "/v1/models",
):
    """Return what `fetch` makes of a server that says `answer` to everything."""

    async def serve(reader, writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head)
        writer.write(answer)
        if close:
            writer.close()
        else:
            await reader.read()
            writer.close()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await fetch(f"http://127.0.0.1:{port}{path}", timeout_s=timeout_s)

    return asyncio.run(run())


def http(body: bytes, status: bytes = b"200 OK", *lines: bytes) -> bytes:
    """Return an answer."""
    head = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), b"Connection: close", *lines]
    return b"\r\n".join([*head, b"", b""]) + body


def test_returns_status_and_body():
    seen: list[bytes] = []
    assert fetched(http(b"hello"), seen=seen) == (200, b"hello")
    assert seen[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"authorization" not in seen[0].lower()
    assert b"cookie" not in seen[0].lower()


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_failure_is_an_answer(status):
    assert fetched(http(b"no", b"%d Oops" % status)) == (status, b"no")


def test_redirects_are_not_followed():
    assert fetched(http(b"", b"302 Found", b"Location: http://127.0.0.1:1/"))[0] == 302


def test_an_answer_in_pieces_is_put_together():
    body = b"x" * 300_000
    pieces = b"".join(b"%x\r\n%b\r\n" % (1000, body[:1000]) for _ in range(300))
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
    assert fetched(answer) == (200, body)


def test_an_answer_may_be_large_but_not_too_large(monkeypatch):
    monkeypatch.setattr(net, "LARGEST_ANSWER", 1000)
    assert fetched(http(b"x" * 1000))[1] == b"x" * 1000
    for size in (1001, 5000):
        with pytest.raises(FetchError, match="larger than"):
            fetched(http(b"x" * size))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        http(b"x")[:-1] + b"",
        b"HTTP/1.1 200 OK\r\n",
    ],
)
def test_what_is_no_answer_is_told_in_a_few_words(answer):
    with pytest.raises(FetchError) as caught:
        fetched(answer)
    assert 0 < len(str(caught.value)) < 120
    assert "\n" not in str(caught.value)


def test_no_answer_in_time():
    with pytest.raises(FetchError, match=r"no answer within 0\.05 s"):
        fetched(b"", close=False, timeout_s=0.05)


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(FetchError, match=r"^connection refused$"):
        asyncio.run(fetch(f"http://127.0.0.1:{port}/", timeout_s=5))


def test_a_plain_server_where_tls_was_expected():
    async def run():
        server = await asyncio.start_server(
            lambda reader, writer: writer.write(b"HTTP/1.1 400 Bad\r\n\r\n"), "127.0.0.1", 0
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            await fetch(f"https://127.0.0.1:{port}/", timeout_s=5, tls=ssl.create_default_context())

    with pytest.raises(FetchError, match="begin with http://"):
        asyncio.run(run())


class FakeKey:
    """What aiohttp's errors want to know of a connection."""

    host, port, ssl, is_ssl = "w", 443, True, True


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (OSError(113, "No route to host"), "no route to host"),
        (OSError("Odd"), "odd"),
        (OSError(), "oserror"),
    ],
)
def test_words(error, words):
    assert words_for(aiohttp.ClientConnectorError(FakeKey(), error)) == words


def test_words_for_a_certificate():
    error = aiohttp.ClientConnectorCertificateError(FakeKey(), ssl.SSLCertVerificationError("self-signed"))
    assert words_for(error).startswith("its certificate is not trusted")
