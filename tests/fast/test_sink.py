"""An answer is framed as its client can read it, and one that is not whole never looks whole."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.leg import Connection, Pool
from relayd._fast.sink import HttpSink, Sink, SinkState
from relayd._fast.turn import Outlet, Turn
from tests.fast.stage import CHUNKED, EVENT_STREAM, FakeTransport, Stage, chunks, reply

UNKNOWN, NO_BODY = -1, -2
LARGE = b"x" * 100_000
LINES = b"Content-Type: text/plain\r\nX-A: 1\r\n"


def open_sink(
    minor: int = 1, head_request: bool = False, keep_alive: bool = True
) -> tuple[HttpSink, FakeTransport]:
    """Return a sink and the transport that it writes to."""
    transport = FakeTransport()
    return HttpSink(Outlet(transport, Turn()), minor, head_request, keep_alive), transport


def parse(transport: FakeTransport, method: str = "GET") -> tuple[h11.Response, bytes, bool]:
    """Return (head, body, is it complete) of what was written, as h11 reads it."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(transport.written)
    head = client.next_event()
    assert isinstance(head, h11.Response)
    body = b""
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    if event is h11.NEED_DATA and transport.ending and not transport.was_reset:
        client.receive_data(b"")
        try:
            event = client.next_event()
        except h11.RemoteProtocolError:
            return head, body, False
    return head, body, isinstance(event, h11.EndOfMessage)


def values(head: h11.Response, name: bytes) -> list[bytes]:
    """Return the values of one field."""
    return [value for field, value in head.headers if field == name]


# --- framing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[b"hello"], [b"he", b"", b"llo"], [LARGE, b"x", LARGE], []])
@pytest.mark.parametrize("minor", [0, 1])
def test_a_known_length_is_declared(pieces, minor):
    sink, transport = open_sink(minor)
    body = b"".join(pieces)
    sink.start(200, LINES, len(body))
    for piece in pieces:
        sink.write(piece)
    sink.end()
    head, seen, complete = parse(transport)
    assert (seen, complete) == (body, True)
    assert values(head, b"content-length") == [b"%d" % len(body)]
    assert values(head, b"transfer-encoding") == []
    assert (sink.state, sink.status, sink.bytes_written) == (SinkState.SINK_ENDED, 200, len(body))
    assert transport.ending == ""


@pytest.mark.parametrize(
    "pieces", [[b"hello"], [b"he", b"", b"llo"], [LARGE, b"x", LARGE], [b"x" * 15, b"y" * 16, b"z" * 17], []]
)
def test_an_unknown_length_goes_out_in_chunks(pieces):
    sink, transport = open_sink()
    sink.start(200, LINES, UNKNOWN)
    for piece in pieces:
        sink.write(piece)
    sink.end()
    head, seen, complete = parse(transport)
    assert (seen, complete) == (b"".join(pieces), True)
    assert values(head, b"transfer-encoding") == [b"chunked"]
    assert values(head, b"content-length") == values(head, b"connection") == []
    assert sink.keep_alive
    assert transport.ending == ""


def test_http_1_0_gets_a_body_that_ends_with_the_connection():
    sink, transport = open_sink(minor=0)
    sink.start(200, LINES, UNKNOWN)
    sink.write(b"hello")
    sink.end()
    assert not sink.keep_alive  # so that the door closes
    transport.close()
    head, seen, complete = parse(transport)
    assert (seen, complete) == (b"hello", True)
    assert values(head, b"connection") == [b"close"]
    assert values(head, b"transfer-encoding") == values(head, b"content-length") == []


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("length", [NO_BODY, UNKNOWN, 5])
def test_some_answers_have_no_body_and_no_framing(status, length):
    sink, transport = open_sink()
    sink.start(status, LINES, length)
    sink.write(b"not to be seen")
    sink.end()
    head, seen, complete = parse(transport)
    assert (head.status_code, seen, complete) == (status, b"", True)
    assert values(head, b"transfer-encoding") == values(head, b"content-length") == []
    assert sink.state == SinkState.SINK_ENDED
    assert sink.keep_alive


