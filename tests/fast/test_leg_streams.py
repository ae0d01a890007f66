"""When a stream is committed to a worker, what of it the client gets, and where it may be stopped."""

from __future__ import annotations

import pytest

from relayd._fast.leg import EventKind, LegOutcome, LegState
from relayd._fast.sink import SinkState
from relayd._fast.sse import Terminator
from relayd.dialects.anthropic import Anthropic
from relayd.dialects.openai import OpenAI
from tests.fast.stage import CHUNKED, COMMENT, EVENT_STREAM, NS, Stage, chunks, reply, stream
from tests.support.dialects import (
    ANTHROPIC,
    BLOCK_START,
    CHAT_STOP,
    OPENAI,
    PING,
    RESPONSES,
    Dialect,
    chat_usage,
)
from tests.support.wire import every_way

pytestmark = pytest.mark.usefixtures("both_ways")

O = LegOutcome  # noqa: E741
DONE = Terminator.TERMINATOR_DONE
COMMENTS = ": hello\n\n"
PREAMBLE_SIZE = len(OPENAI.preamble)
LIMIT = 65536

KINDS = {
    "openai": (Terminator.TERMINATOR_DONE, OpenAI().judge),
    "anthropic": (Terminator.TERMINATOR_MESSAGE_STOP, Anthropic().judge),
    "responses": (Terminator.TERMINATOR_RESPONSE, OpenAI().judge),
}
LONG_PREAMBLES = {
    "openai": COMMENTS + OPENAI.preamble,
    "anthropic": COMMENTS + ANTHROPIC.preamble + PING + BLOCK_START,
    "responses": COMMENTS + RESPONSES.preamble,
}
DIALECTS = pytest.mark.parametrize(
    "dialect", [OPENAI, ANTHROPIC, RESPONSES], ids=lambda dialect: dialect.name
)


def stage_for(dialect: Dialect, **options) -> Stage:
    """Return a stage whose route speaks `dialect`."""
    kind, judge = KINDS[dialect.name]
    return Stage(kind, judge=judge, **options)


def body_of(stage: Stage) -> bytes:
    """Return the body that the client has."""
    return bytes(stage.answer().body)


# --- the same for every cut ---------------------------------------------------------------------------


@DIALECTS
def test_a_stream_arrives_whole_however_it_is_cut(dialect):
    text = (
        LONG_PREAMBLES[dialect.name] + dialect.text("a") + dialect.text("b") + dialect.terminator
    ).encode()
    pieces = [text[:70], text[70:90], text[90:]]
    for cut in every_way(reply(EVENT_STREAM, CHUNKED) + chunks(pieces)):
        stage = stage_for(dialect)
        leg = stage.ask(tokens=(10, 100))
        stage.worker_says(*cut)
        seen = stage.answer()
        assert (seen.is_complete, bytes(seen.body)) == (True, text), cut
        assert seen.header("content-type") == "text/event-stream"
        assert (leg.outcome, leg.error_passed, leg.streaming) == (O.LEG_COMPLETE, False, True)
        stage.assert_nothing_left()


@DIALECTS
def test_line_ends_of_any_kind(dialect):
    text = "".join([LONG_PREAMBLES[dialect.name], dialect.text("a"), dialect.terminator])
    for end in ("\r\n", "\r"):
        body = text.replace("\n", end).encode()
        for cut in every_way(stream(body)):
            stage = stage_for(dialect)
            leg = stage.ask()
            stage.worker_says(*cut)
            assert (body_of(stage), leg.outcome) == (body, O.LEG_COMPLETE)


# --- the commit point ---------------------------------------------------------------------------------


@DIALECTS
def test_a_preamble_commits_nothing(dialect):
    preamble = LONG_PREAMBLES[dialect.name]
    for cut in every_way(stream(preamble, last=False)):
        stage = stage_for(dialect)
        leg = stage.ask(tokens=(10, 0))
        stage.worker_says(*cut)
        assert (stage.client.written, leg.committed, leg.first_ns) == (b"", False, 0)
        assert leg.state == LegState.LEG_HOLDING
        assert leg.held_answer == preamble.encode()
        assert stage.pool.prompt_tokens == 10, "the prompt is still being read"


