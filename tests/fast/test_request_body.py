"""A request's body reaches the worker whole, in order, and again if it must; it is not gathered twice."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.leg import LegOutcome, RequestBody
from tests.fast.stage import Stage, chunks, reply

O = LegOutcome  # noqa: E741
ROOM = 65536
CHUNKED_POST = b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(size: int) -> bytes:
    """Return the head of a POST of `size` bytes."""
    return b"POST / HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n" % size


def body_received(data: bytes) -> tuple[bytes, bool]:
    """Return (body, is it complete) of what a worker got, as h11 reads it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    assert isinstance(server.next_event(), h11.Request)
    got = b""
    while isinstance(event := server.next_event(), h11.Data):
        got += event.data
    return got, isinstance(event, h11.EndOfMessage)


# --- what it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("declared", "complete"), [(-2, True), (0, True), (-1, False), (5, False)])
def test_a_body_that_is_none_is_complete(declared, complete):
    body = RequestBody(declared, 100)
    assert (body.complete, body.size, body.declared) == (complete, 0, declared)
    assert (body.lost, body.full) == (False, False)
    assert body.whole() == b""


def test_gathers_its_parts():
    body = RequestBody(-1, 100)
    for part in (b"ab", b"", b"cd"):
        body.feed(part)
    assert (body.size, body.held, body.whole(), body.complete) == (4, 4, b"abcd", False)
    body.finish()
    assert (body.complete, body.whole()) == (True, b"abcd")


def test_may_be_replaced_before_it_is_sent():
    body = RequestBody(4, 100)
    body.feed(b"abcd")
    body.finish()
    body.replace(b"longer than before")
    assert (body.size, body.whole()) == (18, b"longer than before")
    stage = Stage()
    stage.ask(head=post(18), body=body)
    assert stage.sent == post(18) + b"longer than before"


def test_may_be_replaced_by_nothing():
    body = RequestBody(4, 100)
    body.feed(b"abcd")
    body.replace(b"")
    assert (body.size, body.whole(), body.held) == (0, b"", 0)


def test_more_than_is_kept_is_lost_as_it_is_sent():
    body = RequestBody(-1, 10)
    stage = Stage()
    stage.ask(head=CHUNKED_POST, body=body)
    body.feed(b"x" * 10)
    assert (body.lost, body.held) == (False, 10)
    body.feed(b"y")
    assert (body.lost, body.held) == (True, 0)
    body.feed(b"z" * 1000)
    assert body.held == 0


def test_full_is_a_matter_of_what_is_unsent():
    body = RequestBody(-1, 10 * ROOM)
    body.feed(b"x" * (ROOM - 1))
    assert not body.full
    body.feed(b"x")
    assert body.full
    Stage().ask(head=CHUNKED_POST, body=body)
    assert not body.full


# --- how it is sent -----------------------------------------------------------------------------------


def test_a_small_body_goes_out_in_one_write_with_the_head():
    body = RequestBody(4, 100)
    body.feed(b"abcd")
    body.finish()
    stage = Stage()
    leg = stage.ask(head=post(4), body=body)
    assert stage.transports[-1].writes == [post(4) + b"abcd"]
    assert leg.sent_ns


def test_no_body_is_sent_at_once():
    stage = Stage()
    leg = stage.ask()
    assert leg.sent_ns
    assert len(stage.transports[-1].writes) == 1