@pytest.mark.parametrize(
    ("length", "minor", "name", "value"),
    [
        (5, 1, b"content-length", b"5"),
        (5, 0, b"content-length", b"5"),
        (UNKNOWN, 1, b"transfer-encoding", b"chunked"),
    ],
)
def test_head_gets_the_head_alone(length, minor, name, value):
    sink, transport = open_sink(minor, head_request=True)
    sink.start(200, LINES, length)
    sink.write(b"hello")
    sink.end()
    head, seen, complete = parse(transport, "HEAD")
    assert (seen, complete) == (b"", True)
    assert values(head, name) == [value]
    assert transport.written.endswith(b"\r\n\r\n")
    assert (sink.state, sink.bytes_written) == (SinkState.SINK_ENDED, 0)


@pytest.mark.parametrize(
    ("minor", "keep_alive", "line"),
    [(1, True, []), (1, False, [b"close"]), (0, True, [b"keep-alive"]), (0, False, [b"close"])],
)
def test_says_whether_the_connection_stays(minor, keep_alive, line):
    sink, transport = open_sink(minor, keep_alive=keep_alive)
    sink.start(200, b"", 2)
    sink.write(b"ok")
    sink.end()
    head, _, _ = parse(transport)
    assert values(head, b"connection") == line
    assert sink.keep_alive is keep_alive


def test_a_connection_may_be_told_to_close_before_the_head_is_out():
    sink, transport = open_sink()
    sink.close_after()
    sink.start(200, b"", 0)
    sink.end()
    assert b"Connection: close\r\n" in transport.written
    assert not sink.keep_alive


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (200, b"HTTP/1.1 200 OK\r\n"),
        (429, b"HTTP/1.1 429 Too Many Requests\r\n"),
        (529, b"HTTP/1.1 529 \r\n"),
    ],
)
def test_names_the_status(status, line):
    for minor in (0, 1):
        sink, transport = open_sink(minor)
        sink.start(status, b"", 0)
        sink.end()
        assert transport.written.startswith(line)


def test_lines_go_out_as_they_are():
    sink, transport = open_sink()
    sink.start(200, b"X-A: 1\r\nx-a:  2 \r\n", 0)
    sink.end()
    assert transport.written == b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a:  2 \r\nContent-Length: 0\r\n\r\n"


# --- writes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, UNKNOWN])
def test_a_small_answer_begins_with_one_write(length):
    sink, transport = open_sink()
    sink.start(200, LINES, length)
    assert transport.writes == []
    sink.write(b"hello")
    assert len(transport.writes) == 1
    assert transport.writes[0].startswith(b"HTTP/1.1 200")
    assert b"hello" in transport.writes[0]


def test_an_answer_of_known_length_is_one_write():
    sink, transport = open_sink()
    sink.start(200, LINES, 5)
    sink.write(b"hello")
    sink.end()
    assert len(transport.writes) == 1


def test_a_head_without_a_body_waits_for_flush():
    sink, transport = open_sink()
    sink.start(200, LINES, UNKNOWN)
    sink.flush()
    assert transport.written.endswith(b"chunked\r\n\r\n")
    sink.flush()
    assert len(transport.writes) == 1


def test_nothing_is_written_before_start_or_behind_the_end():
    sink, transport = open_sink()
    sink.write(b"early")
    sink.end()
    assert (transport.written, sink.state) == (b"", SinkState.SINK_NEW)
    sink.start(200, b"", 2)
    sink.write(b"ok")
    sink.end()
    before = transport.written
    sink.write(b"late")
    sink.end()
    sink.abort()
    sink.flush()
    assert (transport.written, transport.ending) == (before, "")
    assert sink.state == SinkState.SINK_ENDED


def test_an_empty_write_does_not_end_a_chunked_body():
    sink, transport = open_sink()
    sink.start(200, b"", UNKNOWN)
    sink.write(b"a")
    sink.write(b"")
    assert parse(transport)[1:] == (b"a", False)
    sink.write(b"b")
    sink.end()
    assert parse(transport)[1:] == (b"ab", True)


@given(
    st.lists(st.binary(max_size=40) | st.just(b"z" * 40_000), max_size=8),
    st.sampled_from(["length", "chunks", "close"]),
)
def test_any_pieces_arrive_as_one_body(pieces, framing):
    sink, transport = open_sink(0 if framing == "close" else 1)
    body = b"".join(pieces)
    sink.start(200, LINES, len(body) if framing == "length" else UNKNOWN)
    for piece in pieces:
        sink.write(piece)
    sink.end()
    if not sink.keep_alive:
        transport.close()
    assert parse(transport)[1:] == (body, True)