@DIALECTS
def test_content_commits_and_brings_the_preamble_along(dialect):
    preamble, text = LONG_PREAMBLES[dialect.name], dialect.text("a")
    for cut in every_way(stream(preamble, text, last=False)):
        stage = stage_for(dialect)
        leg = stage.ask(tokens=(10, 0))
        stage.worker_says(*cut)
        assert body_of(stage) == (preamble + text).encode()
        assert leg.committed
        assert leg.first_ns >= leg.head_ns > 0
        assert stage.pool.prompt_tokens == 0


@DIALECTS
def test_half_an_event_commits_nothing(dialect):
    stage = stage_for(dialect)
    stage.ask()
    stage.worker_says(stream(dialect.text("a")[:-1], last=False))
    assert stage.client.written == b""
    stage.worker_says(chunks([b"\n"], last=False))
    assert body_of(stage) == dialect.text("a").encode()


def test_each_event_is_judged_once_and_whole():
    preamble = [COMMENTS, OPENAI.preamble, OPENAI.preamble]
    for cut in every_way(stream(*preamble, OPENAI.text("a"), OPENAI.text("b"))):
        stage = stage_for(OPENAI)
        stage.ask()
        stage.worker_says(*cut)
        assert stage.owner.judged == [event.encode() for event in [*preamble, OPENAI.text("a")]]


@DIALECTS
def test_a_terminator_commits(dialect):
    """An empty answer is an answer: nobody else is asked for a better one."""
    last = dialect.terminator.removeprefix(CHAT_STOP)
    for cut in every_way(stream(last)):
        stage = stage_for(dialect, elsewhere=True)
        leg = stage.ask()
        stage.worker_says(*cut)
        assert (body_of(stage), leg.outcome) == (last.encode(), O.LEG_COMPLETE)


@DIALECTS
def test_a_cut_before_content_leaves_no_trace(dialect):
    for last in (True, False):
        stage = stage_for(dialect)
        leg = stage.ask()
        stage.worker_says(stream(LONG_PREAMBLES[dialect.name], last=last))
        stage.worker_closes()
        assert (stage.client.written, leg.committed, leg.outcome) == (b"", False, O.LEG_CUT)
        assert leg.sink.state == SinkState.SINK_NEW
        stage.assert_nothing_left()


def test_an_event_stream_without_content_length_or_chunks():
    text = "".join([OPENAI.text("a"), OPENAI.terminator]).encode()
    stage = stage_for(OPENAI)
    leg = stage.ask()
    stage.worker_says(reply(EVENT_STREAM) + text)
    stage.worker_closes()
    assert (body_of(stage), stage.answer().is_complete, leg.outcome) == (text, True, O.LEG_COMPLETE)


def test_an_event_stream_with_a_length_keeps_it():
    text = "".join([OPENAI.text("a"), OPENAI.terminator]).encode()
    stage = stage_for(OPENAI)
    leg = stage.ask()
    stage.worker_says(reply(EVENT_STREAM, body=text))
    assert stage.answer().values("content-length") == [str(len(text))]
    assert (body_of(stage), leg.outcome) == (text, O.LEG_COMPLETE)


@pytest.mark.parametrize("end", ["\n\n", ""])
def test_sixty_four_kilobytes_are_held_and_no_more(end):
    """A preamble that goes on for ever, or an event that never ends, is let go."""
    text = (": " + "x" * 1000 + end).encode()
    stage = stage_for(OPENAI)
    leg = stage.ask()
    stage.worker_says(reply(EVENT_STREAM, CHUNKED))
    sent = b""
    while len(sent) + len(text) <= LIMIT:
        stage.worker_says(chunks([text], last=False))
        sent += text
    assert (stage.client.written, leg.committed) == (b"", False)
    stage.worker_says(chunks([text], last=False))
    assert leg.committed
    assert body_of(stage) == sent + text


def test_what_is_held_passes_in_order_behind_the_limit():
    stage = stage_for(OPENAI)
    stage.ask()
    text = (": " + "x" * 70_000 + "\n\n").encode() + OPENAI.text("a").encode() + b"data: [DONE]\n\n"
    stage.worker_says(reply(EVENT_STREAM, CHUNKED), chunks([text]))
    assert (body_of(stage), stage.answer().is_complete) == (text, True)


