"""Chunks that a read brought whole go on as they came, and nobody can tell the difference."""

from __future__ import annotations

import gzip
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.leg import LegOutcome
from relayd._fast.sink import HttpSink
from relayd._fast.sse import Terminator
from relayd._fast.turn import Outlet
from relayd.dialects.openai import OpenAI
from tests.fast.stage import CHUNKED, EVENT_STREAM, Stage, chunks, reply
from tests.support.dialects import CHAT_STOP, OPENAI, chat_usage

pytestmark = pytest.mark.usefixtures("both_ways")

START = OPENAI.text("start").encode()
END = b"data: [DONE]\n\n"
USAGE = chat_usage(7, 2, 3).encode()
EVENT = OPENAI.text("more").encode()

BODIES = st.one_of(
    st.sampled_from(
        [
            EVENT,
            USAGE,
            EVENT + USAGE,
            USAGE[:40],
            USAGE[40:],
            EVENT[:30],
            EVENT[30:],
            CHAT_STOP.encode(),
            OPENAI.error(500, "no").encode(),
            END,
            b": ping\n\n",
            b"\n",
            b"3\r\nabc\r\n",  # what looks like a chunk inside one
            b"0\r\n\r\n",
            b"\r\n",
            b"x" * 300,
        ]
    ),
    st.binary(min_size=1, max_size=40),
)


@st.composite
def framed(draw) -> bytes:
    """Return a chunk, as most write it or in one of the ways that only a parser should read."""
    body = draw(BODIES)
    how = draw(st.sampled_from(["plain"] * 6 + ["upper", "zeros", "extension"]))
    size = {"plain": b"%x", "upper": b"%X", "zeros": b"00%x", "extension": b"%x;a=b"}[how] % len(body)
    return b"%b\r\n%b\r\n" % (size, body)


@st.composite
def reads(draw) -> list[bytes]:
    """Return what follows an answer's first event, in reads that often end with a line."""
    wire = b"".join(draw(st.lists(framed(), max_size=8)))
    wire += draw(
        st.sampled_from([chunks([END]), b"0\r\n\r\n", b"0\r\nX-T: 1\r\n\r\n", b"", b"zz\r\n", b"5\r\nab"])
    )
    ends = [place + 1 for place in range(len(wire)) if wire[place : place + 1] == b"\n"] or [0]
    cuts = draw(st.sets(st.one_of(st.sampled_from(ends), st.integers(0, len(wire))), max_size=12))
    places = [0, *sorted(cuts), len(wire)]
    return [wire[start:stop] for start, stop in pairwise(places) if stop > start]


def told(stage: Stage, *pieces: bytes, strip_usage: bool, coding: bytes, minor: int) -> tuple:
    """Return all that can be seen of an answer whose rest came in `pieces`."""
    leg = stage.ask(strip_usage=strip_usage, tokens=(5, 10), version_minor=minor)
    stage.worker_says(reply(EVENT_STREAM, CHUNKED, *coding.splitlines()), chunks([START], last=False))
    stage.worker_says(*pieces)
    events, load = leg.events, stage.load
    stage.worker_closes()
    seen = stage.answer()
    body = bytes(seen.body)
    assert leg.sink.bytes_written == len(body)
    if strip_usage:
        body = body.replace(b"\r\n", b"\r")  # half a line end may have gone with the event behind it
    if not seen.is_complete:
        body = body.rstrip(b"\r\n")  # a line end may have been cut in two, and its half was kept
    return (
        body, seen.is_complete, leg.outcome, leg.error_passed, leg.tokens, leg.usage_refused,
        events, load, stage.connections[-1].served,
    )  # fmt: skip


@given(reads(), st.booleans(), st.sampled_from([b"", b"Content-Encoding: gzip"]), st.sampled_from([1, 1, 0]))
def test_it_is_all_the_same_whether_the_parser_saw_them(pieces, strip_usage, coding, minor):
    options = {"strip_usage": strip_usage, "coding": coding, "minor": minor}
    judge = OpenAI().judge
    by_byte = [bytes([byte]) for piece in pieces for byte in piece]
    assert told(Stage(Terminator.TERMINATOR_DONE, judge=judge), *pieces, **options) == told(
        Stage(Terminator.TERMINATOR_DONE, judge=judge), *by_byte, **options
    )


def started(**options) -> Stage:
    stage = Stage(Terminator.TERMINATOR_DONE, judge=OpenAI().judge)
    stage.ask(**options)
    stage.worker_says(reply(EVENT_STREAM, CHUNKED), chunks([START], last=False))
    return stage


@pytest.mark.parametrize("strip_usage", [False, True])
def test_they_go_out_as_they_came(strip_usage):
    stage = started(strip_usage=strip_usage)
    for bodies in ([EVENT], [EVENT, CHAT_STOP.encode(), EVENT]):
        stage.worker_says(chunks(bodies, last=False))
        assert stage.client.writes[-1] == chunks(bodies, last=False)
    stage.worker_says(chunks([USAGE, END]))
    assert stage.answer().is_complete
    assert (USAGE in stage.client.written) is not strip_usage


def test_a_large_piece_goes_through_the_parser():
    stage = started()
    pieces = [b"x" * 20_000, b"\n\n" + END]
    stage.worker_says(chunks(pieces[:1], last=False), chunks(pieces[1:]))
    assert bytes(stage.answer().body) == START + b"".join(pieces)
    assert stage.answer().is_complete


def test_a_size_that_ends_a_read_is_not_the_end_of_a_chunk():
    stage = started()
    stage.worker_says(b"8\r\n", b"3\r\nabc\r\n", b"\r\n", chunks([b"\n\n" + END]))
    assert bytes(stage.answer().body) == START + b"3\r\nabc\r\n\n\n" + END


def test_the_parser_judges_what_is_not_as_we_would_write_it():
    stage = started()
    stage.worker_says(b"0a\r\n0123456789\r\n")
    assert stage.client.written.endswith(b"\r\na\r\n0123456789\r\n")
    stage.worker_says(b"A;name=value\r\n0123456789\r\n")
    assert stage.client.written.endswith(b"\r\na\r\n0123456789\r\n")
    stage.worker_says(b"-1\r\nab\r\n")
    assert stage.owner.ended[0].outcome == LegOutcome.LEG_CUT


def test_a_client_of_another_framing_gets_the_body_alone():
    stage = started(version_minor=0)
    stage.worker_says(chunks([EVENT], last=False))
    assert stage.client.written.endswith(b"\r\n\r\n" + START + EVENT)


def test_a_compressed_stream_is_read_along():
    stage = Stage(Terminator.TERMINATOR_DONE)
    leg = stage.ask()
    packed = gzip.compress(START + USAGE + END)
    stage.worker_says(reply(EVENT_STREAM, CHUNKED, b"Content-Encoding: gzip"))
    stage.worker_says(chunks([packed[:40]], last=False), chunks([packed[40:]]))
    assert (leg.outcome, leg.tokens[:3]) == (LegOutcome.LEG_COMPLETE, (7, 2, 3))


def test_a_full_client_stops_them():
    stage = Stage(Terminator.TERMINATOR_DONE, judge=OpenAI().judge)
    sink = HttpSink(Outlet(stage.client, stage.turn), 1, False, True)
    stage.ask(sink=sink)
    stage.worker_says(reply(EVENT_STREAM, CHUNKED), chunks([START], last=False))
    sink.pause()
    assert not stage.worker_says(chunks([EVENT], last=False)), "the worker is not read"
    sink.resume()
    assert stage.worker_says(chunks([EVENT], last=False))
    assert stage.client.written.endswith(chunks([EVENT], last=False))