# --- endings that are none ----------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [b"", b"hell", LARGE])
def test_a_body_that_is_too_short_never_ends_well(piece):
    sink, transport = open_sink()
    sink.start(200, b"", len(piece) + 1)
    sink.write(piece)
    sink.end()
    assert sink.state == SinkState.SINK_ABORTED
    assert not sink.keep_alive
    assert transport.ending == "closed"
    assert parse(transport)[1:] == (piece, False)


@pytest.mark.parametrize("length", [9, UNKNOWN])
def test_where_framing_shows_the_cut_an_abort_is_a_close(length):
    """What was written before still arrives: a reset could destroy it."""
    sink, transport = open_sink()
    sink.start(200, b"", length)
    sink.write(b"hello")
    sink.abort()
    assert (transport.ending, transport.was_reset) == ("closed", False)
    assert parse(transport)[1:] == (b"hello", False)
    assert sink.state == SinkState.SINK_ABORTED


def test_where_a_close_would_look_complete_an_abort_is_a_reset():
    sink, transport = open_sink(minor=0)
    sink.start(200, b"", UNKNOWN)
    sink.write(b"hello")
    sink.abort()
    assert transport.was_reset


def test_the_head_is_told_even_if_nothing_follows():
    sink, transport = open_sink()
    sink.start(200, LINES, UNKNOWN)
    sink.abort()
    head, body, complete = parse(transport)
    assert (head.status_code, body, complete) == (200, b"", False)


def test_an_abort_before_the_start_closes_the_connection():
    sink, transport = open_sink()
    sink.abort()
    assert (transport.written, transport.ending) == (b"", "closed")
    assert not sink.keep_alive


def test_a_second_abort_does_nothing():
    sink, transport = open_sink(minor=0)
    sink.start(200, b"", UNKNOWN)
    sink.abort()
    options = list(transport.socket.options)
    sink.abort()
    sink.end()
    sink.write(b"x")
    assert transport.socket.options == options
    assert sink.state == SinkState.SINK_ABORTED


def test_nothing_is_written_behind_an_abort():
    sink, transport = open_sink()
    sink.start(200, b"", UNKNOWN)
    sink.abort()
    before = transport.written
    sink.write(b"x")
    sink.end()
    assert transport.written == before


@pytest.mark.parametrize(
    ("minor", "head_request", "length", "may"),
    [(1, False, UNKNOWN, True), (1, False, 9, False), (0, False, UNKNOWN, False), (1, True, UNKNOWN, False)],
)
def test_something_of_ours_may_follow_in_chunks_only(minor, head_request, length, may):
    sink, _ = open_sink(minor, head_request)
    assert not sink.can_append()
    sink.start(200, b"", length)
    assert sink.can_append() is may
    sink.abort()
    assert not sink.can_append()


# --- flow ---------------------------------------------------------------------------------------------


def test_pause_and_resume_reach_the_source():
    stage = Stage()
    sink = HttpSink(Outlet(stage.client, stage.turn), 1, False, True)
    stage.ask(sink=sink)
    stage.worker_says(reply(EVENT_STREAM, CHUNKED) + chunks([b"data: a\n\n"], last=False))
    transport = stage.transports[-1]
    sink.pause()
    sink.pause()
    assert sink.paused
    assert not transport.reading
    sink.resume()
    sink.resume()
    assert not sink.paused
    assert transport.reading
    assert transport.pauses == 1


def test_a_sink_without_a_source_can_be_paused():
    sink, _ = open_sink()
    sink.pause()
    assert sink.paused
    sink.resume()
    assert not sink.paused


def test_the_plain_sink_swallows_everything():
    sink = Sink()
    sink.start(200, LINES, 5)
    sink.write(b"hello")
    sink.flush()
    assert (sink.state, sink.status, sink.bytes_written) == (SinkState.SINK_STARTED, 200, 5)
    assert not sink.can_append()
    sink.end()
    assert sink.state == SinkState.SINK_ENDED
    sink.abort()
    assert sink.state == SinkState.SINK_ABORTED


def test_connections_want_room_for_writing():
    """A new connection sets marks of its own: uvloop's are 16 bytes until somebody does."""
    connection = Connection(Pool("w", b"w", None))
    connection.connection_made(FakeTransport())  # checks the marks
    assert connection.served == 0