# --- errors before content ----------------------------------------------------------------------------


@DIALECTS
@pytest.mark.parametrize("before", ["", "preamble"])
def test_a_workers_error_before_content_moves(dialect, before):
    error = dialect.error(503, "no room")
    for cut in every_way(stream(LONG_PREAMBLES[dialect.name] if before else "", error)):
        stage = stage_for(dialect, elsewhere=True)
        leg = stage.ask(tokens=(3, 3))
        stage.worker_says(*cut)
        assert (stage.client.written, leg.outcome) == (b"", O.LEG_ERROR_EVENT)
        assert stage.owner.ended == [leg]
        stage.assert_nothing_left()


@DIALECTS
def test_a_workers_error_passes_when_there_is_nobody_else(dialect):
    text = (LONG_PREAMBLES[dialect.name] + dialect.error(503, "no room")).encode()
    for cut in every_way(stream(text)):
        stage = stage_for(dialect, elsewhere=False)
        leg = stage.ask()
        stage.worker_says(*cut)
        assert (body_of(stage), leg.outcome, leg.error_passed) == (text, O.LEG_COMPLETE, True)
        assert stage.answer().is_complete


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=lambda dialect: dialect.name)
def test_a_clients_error_passes(dialect):
    text = (LONG_PREAMBLES[dialect.name] + dialect.error(400, "bad prompt")).encode()
    stage = stage_for(dialect, elsewhere=True)
    leg = stage.ask()
    stage.worker_says(stream(text))
    assert (body_of(stage), leg.outcome, stage.owner.asked) == (text, O.LEG_COMPLETE, [])


@DIALECTS
def test_an_error_behind_content_passes_and_completes_the_stream(dialect):
    text = (dialect.text("a") + dialect.error(500, "oops")).encode()
    for cut in every_way(stream(text)):
        stage = stage_for(dialect, elsewhere=True)
        leg = stage.ask()
        stage.worker_says(*cut)
        assert (body_of(stage), leg.outcome, leg.error_passed) == (text, O.LEG_COMPLETE, True)
        assert stage.owner.asked == []


# --- cuts ---------------------------------------------------------------------------------------------


@DIALECTS
def test_a_stream_without_its_terminator_is_cut(dialect):
    """However cleanly the framing ends."""
    text = (LONG_PREAMBLES[dialect.name] + dialect.text("a")).encode()
    for cut in every_way(stream(text)):
        stage = stage_for(dialect)
        leg = stage.ask()
        stage.worker_says(*cut)
        assert (body_of(stage), leg.outcome) == (text, O.LEG_CUT)
        assert not stage.answer().is_complete
        assert leg.at_boundary
        stage.assert_nothing_left()


@DIALECTS
def test_where_a_stream_may_be_stopped(dialect):
    text = dialect.text("a").encode()
    second = dialect.text("b").encode()
    for size in range(len(second) + 1):
        stage = stage_for(dialect)
        leg = stage.ask()
        stage.worker_says(stream(text, second[:size], last=False))
        stage.worker_resets()
        assert leg.outcome == O.LEG_CUT
        assert body_of(stage) == text + second[:size]
        assert leg.at_boundary is (size in (0, len(second))), size


def test_a_plain_answer_has_no_boundary():
    stage = stage_for(OPENAI)
    leg = stage.ask()
    stage.worker_says(reply(b"Content-Type: application/json", CHUNKED) + chunks([b"{}"], last=False))
    stage.worker_resets()
    assert not leg.at_boundary


def test_a_route_without_a_terminator_ends_with_its_framing():
    stage = Stage()
    leg = stage.ask()
    stage.worker_says(stream(b"data: a\n\ndata: half"))
    assert (body_of(stage), leg.outcome) == (b"data: a\n\ndata: half", O.LEG_COMPLETE)


# --- usage that nobody asked for ----------------------------------------------------------------------

UNASKED = chat_usage(11, 2, 5).encode()
CONTENT = (OPENAI.preamble + OPENAI.text("a") + OPENAI.text("b") + CHAT_STOP).encode()
LAST = b"data: [DONE]\n\n"


