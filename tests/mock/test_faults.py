"""Each fault, as a client's socket sees it."""

import asyncio
import json
import random
import socket
import time

import pytest
import uvloop

from relayd.mock import faults
from tests.mock.running import ask, chat, message, read_answer, request, running

TERMINATORS = {
    "/v1/chat/completions": "[DONE]",
    "/v1/messages": "message_stop",
    "/v1/responses": "response.completed",
}
BODIES = {
    "/v1/chat/completions": chat(stream=True),
    "/v1/messages": message(stream=True),
    "/v1/responses": {"model": "mock", "input": "hello", "stream": True},
}


def spoil(fault: str) -> str:
    return f"x-mock-fault: {fault}\r\n"


def read_until_it_ends(sock):
    """Return what came, and what ended it."""
    data = b""
    try:
        while more := sock.recv(65536):
            data += more
    except OSError as error:
        return data, type(error)
    return data, None


def outcome(mock):
    return mock.until(lambda server: server.stats.ledger and server.stats.ledger[-1].outcome)


def test_no_fault_is_no_fault():
    with running() as mock:
        answer = ask(mock, "/v1/chat/completions", chat(stream=True))
        assert answer.complete
        assert outcome(mock) == "completed"


@pytest.mark.parametrize("engine", ["vllm", "anthropic"])
@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.parametrize("events", [0, 1, 3])
def test_cut(engine, path, events):
    with running(engine=engine) as mock:
        answer = ask(mock, path, BODIES[path], headers=spoil(f"cut={events}"))
        assert answer.status == 200
        assert not answer.complete
        assert len(answer.events) == events
        assert TERMINATORS[path] not in answer.kinds
        assert outcome(mock) == "failed"


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("events", [0, 3])
def test_reset(events, make_loop):
    with running(make_loop) as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(stream=True), headers=spoil(f"reset={events}")))
        data, ending = read_until_it_ends(sock)
        assert ending is ConnectionResetError
        assert data.count(b"data: ") == events
        mock.until(lambda server: server.stats.connections_open == 0)
        assert mock.do(lambda server: server.stats.connections_aborted) == 1


@pytest.mark.parametrize(
    ("engine", "path", "events", "kinds"),
    [
        ("vllm", "/v1/chat/completions", 0, ["error", "[DONE]"]),
        ("vllm", "/v1/chat/completions", 2, ["role", "content", "error", "[DONE]"]),
        ("sglang", "/v1/chat/completions", 2, ["role", "content", "error", "[DONE]"]),
        ("openai", "/v1/chat/completions", 2, ["role", "content", "error"]),
        ("openai", "/v1/responses", 1, ["response.created", "error"]),
        ("anthropic", "/v1/messages", 0, ["error"]),
        ("anthropic", "/v1/messages", 3, ["message_start", "content_block_start", "ping", "error"]),
        ("vllm", "/v1/messages", 1, ["message_start", "error"]),
    ],
)
def test_error(engine, path, events, kinds):
    with running(engine=engine) as mock:
        answer = ask(mock, path, BODIES[path], headers=spoil(f"error={events}"))
        assert answer.status == 200
        assert answer.kinds == kinds
        assert answer.complete  # an orderly end: it is the event that says so
        assert outcome(mock) == "failed"


@pytest.mark.parametrize("events", [0, 2])
def test_stall(events):
    with running() as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(stream=True), headers=spoil(f"stall={events}")))
        mock.until(lambda server: server.stats.ledger and server.stats.ledger[-1].status == 200)
        sock.settimeout(0.2)
        data, ending = read_until_it_ends(sock)
        assert ending is TimeoutError
        assert data.startswith(b"HTTP/1.1 200")
        assert data.count(b"data: ") == events
        assert mock.do(lambda server: server.stats.requests_open) == 1
        sock.close()
        mock.until(lambda server: server.stats.requests_open == 0)
        assert outcome(mock) == "cancelled"


