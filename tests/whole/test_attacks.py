"""Workers that say what they should not, and clients that read as they please.

Each test is something that once went wrong.  What clients send is in `test_attacks_heads.py`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from relayd._fast.leg import Pool, RequestBody, now_ns
from relayd.upstream.dial import Dialer, Endpoint
from tests.fast.stage import Stage, chunks
from tests.front.test_door import Place, within_a_loop
from tests.support import procs
from tests.support.dialects import ANTHROPIC, DONE, OPENAI, Dialect
from tests.support.gateway import Gateway
from tests.support.upstream import (
    Gate,
    Operation,
    Request,
    Script,
    Upstream,
    chunk,
    head,
    reply,
    send,
    silence,
    stream,
    stream_head,
)
from tests.support.waiting import eventually
from tests.support.wire import COMPLETE, RESET, ask, request
from tests.whole.conftest import Relay, question

READ = 65536  # what the gateway reads of a worker at once
MIB = 1 << 20
BOM = "\ufeff"
EVENT_STREAM = ("content-type", "text/event-stream")
STREAM = question(OPENAI, stream=True)


# Answers that are not what was asked for


def _of_size(size: int) -> Script:
    """A plain answer of `size` bytes."""
    return [head(200, ("content-length", str(size))), send(b"b" * size)]


def _one_is_followed_by_another(seen: Request) -> Script:
    """To /one: an answer that fills a read to its last byte, and one more that nobody asked for."""
    if seen.target != "/one":
        return reply({"to": seen.target})
    lines = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    size = READ - len(lines % READ)
    return [send(lines % size + b"a" * size + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL")]


def test_bytes_behind_a_read_that_they_do_not_fit_in_answer_no_pipelined_request(relay: Relay) -> None:
    relay.upstream.play_by(_one_is_followed_by_another)
    for _ in range(3):
        with relay.connect() as client:
            client.send(request("GET", "/one") + request("GET", "/two") + request("GET", "/three"))
            assert set(client.read().body) == {ord("a")}
            assert [client.read().json() for _ in range(2)] == [{"to": "/two"}, {"to": "/three"}]


def test_bytes_behind_a_read_that_they_do_not_fit_in_answer_no_other_client(relay: Relay) -> None:
    relay.upstream.play_by(_one_is_followed_by_another)
    for _ in range(40):
        with relay.connect() as one, relay.connect() as other:
            one.send(request("GET", "/one"))
            other.send(request("GET", "/two"))
            assert set(one.read().body) == {ord("a")}
            assert other.read().json() == {"to": "/two"}


INTERIM_BODIES = {
    "a length": b"HTTP/1.1 199 X\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 199 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("piece", [1, 1000], ids=["byte by byte", "whole"])
@pytest.mark.parametrize("interim", INTERIM_BODIES.values(), ids=INTERIM_BODIES.keys())
def test_an_interim_answer_with_a_body_is_no_answer(relay: Relay, interim: bytes, piece: int) -> None:
    data = interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    relay.upstream.play([{**send(one), "gap": 0.001} for one in pieces])
    said = len(relay.gateway.stderr)
    assert ask(relay.gateway, request("GET", "/any")).status == 502
    assert "Traceback" not in relay.gateway.stderr[said:]


def test_a_head_of_three_hundred_lines_is_no_answer(relay: Relay) -> None:
    lines = [(f"x-{number}", "y") for number in range(300)]
    relay.upstream.play(reply({"ok": True}, 200, *lines))
    assert ask(relay.gateway, request("GET", "/any")).status == 502


def test_the_rest_of_an_unwanted_answer_is_not_waited_for_for_ever(start: Callable[..., Relay]) -> None:
    relay = start(2, {"policy": "round_robin"})
    stalls, serves = relay.upstreams
    stalls.play([head(429, ("content-length", "100")), silence()])
    serves.play(reply({"ok": True}))
    for _ in range(4):
        assert ask(relay.gateway, request("GET", "/any")).status == 200
    assert stalls.requests
    eventually(lambda: all(seen.connection.closed_at for seen in stalls.requests), 8, "the worker is left")


# Streams


def test_a_keep_alive_is_not_written_into_a_body_with_a_length(start: Callable[..., Relay]) -> None:
    relay = start(1, {"sse_keepalive": "100ms"})
    first, last = OPENAI.text("a"), OPENAI.text("b") + DONE
    length = ("content-length", str(len(first + last)))
    pause: Operation = {"sleep": 0.5}
    relay.upstream.play(
        [head(200, EVENT_STREAM, length), send(first), pause, send(last)],
        [stream_head(), chunk(first), pause, chunk(last), {"end": True}],
    )
    with relay.connect() as client:
        measured = client.ask(STREAM)
        assert (bytes(measured.body), measured.rest) == ((first + last).encode(), b"")
        assert b": keep-alive\n\n" in client.ask(STREAM).body  # where there is no length


HUGE = OPENAI.text("x" * 4 * READ).encode()


def _stops_in_an_event(*then: Operation) -> Script:
    """A stream that sends most of a huge event before it does what follows."""
    return [stream_head(), chunk(OPENAI.text("a")), chunk(HUGE[: 3 * READ].decode()), *then]


def test_a_keep_alive_does_not_split_a_huge_event(start: Callable[..., Relay]) -> None:
    relay = start(1, {"engine": "vllm", "sse_keepalive": "100ms"})
    gate = Gate()
    rest = [chunk(HUGE[3 * READ :].decode()), chunk(DONE), {"end": True}]
    relay.upstream.play(_stops_in_an_event({"gate": gate}, *rest))
    with relay.connect() as client:
        client.send(STREAM)
        answer = client.read(enough=2 * READ)
        time.sleep(0.5)  # time for keep-alives, which must not come
        gate.open()
        client.read_on(answer)
    assert answer.ending == COMPLETE
    assert HUGE in answer.body


def test_an_error_event_does_not_split_a_huge_event(start: Callable[..., Relay]) -> None:
    relay = start(1, {"engine": "vllm"})
    gate = Gate()
    relay.upstream.play(_stops_in_an_event({"gate": gate}, {"fin": True}))
    with relay.connect() as client:
        client.send(STREAM)
        answer = client.read(enough=2 * READ)
        gate.open()
        client.read_on(answer)
    assert answer.ending != COMPLETE
    assert (OPENAI.text("a").encode() + HUGE).startswith(answer.body)


def test_identity_is_no_encoding_where_a_stream_is_cut(relay: Relay) -> None:
    relay.upstream.play(
        [stream_head(("content-encoding", "identity")), chunk(OPENAI.text("a")), {"end": True}]
    )
    answer = relay.ask(OPENAI, stream=True)
    assert answer.ending != COMPLETE
    assert b'"error"' in answer.body


def test_identity_is_no_encoding_where_a_stream_begins_with_an_error(pair: Relay) -> None:
    fails, serves = pair.upstreams
    error = chunk(OPENAI.error(500, "out of memory"))
    fails.play([stream_head(("content-encoding", "identity")), error, {"end": True}])
    serves.play(stream(*OPENAI.events("a")))
    for _ in range(2):
        assert pair.ask(OPENAI, stream=True).body == "".join(OPENAI.events("a")).encode()
    assert fails.requests


ODD_TYPES = ['{"type": {"x": 1}}', '{"type": ["x"]}', '{"type": "error", "error": {"type": ["x"]}}']
ODD_CODES = ['{"error": {"code": "\u00b2"}}', '{"error": {"code": "' + "9" * 5000 + '"}}']
ODD_EVENTS = [
    *((OPENAI, data) for data in ODD_TYPES[:2] + ODD_CODES),
    *((ANTHROPIC, data) for data in ODD_TYPES),
]


@pytest.mark.parametrize(
    ("dialect", "data"), ODD_EVENTS, ids=[f"{dialect.name} {data[:45]}" for dialect, data in ODD_EVENTS]
)
def test_events_of_odd_types_pass(relay: Relay, dialect: Dialect, data: str) -> None:
    """There is only one worker, so that what it says passes even if it is taken for an error."""
    events = [f"data: {data}\n\n", *dialect.events("a")]
    relay.upstream.play(stream(*events))
    answer = relay.ask(dialect, stream=True)
    assert (answer.ending, answer.body.decode()) == (COMPLETE, "".join(events))


@pytest.mark.parametrize("done", ["data: [DONE]\n", "data: [DONE]", "data: [DONE]\r\n"])
def test_a_terminator_without_its_empty_line_ends_a_stream(relay: Relay, done: str) -> None:
    relay.upstream.play(stream(OPENAI.text("a"), done))
    answer = relay.ask(OPENAI, stream=True)
    assert (answer.ending, answer.body.decode()) == (COMPLETE, OPENAI.text("a") + done)


def test_a_byte_order_mark_hides_no_terminator(relay: Relay) -> None:
    relay.upstream.play(stream(BOM + DONE))
    answer = relay.ask(OPENAI, stream=True)
    assert (answer.status, answer.ending, answer.body.decode()) == (200, COMPLETE, BOM + DONE)


def test_a_usage_that_is_null_is_not_taken_out(start: Callable[..., Relay]) -> None:
    relay = start(1, {"engine": "vllm"})
    events = ['data: {"choices":[],"usage":null,"prompt_filter_results":[1]}\n\n', OPENAI.text("a"), DONE]
    relay.upstream.play(stream(*events))
    assert relay.ask(OPENAI, stream=True).body.decode() == "".join(events)


# Answers that end too early for clients that are told of ends by the close


def test_an_answer_in_HTTP_1_0_to_a_client_that_half_closes_is_cut(relay: Relay) -> None:
    relay.upstream.play([head(200), send("part"), silence()])
    with relay.connect() as client:
        client.send(request("GET", "/any", version="1.0"))
        answer = client.read(enough=b"part")
        client.half_close()
        assert client.read_on(answer).ending == RESET


def test_an_answer_in_HTTP_1_0_to_a_client_that_takes_nothing_is_cut(start: Callable[..., Relay]) -> None:
    relay = start(1, {"resilience.timeouts.write": "500ms"})
    relay.upstream.play([head(200), send(b"x" * 8 * MIB), {"fin": True}])
    with relay.connect(receive_buffer=4096) as client:
        client.send(request("GET", "/any", version="1.0"))
        eventually(lambda: relay.upstream.requests and relay.gateway.in_flight() == 0, what="it is let go")
        assert client.wait_closed() == RESET


# Slow readers


def test_a_client_that_reads_slowly_is_not_cut(start: Callable[..., Relay]) -> None:
    """The kernel holds megabytes for it, so that the gateway's own buffer does not move."""
    relay = start(1, {"resilience.timeouts.write": "1s"})
    relay.upstream.play(_of_size(20 * MIB))
    with relay.connect(receive_buffer=4096) as client:
        client.send(request("GET", "/any"))
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert client.sock.recv(2000)
            time.sleep(0.02)  # what makes the reader slow
        assert relay.upstream.requests[0].connection.closed_at is None
        client.reset()