def test_the_usage_event_is_removed_and_read():
    for cut in every_way(stream(CONTENT, UNASKED, LAST)):
        stage = stage_for(OPENAI)
        leg = stage.ask(strip_usage=True, tokens=(1, 1))
        stage.worker_says(*cut)
        assert body_of(stage) == CONTENT + LAST, cut
        assert stage.answer().is_complete
        assert leg.tokens == (11, 2, 5, None, None)
        assert leg.outcome == O.LEG_COMPLETE
        stage.assert_nothing_left()


@pytest.mark.parametrize("size", [1, 3, 7, 50, 100, 200, 300, 400, 500, 600, 700, 800, 1000])
def test_the_usage_event_is_removed_in_reads_of_any_size(size):
    answer = stream(CONTENT, UNASKED, LAST)
    stage = stage_for(OPENAI)
    leg = stage.ask(strip_usage=True)
    stage.worker_says(*[answer[start : start + size] for start in range(0, len(answer), size)])
    assert (body_of(stage), leg.tokens[:2]) == (CONTENT + LAST, (11, 2))


def test_the_usage_event_may_come_before_any_content():
    for cut in every_way(stream(UNASKED, CONTENT, LAST)):
        stage = stage_for(OPENAI)
        stage.ask(strip_usage=True)
        stage.worker_says(*cut)
        assert body_of(stage) == CONTENT + LAST


def test_usage_on_every_event_passes():
    """Only the event that has no choices is the one that include_usage adds."""
    events = (
        OPENAI.text("a").replace('"choices"', '"usage": {"prompt_tokens": 1}, "choices"').encode() * 3 + LAST
    )
    for cut in every_way(stream(events)):
        stage = stage_for(OPENAI)
        leg = stage.ask(strip_usage=True)
        stage.worker_says(*cut)
        assert (body_of(stage), leg.tokens[0]) == (events, 1)


def test_usage_that_was_asked_for_passes():
    stage = stage_for(OPENAI)
    leg = stage.ask(strip_usage=False)
    stage.worker_says(stream(CONTENT, UNASKED, LAST))
    assert (body_of(stage), leg.tokens[:2]) == (CONTENT + UNASKED + LAST, (11, 2))


def test_a_stripped_stream_has_no_declared_length():
    text = CONTENT + UNASKED + LAST
    stage = stage_for(OPENAI)
    stage.ask(strip_usage=True)
    stage.worker_says(reply(EVENT_STREAM, body=text))
    seen = stage.answer()
    assert (seen.is_complete, seen.values("content-length"), bytes(seen.body)) == (True, [], CONTENT + LAST)


def test_a_plain_answer_is_not_stripped():
    body = b'{"choices":[],"usage":{"prompt_tokens":3}}'
    stage = stage_for(OPENAI)
    leg = stage.ask(strip_usage=True)
    stage.worker_says(reply(b"Content-Type: application/json", body=body))
    assert (body_of(stage), leg.tokens[0]) == (body, 3)


def test_the_unfinished_event_waits_until_it_is_whole():
    stage = stage_for(OPENAI)
    stage.ask(strip_usage=True)
    stage.worker_says(stream(CONTENT, last=False))
    half = UNASKED[:20]
    stage.worker_says(chunks([half], last=False))
    assert body_of(stage) == CONTENT
    text = OPENAI.text("c").encode()
    stage.worker_says(chunks([UNASKED[20:], text[:30]], last=False))
    assert body_of(stage) == CONTENT
    stage.worker_says(chunks([text[30:]], last=False))
    assert body_of(stage) == CONTENT + text


def test_an_unfinished_event_is_never_half_told():
    """What is held when the worker goes has not been seen by the client, who stands at a boundary."""
    stage = stage_for(OPENAI)
    leg = stage.ask(strip_usage=True)
    stage.worker_says(stream(CONTENT, OPENAI.text("c").encode()[:30], last=False))
    stage.worker_resets()
    assert (body_of(stage), leg.outcome, leg.at_boundary) == (CONTENT, O.LEG_CUT, True)


