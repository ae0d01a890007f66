"""Events are counted, and the last one is recognised, the same however the network cuts the bytes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.sse import EventScanner, Terminator
from tests.support.wire import every_way

NONE, DONE, STOP, RESPONSE = (
    Terminator.TERMINATOR_NONE,
    Terminator.TERMINATOR_DONE,
    Terminator.TERMINATOR_MESSAGE_STOP,
    Terminator.TERMINATOR_RESPONSE,
)

COUNTS = [
    # what                          bytes                                   events  comments
    ("line feeds",                  b"data: a\n\n",                              1, 0),
    ("carriage returns",            b"data: a\r\rdata: b\r\r",                   2, 0),
    ("both",                        b"data: a\r\n\r\n",                          1, 0),
    ("every ending in one stream",  b"data: a\n\ndata: b\r\rdata: c\r\n\r\n",    3, 0),
    ("endings mixed in one event",  b"data: a\r\n\ndata: b\n\r\n",               2, 0),
    ("two lines, one event",        b"data: a\ndata: b\n\n",                     1, 0),
    ("empty lines mean nothing",    b"\n\r\n\rdata: a\n\n\n\r\n",                1, 0),
    ("a comment is an event too",   b": ping\n\ndata: [DONE]\n\n",               2, 1),
    ("a comment inside an event",   b": ping\ndata: a\n\n",                      1, 0),
    ("a name without data",         b"event: ping\n\n",                          1, 0),
    ("no space, no value",          b"data:\n\ndata\n\n",                        2, 1),
    ("not finished",                b"data: a\n",                                0, 0),
    ("nothing",                     b"",                                         0, 0),
    ("not UTF-8",                   b"data: \xff\x00\xfe\n\n",                   1, 0),
]  # fmt: skip


@pytest.mark.parametrize(("what", "data", "events", "comments"), COUNTS)
def test_counts_complete_events(what, data, events, comments):
    for chunks in every_way(data):
        scanner = EventScanner()
        for chunk in chunks:
            scanner.feed(chunk)
        assert (scanner.events, scanner.comments) == (events, comments), (what, chunks)


def test_a_very_long_line_is_one_line():
    data = b"data: " + b"x" * 300_000 + b"\n\ndata: [DONE]\n\n"
    for size in (1, 95, 96, 97, 4096, len(data)):
        scanner = EventScanner(DONE)
        for start in range(0, len(data), size):
            scanner.feed(data[start : start + size])
        assert (scanner.events, scanner.terminated, scanner.errored) == (2, True, False), size


# --- where it is safe to stop -------------------------------------------------------------------------


def test_returns_a_safe_place_to_stop():
    data = b"data: a\r\n\r\ndata: half an ev"
    assert data[: EventScanner().feed(data)] == b"data: a\r\n\r\n"


def test_a_line_cut_between_cr_and_lf_ends_no_event():
    scanner = EventScanner()
    assert scanner.feed(b"data: a\r") == 0
    assert scanner.feed(b"\ndata: b") == 0
    assert scanner.events == 0


def test_an_event_may_end_between_cr_and_lf():
    scanner = EventScanner()
    assert scanner.feed(b"data: a\r\n\r") == 10
    assert scanner.at_boundary
    assert scanner.feed(b"\n") == 0  # the second half of an end that was already told
    assert scanner.at_boundary
    assert scanner.events == 1


BOUNDARIES = [
    (b"", True),
    (b"\n\r\n", True),
    (b"d", False),
    (b": com", False),
    (b"data: a\n", False),
    (b"data: a\r", False),
    (b"data: a\n\n", True),
    (b"data: a\n\nd", False),
    (b": comment\n\n", True),
]


@pytest.mark.parametrize(("data", "boundary"), BOUNDARIES)
def test_only_between_events_is_a_boundary(data, boundary):
    for chunks in every_way(data):
        scanner = EventScanner()
        for chunk in chunks:
            scanner.feed(chunk)
        assert scanner.at_boundary is boundary, chunks


# --- how a stream says that it is complete ------------------------------------------------------------

TERMINATED = [
    # kind     bytes                                                              is it the end
    (DONE,     b"data: [DONE]\n\n",                                               True),
    (DONE,     b"data:[DONE]\n\n",                                                True),
    (DONE,     b"data: [DONE]\r\n\r\n",                                           True),
    (DONE,     b"event: done\ndata: [DONE]\n\n",                                  True),
    (DONE,     b"id: 7\ndata: [DONE]\n\n",                                        True),
    (DONE,     b"data: [DONE]\n",                                                 False),
    (DONE,     b"data: a\ndata: [DONE]\n\n",                                      False),
    (DONE,     b": [DONE]\n\n",                                                   False),
    (DONE,     b"event: [DONE]\n\n",                                              False),
    (DONE,     b"data: \"[DONE]\"\n\n",                                           False),
    (DONE,     b'data: {"content":"data: [DONE]\\n\\n"}\n\n',                     False),
    (DONE,     b"event: message_stop\ndata: {}\n\n",                              False),
    (STOP,     b'event: message_stop\ndata: {"type": "message_stop"}\n\n',        True),
    (STOP,     b"event:message_stop\ndata: {}\n\n",                               True),
    (STOP,     b'data: {"type": "message_stop"}\n\n',                             True),
    (STOP,     b'data: {"type":"message_stop"}\n\n',                              True),
    (STOP,     b'data: { "type" :\t"message_stop" }\n\n',                         True),
    (STOP,     b"event: message_start\ndata: {}\n\n",                             False),
    (STOP,     b"event: message_delta\ndata: {}\n\n",                             False),
    (STOP,     b"data: message_stop\n\n",                                         False),
    (STOP,     b"data: [DONE]\n\n",                                               False),
    (RESPONSE, b'event: response.completed\ndata: {}\n\n',                        True),
    (RESPONSE, b'event: response.incomplete\ndata: {}\n\n',                       True),
    (RESPONSE, b'event: response.failed\ndata: {}\n\n',                           True),
    (RESPONSE, b'data: {"type":"response.completed","response":{}}\n\n',          True),
    (RESPONSE, b'data: {"type": "response.incomplete", "response": {}}\n\n',      True),
    (RESPONSE, b'data: {"type": "response.failed", "response": {}}\n\n',          True),
    (RESPONSE, b'event: response.created\ndata: {}\n\n',                          False),
    (RESPONSE, b'event: response.output_text.done\ndata: {}\n\n',                 False),
    (RESPONSE, b"data: [DONE]\n\n",                                               False),
    (NONE,     b"data: [DONE]\n\nevent: message_stop\ndata: {}\n\n",              False),
    (NONE,     b"event: response.completed\ndata: {}\n\n",                        False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "terminated"), TERMINATED)
def test_knows_the_terminator_of_its_route(kind, data, terminated):
    for chunks in every_way(data):
        scanner = EventScanner(kind)
        for chunk in chunks:
            scanner.feed(chunk)
        assert scanner.terminated is terminated, chunks


def test_a_terminator_counts_once_its_event_is_complete():
    scanner = EventScanner(DONE)
    scanner.feed(b"data: [DONE]\n")
    assert not scanner.terminated
    scanner.feed(b"\n")
    assert scanner.terminated


def test_stays_terminated():
    scanner = EventScanner(DONE)
    scanner.feed(b"data: [DONE]\n\ndata: more\n\n")
    assert scanner.terminated


# --- errors -------------------------------------------------------------------------------------------

ERRORS = [
    (b'data: {"error": {"message": "no"}}\n\n', True),
    (b'data: {"error":{"message":"no"}}\n\n', True),
    (b'data:{"error":{"message":"no"}}\n\n', True),
    (b'data: {"error": "no"}\n\n', True),
    (b'data: { "error" : { "message" : "no" } }\n\n', True),
    (b'data: {"type": "error", "error": {}}\n\n', True),
    (b'data: {"type":"error"}\n\n', True),
    (b"event: error\ndata: anything\n\n", True),
    (b"event:error\ndata: anything\n\n", True),
    (b"event: error\n\n", True),
    (b'data: {"error": null, "choices": []}\n\n', False),
    (b'data: {"error":null,"choices":[]}\n\n', False),
    (b'data: {"error": "", "choices": []}\n\n', False),
    (b'data: {"error": {}, "choices": []}\n\n', False),
    (b'data: {"error_count": 3}\n\n', False),
    (b'data: {"choices": [{"delta": {"content": "{\\"error\\": {}"}}]}\n\n', False),
    (b'data: {"type": "errors"}\n\n', False),
    (b"event: errors\ndata: {}\n\n", False),
    (b": error\n\n", False),
    (b"data: error\n\n", False),
    (b'data: {"error": {"message": "no"}}\n', False),  # not complete
]


@pytest.mark.parametrize(("data", "errored"), ERRORS)
def test_knows_an_error_event_from_a_null_one(data, errored):
    for chunks in every_way(data):
        scanner = EventScanner(DONE)
        for chunk in chunks:
            scanner.feed(chunk)
        assert scanner.errored is errored, chunks


def test_an_error_belongs_to_its_event_alone():
    scanner = EventScanner(DONE)
    scanner.feed(b'data: {"error": {"message": "no"}}\ndata: x')
    assert not scanner.errored
    scanner.feed(b"\n\n")
    assert scanner.errored


# --- any bytes ----------------------------------------------------------------------------------------

LINES = [
    b"data: a",
    b"data:",
    b"data: [DONE]",
    b"data:[DONE]",
    b'data: {"error": {"message": "x"}}',
    b'data: {"error": null}',
    b'data: {"type": "message_stop"}',
    b'data: {"type":"response.completed"}',
    b"event: error",
    b"event: message_stop",
    b"event: response.failed",
    b"event: ping",
    b": comment",
    b"id: 1",
    b"x" * 200,
    b"data: " + b"y" * 200,
    b"",
    b"",
    b"",
]
STREAMS = st.lists(
    st.tuples(st.sampled_from(LINES), st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=25
).map(lambda lines: b"".join(line + end for line, end in lines))
ANYTHING = st.lists(st.sampled_from([b"data:", b" ", b"a", b"\n", b"\r", b":"]), max_size=40).map(b"".join)


class SlowScanner:
    """The same facts, found by reading the whole stream again."""

    def __init__(self, kind: int, data: bytes) -> None:
        self.kind = kind
        self.events = self.comments = 0
        self.terminated = self.errored = False
        self.ends: list[int] = []  # offsets past the events
        lines: list[bytes] = []
        at = 0
        for match in re.finditer(rb"\r\n|\n|\r", data):
            line, at = data[at : match.start()], match.end()
            if line:
                lines.append(line)
            elif lines:
                self._end(lines)
                self.ends.append(at)
                lines = []
        self.at_boundary = not lines and at == len(data)

    def _end(self, lines: list[bytes]) -> None:
        self.events += 1
        values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        names = [line[6:].removeprefix(b" ") for line in lines if line.startswith(b"event:")]
        if not values and not names:
            self.comments += 1
        self.errored |= b"error" in names
        types = set(names)
        if values:
            if self.kind == DONE and values[0].startswith(b"[DONE]"):
                self.terminated = True
            try:
                said = json.loads(values[0])
            except ValueError:
                said = {}
            self.errored |= bool(said.get("error")) or said.get("type") == "error"
            types.add(str(said.get("type")).encode())
        lasts = {
            STOP: {b"message_stop"},
            RESPONSE: {b"response.completed", b"response.incomplete", b"response.failed"},
        }
        self.terminated |= bool(types & lasts.get(self.kind, set()))


def cut(draw: st.DataObject, data: bytes) -> list[bytes]:
    """Draw a way to cut `data`."""
    places = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(st.sampled_from([NONE, DONE, STOP, RESPONSE]), STREAMS | ANYTHING, st.data())
def test_agrees_with_a_reader_of_the_whole(kind, data, draw):
    scanner, slow = EventScanner(kind), SlowScanner(kind, data)
    for chunk in cut(draw, data):
        scanner.feed(chunk)
    assert (scanner.events, scanner.comments) == (slow.events, slow.comments)
    assert (scanner.terminated, scanner.errored) == (slow.terminated, slow.errored)
    assert scanner.at_boundary == slow.at_boundary


@given(STREAMS | ANYTHING)
def test_tells_where_the_last_event_ended(data):
    slow = SlowScanner(NONE, data)
    assert EventScanner().feed(data) == (slow.ends[-1] if slow.ends else 0)


@given(st.sampled_from([NONE, DONE, STOP, RESPONSE]), STREAMS | ANYTHING)
def test_event_by_event_is_the_same_as_all_at_once(kind, data):
    whole, single = EventScanner(kind), EventScanner(kind)
    end = whole.feed(data)
    at, ends = 0, []
    while ended := single.feed_one(data[at:]):
        at += ended
        ends.append(at)
    assert at == end
    assert ends == SlowScanner(kind, data).ends
    for fact in ("events", "comments", "terminated", "errored", "at_boundary"):
        assert getattr(single, fact) == getattr(whole, fact), fact