@within_a_loop
def test_a_connection_that_has_just_begun_is_not_late() -> None:
    """Its first look finds a little waiting, and nothing known of when the client last took something."""
    place = Place("resilience.timeouts.write=1s")
    place.transport.buffered = 100
    place.door.sweep(now_ns())
    assert place.transport.ending == ""


def test_a_client_that_takes_nothing_holds_up_pipelined_answers_as_well(start: Callable[..., Relay]) -> None:
    relay = start(1)
    endless = [head(200, ("content-length", str(256 * MIB))), {**send(b"x" * MIB), "repeat": 256}]
    relay.upstream.play_by(lambda seen: endless if seen.target == "/endless" else _of_size(READ))
    before = procs.resident_kib(relay.gateway.pid)
    client = relay.connect(receive_buffer=4096)
    client.send(request("GET", "/part") * 100 + request("GET", "/endless"))
    time.sleep(0.5)  # time to fill the memory, which must not happen
    grown = procs.resident_kib(relay.gateway.pid) - before
    print(f"{grown} KiB more")
    assert grown < 16 * 1024
    client.reset()


# Bodies and addresses


def test_a_body_that_grows_while_it_is_sent_is_ended_once() -> None:
    """Sending makes room, room brings the rest and the end, and sending goes on where it was."""
    stage, body = Stage(), RequestBody(-1, MIB)
    first, rest = b"x" * READ, b"y" * READ
    lines = b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n"

    def bring_the_rest() -> None:
        body.on_room = None
        body.feed(rest)
        body.finish()

    body.on_room = bring_the_rest
    stage.ask(head=lines, body=body)
    stage.connections[0].pause_writing()
    body.feed(first)
    stage.connections[0].resume_writing()
    assert stage.sent == lines + chunks([first, rest])