def test_a_very_long_event_is_not_held_for_ever():
    long = OPENAI.text("x" * 200_000).encode()
    for size in (1000, 16_384, 65_536, 300_000):
        stage = stage_for(OPENAI)
        stage.ask(strip_usage=True)
        stage.worker_says(stream(CONTENT, last=False))
        for start in range(0, len(long), size):
            stage.worker_says(chunks([long[start : start + size]], last=False))
            assert len(CONTENT) + start + size - len(body_of(stage)) <= LIMIT + size
        stage.worker_says(chunks([UNASKED, LAST]))
        assert body_of(stage) == CONTENT + long + LAST, size


def test_in_the_middle_of_a_very_long_event_is_no_boundary():
    stage = stage_for(OPENAI, keepalive_s=1)
    leg = stage.ask(strip_usage=True, may_wait=True)
    stage.worker_says(stream(CONTENT, OPENAI.text("x" * 200_000).encode()[:150_000], last=False))
    seen = body_of(stage)
    assert len(seen) > len(CONTENT), "a part of the event is with the client"
    stage.pass_time(5)
    assert COMMENT not in body_of(stage)
    assert not leg.at_boundary


# --- how much is left to do ---------------------------------------------------------------------------


@DIALECTS
def test_each_event_takes_a_token_off_the_load(dialect):
    stage = stage_for(dialect)
    stage.ask(tokens=(10, 5))
    assert stage.load == (1, 10, 5)
    stage.worker_says(stream(dialect.text("a"), last=False))
    after_first = stage.load[2]
    assert stage.load[:2] == (1, 0)
    for number in range(1, 4):
        stage.worker_says(chunks([dialect.text("b").encode()], last=False))
        assert stage.load == (1, 0, after_first - number)
    for _ in range(20):
        stage.worker_says(chunks([dialect.text("b").encode()], last=False))
    assert stage.load == (1, 0, 0), "never below zero"
    stage.worker_says(chunks([dialect.terminator.encode()]))
    stage.assert_nothing_left()


def test_stripped_streams_count_too():
    stage = stage_for(OPENAI)
    stage.ask(strip_usage=True, tokens=(10, 50))
    stage.worker_says(stream(OPENAI.text("a"), last=False))
    before = stage.load[2]
    stage.worker_says(chunks([OPENAI.text("b").encode()] * 3, last=False))
    assert stage.load[2] == before - 3


def test_counts_events_and_leaves_comments_out():
    stage = stage_for(OPENAI)
    leg = stage.ask()
    stage.worker_says(
        stream(COMMENTS, OPENAI.text("a"), COMMENTS, OPENAI.text("b"), CHAT_STOP, "data: [DONE]\n\n")
    )
    assert leg.events == 4


# --- signs of life ------------------------------------------------------------------------------------


def waiting(**ask) -> tuple[Stage, object]:
    """Return (stage, leg) of a client that keep-alives are for."""
    stage = Stage(DONE, judge=OpenAI().judge, keepalive_s=15)
    return stage, stage.ask(may_wait=True, lines=b"X-Relayd-Worker: w1\r\n", **ask)


def test_a_waiting_client_is_told():
    stage, leg = waiting()
    stage.pass_time(14)
    assert stage.client.written == b""
    stage.pass_time(16)
    seen = stage.answer()
    assert (seen.status, bytes(seen.body), seen.is_complete) == (200, COMMENT, False)
    assert seen.header("content-type") == "text/event-stream"
    assert seen.header("x-relayd-worker") == "w1"
    assert seen.header("x-request-id") == "req-1"
    assert leg.late
    assert not leg.committed


def test_it_is_told_again_but_not_all_the_time():
    stage, _ = waiting()
    for seconds, times in [(16, 1), (17, 1), (30, 1), (32, 2), (48, 3)]:
        stage.pass_time(seconds)
        assert body_of(stage) == COMMENT * times, seconds


def test_the_stream_follows_without_a_second_head():
    text = "".join(OPENAI.events("a", "b")).encode()
    for cut in every_way(stream(text)):
        stage, leg = waiting()
        stage.pass_time(16)
        stage.worker_says(*cut)
        assert (body_of(stage), stage.answer().is_complete) == (COMMENT + text, True)
        assert (leg.outcome, leg.committed) == (O.LEG_COMPLETE, True)