def test_a_stalled_answer_goes_on_holding_its_slot():
    with running(itl_s=5.0) as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(stream=True), headers=spoil("stall=1")))
        mock.until(lambda server: server.simulation.num_running == 1 and server.stats.events_sent == 1)
        sock.close()
        mock.until(lambda server: server.simulation.num_running == 0)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai", "anthropic"])
@pytest.mark.parametrize("status", [400, 500, 503, 529])
def test_status(engine, status):
    with running(engine=engine) as mock:
        for path, body in (("/v1/chat/completions", chat()), ("/v1/messages", message(stream=True))):
            answer = ask(mock, path, body, headers=spoil(f"status={status}"))
            assert answer.status == status
            assert answer.header("content-type") == "application/json"
            error = answer.json()
            assert error["message"] if "message" in error else error["error"]["message"]


def test_rate_limit():
    with running(engine="openai") as mock:
        answer = ask(mock, "/v1/chat/completions", chat(), headers=spoil("rate_limit=1.5s"))
        assert answer.status == 429
        assert answer.header("retry-after") == "1.5"
        assert answer.header("retry-after-ms") == "1500"
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"


def test_delay_comes_before_the_head():
    with running() as mock:
        began_at = time.monotonic()
        answer = ask(mock, "/v1/chat/completions", chat(), headers=spoil("delay=150ms; status=503"))
        assert time.monotonic() - began_at >= 0.15
        assert answer.status == 503


def test_hang_never_answers():
    with running() as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(), headers=spoil("hang")))
        mock.until(lambda server: server.stats.requests_open == 1)
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.close()
        mock.until(lambda server: server.stats.requests_open == 0)


def test_close_says_nothing():
    with running() as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(), headers=spoil("close")))
        assert sock.recv(1) == b""


def test_keepalive_close():
    with running() as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(), headers=spoil("keepalive_close")))
        answer, rest = read_answer(sock)
        assert (answer.status, answer.complete, answer.header("connection"), rest) == (200, True, None, b"")
        assert sock.recv(1) == b""


@pytest.mark.parametrize("body", [chat(), chat(stream=True)], ids=["whole", "stream"])
def test_drip(body):
    with running() as mock:
        began_at = time.monotonic()
        answer = ask(mock, "/v1/chat/completions", body, headers=spoil("drip=4000"))
        size = len(answer.head) + len(answer.body)
        assert answer.complete
        assert time.monotonic() - began_at >= 0.5 * size / 4000
        assert outcome(mock) == "completed"


def test_two_drips_on_one_connection():
    with running() as mock, mock.connect() as sock:
        for _ in range(2):
            sock.sendall(request("/v1/completions", {"prompt": "x"}, headers=spoil("drip=20000")))
            answer, rest = read_answer(sock)
            assert (answer.complete, rest) == (True, b"")


@pytest.mark.parametrize(("fault", "complete"), [("cut=0", False), ("cut=1", False), ("reset=1", False)])
def test_an_answer_that_is_not_streamed_is_spoilt_too(fault, complete):
    with running() as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(), headers=spoil(fault)))
        try:
            answer, _ = read_answer(sock)
        except ConnectionResetError:
            assert fault.startswith("reset")
            return
        assert (answer.status, answer.complete) == (200, complete)
        assert bool(answer.body) is (fault != "cut=0")


def test_an_error_in_an_answer_that_is_not_streamed_is_a_500():
    with running() as mock:
        assert ask(mock, "/v1/chat/completions", chat(), headers=spoil("error=1")).status == 500


def test_other_routes_can_be_spoilt_on_request():
    with running() as mock:
        assert ask(mock, "/health", headers=spoil("status=503")).status == 503
        assert ask(mock, "/v1/models", headers=spoil("status=500")).status == 500