def test_a_client_that_uploads_slowly_puts_no_worker_to_rest(start: Callable[..., Relay]) -> None:
    relay = start(1, {"resilience.timeouts.idle": "300ms", "front.body_timeout": "1s"})
    clients = [relay.connect() for _ in range(6)]
    for client in clients:
        client.send(request("POST", "/upload", ("Content-Length", "100"), body=b"12345"))
    assert [client.read().status for client in clients] == [408] * 6
    assert "rests" not in relay.gateway.stderr
    assert relay.gateway.metrics().total("relayd_legs_total", outcome="idle_timeout") == 0


def test_an_address_that_swallows_connections_does_not_use_up_the_time_of_the_next() -> None:
    """Its backlog is full, so that the kernel drops what comes."""

    async def dial() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with socket.socket() as hole, socket.socket() as first, socket.socket() as second:
            hole.bind(("127.0.0.2", port))
            hole.listen(0)
            for filling in (first, second):
                filling.setblocking(False)
                filling.connect_ex(("127.0.0.2", port))
            endpoint = Endpoint(f"http://name.test:{port}")
            endpoint.addresses = [("127.0.0.2", port), ("127.0.0.1", port)]
            endpoint.resolved_at = asyncio.get_running_loop().time()
            dialer = Dialer(endpoint, None, 0.5)
            pool = Pool("w", b"h", dialer.dial)
            dialer.dial(pool)
            await asyncio.gather(*dialer.tasks)
            assert pool.idle_count == 1
            assert endpoint.addresses[0] == ("127.0.0.1", port)
            pool.close_idle(now_ns() + 1)
        server.close()

    asyncio.run(dial())


# What relayd says of itself


def test_open_connections_are_counted(start: Callable[..., Relay]) -> None:
    relay = start(1)

    def is_counted(wanted: int) -> bool:
        return relay.gateway.metrics().total("relayd_client_connections") == wanted

    clients = [relay.connect() for _ in range(10)]
    eventually(lambda: is_counted(10))
    for client in clients:
        client.close()
    eventually(lambda: is_counted(0))


class Unlisted(Upstream):
    """A worker that does not know its models."""

    def script_for(self, request: Request) -> Script | None:
        return reply({}, 404) if request.is_probe else super().script_for(request)


def test_a_worker_that_lists_no_models_is_told_of_once() -> None:
    with Unlisted() as upstream, Gateway(upstream) as gateway:
        while len(upstream.probes) < 9:  # its own question at the start; for each of these up to two
            assert ask(gateway, request("GET", "/v1/models")).status == 404
    assert gateway.stderr.count("does not list its models") == 1