def test_keep_alives_only_at_boundaries():
    text = OPENAI.text("a").encode()
    for size in range(len(text) + 1):
        stage, _ = waiting()
        stage.worker_says(stream(text, text[:size], last=False))
        stage.pass_time(16)
        expected = text + text[:size] + (COMMENT if size in (0, len(text)) else b"")
        assert body_of(stage) == expected, size


def test_what_is_held_is_not_disturbed():
    stage, _ = waiting()
    half = OPENAI.preamble.encode() + OPENAI.text("a").encode()[:20]
    stage.worker_says(stream(half, last=False))
    stage.pass_time(16)
    stage.worker_says(chunks([OPENAI.text("a").encode()[20:]], last=False))
    assert body_of(stage) == COMMENT + OPENAI.preamble.encode() + OPENAI.text("a").encode()


def test_bytes_that_flow_need_no_keep_alive():
    stage, _ = waiting()
    stage.worker_says(stream(OPENAI.text("a"), last=False))
    stage.pass_time(14)
    stage.worker_says(chunks([OPENAI.text("b").encode()], last=False))
    stage.pass_time(14)
    assert COMMENT not in body_of(stage)


@pytest.mark.parametrize("may_wait", [False, True])
def test_other_clients_are_not_told(may_wait):
    stage = Stage(DONE, judge=OpenAI().judge, keepalive_s=0 if may_wait else 15)
    stage.ask(may_wait=may_wait)
    stage.pass_time(100)
    assert stage.client.written == b""


def test_a_plain_answer_is_not_disturbed():
    stage, _ = waiting()
    stage.worker_says(reply(b"Content-Type: application/json", CHUNKED) + chunks([b"{"], last=False))
    stage.pass_time(16)
    assert body_of(stage) == b"{"


def test_an_answer_that_needs_another_head_is_kept_for_the_owner():
    stage, leg = waiting()
    stage.pass_time(16)
    stage.worker_says(reply(b"Content-Type: application/json", body=b'{"error":"no"}', status=b"400 Bad"))
    assert (leg.outcome, leg.status, leg.committed) == (O.LEG_COMPLETE, 400, False)
    assert leg.held_answer == b'{"error":"no"}'
    assert body_of(stage) == COMMENT
    assert leg.sink.state == SinkState.SINK_STARTED
    stage.assert_nothing_left()


def test_a_late_answer_of_any_size_is_bounded():
    stage, leg = waiting()
    stage.pass_time(16)
    stage.worker_says(reply(b"Content-Type: text/plain", body=b"x" * 500_000, status=b"500 Oops"))
    assert leg.outcome == O.LEG_COMPLETE
    assert len(leg.held_answer) <= 2 * LIMIT
    assert body_of(stage) == COMMENT


def test_the_next_leg_goes_on_with_the_answer_that_has_begun():
    stage, leg = waiting()
    stage.pass_time(16)
    stage.worker_resets()
    assert leg.outcome == O.LEG_RESET
    second = stage.ask(sink=leg.sink, may_wait=True)
    assert second.late
    text = "".join(OPENAI.events("a")).encode()
    stage.worker_says(stream(text))
    assert (body_of(stage), stage.answer().is_complete) == (COMMENT + text, True)


def test_a_client_that_takes_nothing_is_told_nothing():
    stage, leg = waiting()
    leg.sink.pause()
    stage.pass_time(16)
    assert stage.client.written == b""


def test_keep_alives_stop_when_the_client_has_left():
    from relayd._fast.leg import now_ns
    from relayd._fast.sink import Sink

    stage, leg = waiting()
    stage.worker_says(stream(OPENAI.text("a"), last=False))
    nowhere = Sink()
    leg.go_on_without_client(nowhere, now_ns() + 1000 * NS)
    before = nowhere.bytes_written
    stage.pass_time(100)
    assert nowhere.bytes_written == before


def test_event_kinds_have_their_numbers():
    """The judges above answer with plain numbers."""
    assert (EventKind.EVENT_PREAMBLE, EventKind.EVENT_CONTENT) == (0, 1)
    assert (EventKind.EVENT_CLIENT_ERROR, EventKind.EVENT_WORKER_ERROR) == (2, 3)
