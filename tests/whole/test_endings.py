"""After the first content nothing is repeated, and no failure is made to look like success.

What a client can see of a cut: a chunked stream gets an error event in its own dialect if the cut fell
between two events, and in every case the last chunk stays away.  An HTTP/1.0 client has no chunks to miss,
so its connection is reset: a FIN would look like the end of a whole answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import sse
from tests.support.dialects import ANTHROPIC, DIALECTS, OPENAI, RESPONSES, Dialect
from tests.support.upstream import (
    Script,
    chunk,
    cut_stream,
    head,
    reply,
    send,
    silence,
    stream,
    stream_head,
)
from tests.support.waiting import eventually
from tests.support.wire import CLOSED, COMPLETE, RESET, Answer, ask
from tests.whole.conftest import Relay, lend, question, serving

Tail = list[dict[str, object]]

by_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)

# What can happen behind the last event that arrived whole.
CUTS: dict[str, Tail] = {
    "FIN": [{"sleep": 0.05}, {"fin": True}],
    "reset": [{"sleep": 0.05}, {"rst": True}],
    "a last chunk without the dialect's terminator": [{"end": True}],
    "a chunk size that is none": [{"sleep": 0.05}, send("zz\r\nhello\r\n"), silence()],
    "no line end behind a chunk": [{"sleep": 0.05}, send("5\r\nhelloXX5\r\n"), silence()],
}


def _begun(dialect: Dialect) -> list[str]:
    return [dialect.preamble, dialect.text("one "), dialect.text("two ")]


def _script(dialect: Dialect, tail: Tail) -> Script:
    return [stream_head(), *(chunk(event) for event in _begun(dialect)), *tail]


def _is_cut_visibly(answer: Answer, dialect: Dialect) -> None:
    """Check that the answer ends with an error event and without its last chunk."""
    begun = "".join(_begun(dialect)).encode()
    assert answer.status == 200
    assert answer.ending in (CLOSED, RESET), answer
    assert answer.body[: len(begun)] == begun
    seen = sse.read(bytes(answer.body))
    assert not seen.unfinished
    _is_error_event(seen.events[-1], dialect)
    assert b"[DONE]" not in answer.body
    assert b"message_stop" not in answer.body
    assert b"response.completed" not in answer.body


def _is_error_event(event: sse.Event, dialect: Dialect) -> None:
    told = event.json()
    if dialect is OPENAI:
        assert event.name == "message"
        assert set(told["error"]) >= {"message", "type", "param", "code"}
    elif dialect is ANTHROPIC:
        assert (event.name, told["type"]) == ("error", "error")
        assert set(told["error"]) >= {"type", "message"}
    else:
        assert (event.name, told.get("type")) == ("error", "error")
        assert told["message"]
        assert told["error"], "what makes the SDK raise, whatever the event is called"


@by_dialect
@pytest.mark.parametrize("tail", CUTS.values(), ids=CUTS.keys())
def test_a_cut_stream_says_so_and_has_no_end(pair: Relay, dialect: Dialect, tail: Tail) -> None:
    for upstream in pair.upstreams:
        upstream.play(_script(dialect, tail))
    answer = pair.ask(dialect, stream=True)
    if b"hello" in answer.body:  # bytes of a chunk that turned out to be broken may have gone on
        assert answer.ending in (CLOSED, RESET)
        assert sse.read(bytes(answer.body)).unfinished == b"hello"
    else:
        _is_cut_visibly(answer, dialect)
    assert pair.requests == 1, "what has begun is never sent to another worker"


@by_dialect
def test_a_stream_that_is_killed_with_its_worker_is_cut_visibly(pair: Relay, dialect: Dialect) -> None:
    for upstream in pair.upstreams:
        upstream.play(_script(dialect, [silence()]))
    with pair.connect() as client:
        client.send(question(dialect, stream=True))
        answer = client.read(enough=len("".join(_begun(dialect)).encode()))
        for upstream in pair.upstreams:
            upstream.kill()
        _is_cut_visibly(client.read_on(answer), dialect)
    assert pair.requests == 1


@by_dialect
def test_a_cut_inside_an_event_gets_no_error_event(relay: Relay, dialect: Dialect) -> None:
    """Glued to half an event it would only garble it: the missing last chunk has to do."""
    half = dialect.text("three")[:30]
    relay.upstream.play(_script(dialect, [chunk(half), {"sleep": 0.05}, {"fin": True}]))
    answer = relay.ask(dialect, stream=True)
    whole = "".join(_begun(dialect)).encode()
    assert answer.ending in (CLOSED, RESET)
    assert answer.body in (whole + half.encode(), whole)


@by_dialect
def test_a_cut_stream_of_unknown_length_is_no_success_either(relay: Relay, dialect: Dialect) -> None:
    """A worker that speaks HTTP/1.0 ends every answer with a FIN; only the terminator tells."""
    plain_head = send("HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    relay.upstream.play([plain_head, *(send(event) for event in _begun(dialect)), {"fin": True}])
    _is_cut_visibly(relay.ask(dialect, stream=True), dialect)


@by_dialect
def test_a_whole_stream_of_unknown_length_is_one(relay: Relay, dialect: Dialect) -> None:
    events = dialect.events("a", "b")
    plain_head = send("HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    relay.upstream.play([plain_head, *(send(event) for event in events), {"fin": True}])
    answer = relay.ask(dialect, stream=True)
    assert answer.ending == COMPLETE
    assert answer.body == "".join(events).encode()


def test_an_unfinished_response_is_finished_all_the_same(relay: Relay) -> None:
    """`response.incomplete` and `response.failed` are ends as good as any."""
    for name in ("response.incomplete", "response.failed"):
        events = [
            RESPONSES.preamble,
            RESPONSES.text("a"),
            RESPONSES.terminator.replace("response.completed", name),
        ]
        relay.upstream.play(stream(*events))
        assert relay.ask(RESPONSES, stream=True).ending == COMPLETE


def test_streams_of_unknown_paths_need_no_terminator(relay: Relay) -> None:
    relay.upstream.play(stream("data: a\n\n"))
    answer = ask(relay.gateway, b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (answer.ending, bytes(answer.body)) == (COMPLETE, b"data: a\n\n")


def test_their_framing_counts_all_the_same(relay: Relay) -> None:
    relay.upstream.play(cut_stream("data: a\n\n"))
    answer = ask(relay.gateway, b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.ending in (CLOSED, RESET)


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_short_plain_answer_stays_short(relay: Relay, how: str) -> None:
    body = b'{"choices": [], "and": "more"}'
    relay.upstream.play(
        [head(200, ("content-length", "100")), send(body), {"sleep": 0.05}, {how: True}],
    )
    answer = relay.ask(OPENAI)
    assert answer.ending in (CLOSED, RESET)
    assert body.startswith(bytes(answer.body))


def test_a_plain_answer_in_chunks_without_the_last_stays_open_ended(relay: Relay) -> None:
    headers = (("content-type", "application/json"), ("transfer-encoding", "chunked"))
    relay.upstream.play([head(200, *headers), chunk('{"a":'), {"sleep": 0.05}, {"fin": True}])
    answer = relay.ask(OPENAI)
    assert answer.ending in (CLOSED, RESET)
    assert bytes(answer.body) in (b"", b'{"a":')


def test_an_error_of_the_workers_after_content_passes_once(relay: Relay) -> None:
    error = OPENAI.error(500, "engine died")
    relay.upstream.play(stream(*_begun(OPENAI), error))
    answer = relay.ask(OPENAI, stream=True)
    assert answer.body.count(b'"error"') == 1
    assert b"engine died" in answer.body


# HTTP/1.0 clients


def test_an_HTTP_1_0_client_gets_a_stream_that_ends_with_the_connection(relay: Relay) -> None:
    events = OPENAI.events("a", "b")
    relay.upstream.play(stream(*events))
    answer = ask(relay.gateway, question(OPENAI, stream=True, version="1.0"))
    assert answer.ending == COMPLETE
    assert not answer.is_chunked
    assert answer.body == "".join(events).encode()


@pytest.mark.parametrize("tail", [CUTS["FIN"], CUTS["reset"]], ids=["FIN", "reset"])
def test_an_HTTP_1_0_client_is_reset_when_its_stream_is_cut(relay: Relay, tail: Tail) -> None:
    relay.upstream.play(_script(OPENAI, tail))
    answer = ask(relay.gateway, question(OPENAI, stream=True, version="1.0"))
    assert answer.ending == RESET


def test_an_HTTP_1_0_client_gets_plain_answers(relay: Relay) -> None:
    relay.upstream.play(reply(OPENAI.whole("a")))
    answer = ask(relay.gateway, question(OPENAI, version="1.0"))
    assert answer.ending == COMPLETE
    assert answer.json() == OPENAI.whole("a")


# Time


@pytest.fixture(scope="module")
def _impatient() -> Iterator[Relay]:
    with serving(1, {"resilience.timeouts.idle": "400ms"}) as relay:
        yield relay


@pytest.fixture
def impatient(_impatient: Relay) -> Iterator[Relay]:
    """A gateway that waits 400 ms for the next byte."""
    yield from lend(_impatient)


@by_dialect
def test_silence_in_mid_stream_is_a_cut_that_names_its_limit(impatient: Relay, dialect: Dialect) -> None:
    impatient.upstream.play(_script(dialect, [silence(5)]))
    asked_at = time.monotonic()
    answer = impatient.ask(dialect, stream=True)
    _is_cut_visibly(answer, dialect)
    assert "idle" in sse.read(bytes(answer.body)).events[-1].data
    connection = impatient.upstream.requests[0].connection
    closed_at = eventually(lambda: connection.closed_at, 2, "the worker sees the close")
    assert closed_at - asked_at < 4


def test_slow_words_are_not_silence(impatient: Relay) -> None:
    events = OPENAI.events(*"abcdefgh")
    impatient.upstream.play(stream(*events, gap=0.15))
    assert impatient.ask(OPENAI, stream=True).ending == COMPLETE


def test_silence_inside_a_plain_answer_is_a_cut(impatient: Relay) -> None:
    impatient.upstream.play([head(200, ("content-length", "100")), send("half"), silence(5)])
    assert impatient.ask(OPENAI).ending in (CLOSED, RESET)


def test_the_total_timeout_ends_a_stream_that_goes_on_for_ever(start: Callable[..., Relay]) -> None:
    relay = start(1, {"resilience.timeouts.total": "1s"})
    events = [OPENAI.preamble, *(OPENAI.text("word") for _ in range(200))]
    relay.upstream.play(stream(*events, gap=0.02))
    answer = relay.ask(OPENAI, stream=True)
    assert answer.ending in (CLOSED, RESET)
    assert "total" in sse.read(bytes(answer.body)).events[-1].data
    connection = relay.upstream.requests[0].connection
    eventually(lambda: connection.closed_at, 2, "the worker sees the close")
