"""Until the first content nothing has been sent to the client, so a failure moves on unseen.

Each way to fail is tried in each dialect, with two workers in turn of which one is bad: whatever the
order, every client gets one whole good answer, and nothing of the bad worker's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import dialects
from tests.support.dialects import ANTHROPIC, DIALECTS, OPENAI, Dialect
from tests.support.upstream import (
    Script,
    Upstream,
    chunk,
    cut_stream,
    head,
    reply,
    send,
    silence,
    stream,
    stream_head,
)
from tests.support.wire import COMPLETE, Answer, ask
from tests.whole.conftest import Relay, question

BAD = "from-the-bad-worker"
ERROR = {"error": {"message": BAD, "type": "server_error", "param": None, "code": None}}

Fault = Callable[[Dialect], Script]

# How a worker can fail before anything of its answer has been passed on, whatever was asked.
BEFORE_THE_HEAD: dict[str, Fault] = {
    "resets": lambda dialect: [{"rst": True}],
    "closes": lambda dialect: [{"fin": True}],
    "closes inside the head": lambda dialect: [send("HTTP/1.1 200 OK\r\ncontent-ty"), {"fin": True}],
    "is not HTTP": lambda dialect: [send("+PONG\r\n\r\n"), {"fin": True}],
    "says 500": lambda dialect: reply(ERROR, 500),
    "says 502": lambda dialect: reply(b"<html>bad gateway</html>", 502, ("content-type", "text/html")),
    "says 503": lambda dialect: reply(ERROR, 503),
    "says 529": lambda dialect: reply(ERROR, 529),
    "says 429": lambda dialect: reply(ERROR, 429),
    "is silent": lambda dialect: [silence()],
}

# The same inside a stream that has begun with a 200.
INSIDE_THE_STREAM: dict[str, Fault] = {
    "closes after the head": lambda dialect: cut_stream(),
    "closes after the preamble": lambda dialect: cut_stream(dialect.preamble),
    "resets after the preamble": lambda dialect: cut_stream(dialect.preamble, how="rst"),
    "ends after the preamble": lambda dialect: stream(dialect.preamble),
    "ends without an event": lambda dialect: stream(),
    "sends an error first": lambda dialect: stream(dialect.error(500, BAD)),
    "sends an error after the preamble": lambda dialect: stream(dialect.preamble, dialect.error(500, BAD)),
    "is overloaded after the preamble": lambda dialect: stream(dialect.preamble, dialect.error(529, BAD)),
    "is silent after the head": lambda dialect: [stream_head(), silence()],
    "is silent after the preamble": lambda dialect: [stream_head(), chunk(dialect.preamble), silence()],
    "sends comments for ever": lambda dialect: [
        stream_head(),
        {**chunk(": waiting\n\n"), "repeat": 300, "gap": 0.05},
    ],
    "breaks its framing after the preamble": lambda dialect: [
        stream_head(),
        chunk(dialect.preamble),
        send("zz\r\n"),
        silence(),
    ],
    "closes inside the first content": lambda dialect: cut_stream(
        dialect.preamble, dialect.text(BAD)[: len(dialect.text(BAD)) // 2]
    ),
}


def _cases(faults: dict[str, Fault]) -> list[Any]:
    return [
        pytest.param(dialect, fault, id=f"{dialect.name}: {name}")
        for dialect in DIALECTS
        for name, fault in faults.items()
    ]


def _all_answers_are_good(
    pair: Relay, dialect: Dialect, bad: Script, good: Script, streams: bool
) -> list[Answer]:
    """Ask twice, so that the bad worker is tried first at least once; check that all are whole and good."""
    worker, spare = pair.upstreams
    worker.play(bad)
    spare.play(good)
    answers = [pair.ask(dialect, streams) for _ in range(2)]
    for answer in answers:
        assert (answer.status, answer.ending) == (200, COMPLETE), answer
        assert BAD not in repr(answer)
    assert len(spare.requests) == 2
    _is_tried_once_for_each_request(worker)
    return answers


def _is_tried_once_for_each_request(worker: Upstream) -> None:
    """A connection that dies when it is used again is replaced: that is no second try."""
    ordinals: dict[str | None, list[int]] = defaultdict(list)
    for seen in worker.requests:
        ordinals[seen.header("x-request-id")].append(seen.ordinal)
    assert ordinals, "the bad worker was never tried"
    for tries in ordinals.values():
        assert len(tries) == 1 or (len(tries) == 2 and tries[0] > 1 and tries[1] == 1), tries


@pytest.mark.parametrize(("dialect", "fault"), _cases(BEFORE_THE_HEAD))
def test_a_plain_answer_comes_from_the_other_worker(pair: Relay, dialect: Dialect, fault: Fault) -> None:
    whole = dialect.whole("good")
    for answer in _all_answers_are_good(pair, dialect, fault(dialect), reply(whole), streams=False):
        assert answer.json() == whole


@pytest.mark.parametrize(("dialect", "fault"), _cases(BEFORE_THE_HEAD | INSIDE_THE_STREAM))
def test_a_stream_comes_from_the_other_worker(pair: Relay, dialect: Dialect, fault: Fault) -> None:
    events = dialect.events("all", "is", "well")
    for answer in _all_answers_are_good(pair, dialect, fault(dialect), stream(*events), streams=True):
        assert answer.body == "".join(events).encode()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "stream"])
def test_a_refused_connection_is_somebody_elses_problem(pair: Relay, dialect: Dialect, streams: bool) -> None:
    worker, spare = pair.upstreams
    worker.kill()
    spare.play(stream(*dialect.events("good")) if streams else reply(dialect.whole("good")))
    for _ in range(2):
        answer = pair.ask(dialect, streams)
        assert (answer.status, answer.ending) == (200, COMPLETE), answer
    assert len(spare.requests) == 2


def test_the_whole_body_is_sent_again(pair: Relay) -> None:
    worker, spare = pair.upstreams
    worker.play([{"rst": True}])
    spare.play(reply(OPENAI.whole("good")))
    question_sent = question(OPENAI, messages=[{"role": "user", "content": "x" * 300_000}])
    for _ in range(2):
        assert ask(pair.gateway, question_sent).status == 200
    for seen in spare.requests:
        assert seen.body == question_sent.partition(b"\r\n\r\n")[2]


def test_paths_relayd_does_not_know_fail_over_as_well(pair: Relay) -> None:
    pair.upstreams[0].play(reply(ERROR, 503))
    pair.upstreams[1].play(reply({"good": True}))
    for _ in range(2):
        answer = ask(pair.gateway, b"GET /some/path HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer.json() == {"good": True}


# What does not move


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_the_clients_own_mistakes_pass(pair: Relay, status: int) -> None:
    for upstream in pair.upstreams:
        upstream.play(reply({"error": {"message": "yours"}}, status))
    answer = pair.ask(OPENAI)
    assert (answer.status, answer.json()) == (status, {"error": {"message": "yours"}})
    assert pair.requests == 1


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=lambda dialect: dialect.name)
def test_an_error_event_about_the_request_passes(pair: Relay, dialect: Dialect) -> None:
    said = dialect.preamble + dialect.error(400, "your prompt is too long")
    for upstream in pair.upstreams:
        upstream.play([stream_head(), chunk(said), {"end": True}])
    answer = pair.ask(dialect, stream=True)
    assert answer.status == 200
    assert answer.body == said.encode()
    assert pair.requests == 1


def test_the_last_answer_is_passed_on_if_all_fail(start: Callable[..., Relay]) -> None:
    pair = start(2)
    for number, upstream in enumerate(pair.upstreams):
        upstream.play(reply({"error": {"message": f"worker {number}"}}, 503, ("retry-after", "7")))
    answer = pair.ask(OPENAI)
    assert answer.status == 503
    assert answer.json()["error"]["message"].startswith("worker ")
    assert answer.header("retry-after") == "7"
    assert pair.requests == 2


def test_a_single_workers_answer_passes_as_it_is(start: Callable[..., Relay]) -> None:
    """However often: there is nobody else to ask, so it is asked even while it wants to be left alone."""
    relay = start()
    statuses = [429, 500, 503, 529] * 3
    for status in statuses:
        relay.upstream.play(reply(ERROR, status, ("retry-after", "9"), ("x-worker-says", "so")))
        answer = relay.ask(OPENAI)
        assert (answer.status, answer.json()) == (status, ERROR)
        assert (answer.header("retry-after"), answer.header("x-worker-says")) == ("9", "so")
    assert relay.requests == len(statuses)


def test_an_error_event_of_a_single_worker_passes_as_it_is(relay: Relay) -> None:
    said = OPENAI.error(500, "out of memory")
    relay.upstream.play([stream_head(), chunk(said), {"end": True}])
    answer = relay.ask(OPENAI, stream=True)
    assert said.encode() in answer.body
    assert answer.body.count(b'"error"') == 1


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_with_all_workers_down_the_client_is_told_in_its_dialect(pair: Relay, dialect: Dialect) -> None:
    for upstream in pair.upstreams:
        upstream.kill()
    answer = pair.ask(dialect)
    assert answer.status in (502, 503), answer
    _is_worded(answer, dialect)


def _is_worded(answer: Answer, dialect: Dialect) -> None:
    """Check that an error of relayd's has all that the dialect's SDK and a person want."""
    told = answer.json()
    assert answer.header("content-type") == "application/json"
    assert len(told["error"]["message"]) > 10
    if dialect is ANTHROPIC:
        assert told["type"] == "error"
        assert told["error"]["type"].endswith("_error")
        assert told["request_id"] == answer.header("request-id")
    else:
        assert set(told["error"]) >= {"message", "type", "param", "code"}
        assert told["error"]["code"]
    assert answer.header("x-request-id")


def test_a_silent_single_worker_is_a_504(start: Callable[..., Relay]) -> None:
    relay = start(1, {"resilience.timeouts.first_token": "300ms"})
    relay.upstream.play([silence()])
    for dialect in DIALECTS:
        answer = relay.ask(dialect, stream=True)
        assert answer.status == 504
        _is_worded(answer, dialect)


# The commit point itself


def test_64_KiB_of_preamble_commit(pair: Relay) -> None:
    """What is held is bounded: a stream that never says anything worth it goes out anyway."""
    comments = ": nothing yet\n\n" * 6000
    pair.upstreams[0].play([stream_head(), chunk(comments), {"rst": True}])
    pair.upstreams[1].play([stream_head(), chunk(comments), {"rst": True}])
    answer = pair.ask(OPENAI, stream=True)
    assert answer.status == 200
    assert answer.ending != COMPLETE
    assert pair.requests == 1


def test_a_head_with_a_good_status_commits_a_plain_answer(pair: Relay) -> None:
    for upstream in pair.upstreams:
        upstream.play([head(200, ("content-length", "100")), {"sleep": 0.1}, {"fin": True}])
    answer = pair.ask(OPENAI)
    assert answer.status == 200
    assert answer.ending != COMPLETE
    assert pair.requests == 1


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_preamble_arrives_with_the_first_content(relay: Relay, dialect: Dialect) -> None:
    relay.upstream.play(
        [stream_head(), chunk(dialect.preamble), {"sleep": 0.1}, chunk(dialect.text("a")), silence()]
    )
    with relay.connect() as client:
        client.send(question(dialect, stream=True))
        expected = (dialect.preamble + dialect.text("a")).encode()
        answer = client.read(enough=len(expected))
        assert answer.body == expected


def test_pings_before_content_commit_nothing(pair: Relay) -> None:
    bad = [stream_head(), chunk(ANTHROPIC.preamble + dialects.PING), {"sleep": 0.05}, {"rst": True}]
    events = ANTHROPIC.events("good")
    for answer in _all_answers_are_good(pair, ANTHROPIC, bad, stream(*events), streams=True):
        assert answer.body == "".join(events).encode()