WRONG = [
    # text                 what the message names
    ("explode", "explode"),
    ("status=200", "400 to 599"),
    ("delay", "delay=DURATION"),
    ("delay=soon", "soon"),
    ("cut=-1", "EVENTS"),
    ("drip=0", "BYTES_PER_SECOND"),
    ("close=3", "none"),
    ("cut=1; reset=2", "cut and reset"),
]


@pytest.mark.parametrize(("text", "names"), WRONG)
def test_what_is_no_fault_is_refused(text, names):
    with running() as mock:
        answer = ask(mock, "/v1/chat/completions", chat(), headers=spoil(text))
    assert answer.status == 400
    assert names in answer.json()["error"]["message"]


def test_flags():
    assert faults.parse_flag("status=503@0.25") == faults.Chance("status", 503, 0.25)
    assert faults.parse_flag("hang") == faults.Chance("hang", 0, 1)
    for wrong in ("status=503@2", "status=503@often", "nothing@0.1"):
        with pytest.raises(faults.BadFault):
            faults.parse_flag(wrong)


def test_chances_are_drawn_alike_with_one_seed():
    chances = [
        faults.parse_flag("status=503@0.3"),
        faults.parse_flag("cut=2@0.3"),
        faults.parse_flag("stall@0.3"),
    ]

    def draws():
        rng = random.Random(5)
        return [faults.draw(chances, rng) for _ in range(200)]

    plans = draws()
    assert plans == draws()
    assert 30 < sum("status" in plan for plan in plans) < 90
    assert not any("cut" in plan and "stall" in plan for plan in plans)


def test_random_faults_strike_inference_and_nothing_else():
    with running(chances=(faults.parse_flag("status=503"),)) as mock:
        assert ask(mock, "/v1/models").status == 200
        assert ask(mock, "/v1/chat/completions", chat()).status == 503
        assert mock.do(lambda server: server.stats.ledger[-1].fault) == "status=503"


def test_faults_can_be_changed_while_it_runs():
    with running() as mock:
        assert ask(mock, "/mock/faults", ["status=503"]).json() == {"faults": ["status=503"]}
        assert ask(mock, "/v1/chat/completions", chat()).status == 503
        assert ask(mock, "/mock/faults", []).status == 200
        assert ask(mock, "/v1/chat/completions", chat()).status == 200
        assert ask(mock, "/mock/faults", ["explode"]).status == 400
        assert ask(mock, "/mock/faults", raw=b"{").status == 400


def test_the_header_wins_over_chance():
    with running(chances=(faults.parse_flag("status=503"),)) as mock:
        assert ask(mock, "/v1/chat/completions", chat(), headers=spoil("delay=0")).status == 200


def test_after_all_of_it_nothing_is_left():
    kinds = [
        "cut=1",
        "reset=2",
        "error=1",
        "stall=1",
        "hang",
        "close",
        "status=500",
        "keepalive_close",
        "drip=9999",
    ]
    rng = random.Random(3)
    with running(itl_s=0.001, output_tokens=(1, 20)) as mock:
        for _ in range(120):
            body = rng.choice([chat(), chat(stream=True), message(stream=True)])
            path = "/v1/messages" if "max_tokens" in body else "/v1/chat/completions"
            with mock.connect() as sock:
                sock.sendall(request(path, body, headers=spoil(rng.choice(kinds))))
                if rng.random() < 0.5:
                    sock.settimeout(0.02)
                    try:
                        sock.recv(100)
                    except (TimeoutError, ConnectionResetError):
                        pass
                if rng.random() < 0.3:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        mock.until(lambda server: server.stats.connections_open == 0)
        left = mock.do(
            lambda s: (s.stats.requests_open, s.simulation.num_running, s.simulation.kv_used, s._streams)
        )
        assert left == (0, 0, 0, set())
        stats = mock.do(lambda server: json.loads(json.dumps(server.stats.as_json())))
        ended = sum(stats["requests"][name] for name in ("completed", "cancelled", "failed", "rejected"))
        assert ended == stats["requests"]["started"] == 120