@pytest.mark.parametrize("pieces", [[], [b"a"], [b"ab", b"c" * 20, b"d" * 70_000]])
@pytest.mark.parametrize("before", [0, 1, 99])
def test_a_chunked_body_is_chunked_anew(pieces, before):
    body = RequestBody(-1, 1 << 20)
    stage = Stage()
    for piece in pieces[:before]:
        body.feed(piece)
    if before == 99:
        body.finish()
    leg = stage.ask(head=CHUNKED_POST, body=body)
    for piece in pieces[before:]:
        assert not leg.sent_ns
        body.feed(piece)
    if before != 99:
        body.finish()
    assert stage.sent == CHUNKED_POST + chunks(pieces)
    assert body_received(stage.sent) == (b"".join(pieces), True)
    assert leg.sent_ns


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(0, 10), st.booleans(), st.integers(0, 400))
def test_a_body_of_any_parts_is_the_same_for_every_leg(pieces, before, chunked, keep):
    data = b"".join(pieces)
    head = CHUNKED_POST if chunked else post(len(data))
    body = RequestBody(-1 if chunked else len(data), keep)
    for piece in pieces[:before]:
        body.feed(piece)
    stage = Stage()
    leg = stage.ask(head=head, body=body)
    for piece in pieces[before:]:
        body.feed(piece)
    body.finish()
    assert body_received(stage.sent) == (data, True)
    stage.worker_resets()
    assert leg.outcome == O.LEG_RESET
    assert body.lost is (len(data) > keep)
    if not body.lost:
        stage.ask(head=head, body=body)
        assert body_received(stage.sent) == (data, True)


def test_a_worker_that_does_not_keep_up_is_waited_for():
    room = []
    body = RequestBody(-1, 1 << 30, lambda: room.append(body.size))
    stage = Stage()
    leg = stage.ask(head=CHUNKED_POST, body=body)
    connection = stage.connections[-1]
    connection.pause_writing()
    before = len(stage.sent)
    body.feed(b"x" * ROOM)
    assert (len(stage.sent), body.full, room) == (before, True, [])
    connection.resume_writing()
    assert (body.full, room) == (False, [ROOM])
    body.feed(b"y")
    body.finish()
    assert body_received(stage.sent) == (b"x" * ROOM + b"y", True)
    assert leg.sent_ns


def test_room_is_told_once_for_each_time_it_was_full():
    room = []
    body = RequestBody(-1, 1 << 30, lambda: room.append(1))
    stage = Stage()
    stage.ask(head=CHUNKED_POST, body=body)
    body.feed(b"small")
    assert room == []
    stage.connections[-1].pause_writing()
    for _ in range(4):
        body.feed(b"x" * (ROOM // 2))
    stage.connections[-1].resume_writing()
    assert room == [1]


def test_a_body_that_was_waiting_for_a_connection():
    body = RequestBody(-1, 1 << 20)
    stage = Stage(connects=False)
    stage.ask(head=CHUNKED_POST, body=body)
    body.feed(b"ab")
    body.finish()
    stage.connect()
    assert body_received(stage.sent) == (b"ab", True)


def test_what_comes_after_the_leg_has_ended_goes_nowhere():
    body = RequestBody(-1, 1 << 20)
    stage = Stage()
    leg = stage.ask(head=CHUNKED_POST, body=body)
    body.feed(b"ab")
    leg.cancel()
    sent = stage.sent
    body.feed(b"cd")
    body.finish()
    assert stage.sent == sent
    stage.ask(head=CHUNKED_POST, body=body)
    assert body_received(stage.sent) == (b"abcd", True)


def test_the_body_is_with_one_leg_at_a_time():
    body = RequestBody(-1, 1 << 20)
    first, second = Stage(), Stage()
    leg = first.ask(head=CHUNKED_POST, body=body)
    body.feed(b"ab")
    leg.cancel()
    second.ask(head=CHUNKED_POST, body=body)
    body.feed(b"cd")
    body.finish()
    assert body_received(first.sent) == (b"ab", False)
    assert body_received(second.sent) == (b"abcd", True)


def test_an_answer_before_the_body_is_out_does_not_lose_the_rest():
    """100 Continue, or an early error: the worker goes on taking what it wants."""
    body = RequestBody(-1, 1 << 20)
    stage = Stage()
    leg = stage.ask(head=CHUNKED_POST, body=body)
    body.feed(b"ab")
    stage.worker_says(b"HTTP/1.1 100 Continue\r\n\r\n")
    body.feed(b"cd")
    body.finish()
    stage.worker_says(reply(body=b"ok"))
    assert (leg.outcome, body_received(stage.sent)) == (O.LEG_COMPLETE, (b"abcd", True))
    assert stage.pool.idle_count == 1
