"""Streams: every event at once, unchanged; signs of life and usage where they were asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import sse
from tests.support.dialects import ANTHROPIC, DIALECTS, OPENAI, RESPONSES, Dialect, chat_usage
from tests.support.upstream import Gate, chunk, reply, send, stream, stream_head
from tests.support.waiting import eventually
from tests.support.wire import COMPLETE, ask, chunked, every_way, request
from tests.whole.conftest import Relay, lend, question, serving

by_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


@by_dialect
def test_every_event_arrives_before_the_next_is_written(relay: Relay, dialect: Dialect) -> None:
    gates = [Gate() for _ in range(5)]
    script = [stream_head(), chunk(dialect.preamble)]
    for number, gate in enumerate(gates):
        script += [chunk(dialect.text(f"word-{number}")), {"gate": gate}]
    relay.upstream.play([*script, chunk(dialect.terminator), {"end": True}])
    with relay.connect() as client:
        client.send(question(dialect, stream=True))
        answer = client.read(enough=b"word-0")
        for number, gate in enumerate(gates):
            assert b"word-%d" % number in answer.body
            assert b"word-%d" % (number + 1) not in answer.body
            gate.open()
            client.read_on(answer, enough=b"word-%d" % (number + 1))
        assert answer.ending == COMPLETE


@by_dialect
def test_it_does_not_matter_how_a_stream_is_cut(relay: Relay, dialect: Dialect) -> None:
    body = dialect.preamble + dialect.text("a 🙂") + dialect.terminator
    whole = chunked(body.encode())
    with relay.connect() as client:
        for segments in list(every_way(whole))[:: len(whole) // 25]:
            relay.upstream.play([stream_head(), *({**send(segment), "gap": 0.0005} for segment in segments)])
            assert client.ask(question(dialect, stream=True)).body == body.encode()


@by_dialect
def test_one_chunk_may_hold_all_and_an_event_many_chunks(relay: Relay, dialect: Dialect) -> None:
    body = "".join(dialect.events("a", "b", "c")).encode()
    for size in (len(body), 1, 7):
        pieces = [chunk(body[i : i + size]) for i in range(0, len(body), size)]
        relay.upstream.play([stream_head(), *pieces, {"end": True}])
        answer = relay.ask(dialect, stream=True)
        assert (answer.ending, bytes(answer.body)) == (COMPLETE, body)


@pytest.mark.parametrize("line_end", ["\r\n", "\r", "\n"], ids=["CRLF", "CR", "LF"])
def test_all_line_ends_are_line_ends(relay: Relay, line_end: str) -> None:
    body = "".join(OPENAI.events("a", "b")).replace("\n", line_end)
    relay.upstream.play([stream_head(), *(chunk(byte) for byte in body), {"end": True}])
    answer = relay.ask(OPENAI, stream=True)
    assert (answer.ending, bytes(answer.body)) == (COMPLETE, body.encode())


def test_an_event_of_two_megabytes_passes(relay: Relay) -> None:
    events = OPENAI.events("z" * 2_000_000)
    relay.upstream.play(stream(*events))
    answer = relay.ask(OPENAI, stream=True)
    assert (answer.ending, len(answer.body)) == (COMPLETE, len("".join(events)))


def test_comments_and_unknown_events_pass(relay: Relay) -> None:
    body = ": ping\n\nevent: x\nid: 7\nretry: 10\ndata: {}\n\n" + "".join(OPENAI.events("a"))
    relay.upstream.play(stream(body))
    assert relay.ask(OPENAI, stream=True).body == body.encode()


def test_what_follows_the_terminator_passes(relay: Relay) -> None:
    body = "".join(OPENAI.events("a")) + ": goodbye\n\n"
    relay.upstream.play(stream(body))
    answer = relay.ask(OPENAI, stream=True)
    assert (answer.ending, bytes(answer.body)) == (COMPLETE, body.encode())


def test_a_plain_answer_to_a_stream_is_passed_on(relay: Relay) -> None:
    """Some workers do not stream, whatever they are asked."""
    relay.upstream.play(reply(OPENAI.whole("a")))
    answer = relay.ask(OPENAI, stream=True)
    assert answer.json() == OPENAI.whole("a")


# Signs of life


@pytest.fixture(scope="module")
def _lively() -> Iterator[Relay]:
    with serving(1, {"sse_keepalive": "200ms"}) as relay:
        yield relay


@pytest.fixture
def lively(_lively: Relay) -> Iterator[Relay]:
    """A gateway that gives a sign of life after 200 ms of silence."""
    yield from lend(_lively)


def _slow(dialect: Dialect) -> list[dict[str, object]]:
    return [
        stream_head(),
        chunk(dialect.preamble + dialect.text("a")),
        {"sleep": 0.7},
        chunk(dialect.text("b") + dialect.terminator),
        {"end": True},
    ]


def test_a_silent_stream_of_messages_is_pinged(lively: Relay) -> None:
    lively.upstream.play(_slow(ANTHROPIC))
    seen = sse.read(bytes(lively.ask(ANTHROPIC, stream=True).body))
    pings = seen.named("ping")
    assert 2 <= len(pings) <= 4
    assert all(ping.json() == {"type": "ping"} for ping in pings)
    assert _without_signs(seen) == sse.read("".join(ANTHROPIC.events("a", "b")).encode()).events


@pytest.mark.parametrize("dialect", [OPENAI, RESPONSES], ids=lambda dialect: dialect.name)
def test_a_silent_OpenAI_stream_gets_comments(lively: Relay, dialect: Dialect) -> None:
    lively.upstream.play(_slow(dialect))
    answer = lively.ask(dialect, stream=True)
    seen = sse.read(bytes(answer.body))
    assert 2 <= sum(bool(event.comments) for event in seen.events) <= 4
    assert _without_signs(seen) == sse.read("".join(dialect.events("a", "b")).encode()).events
    assert answer.ending == COMPLETE


def _without_signs(seen: sse.Stream) -> list[sse.Event]:
    return [event for event in seen.events if event.name != "ping" and not event.comments]


@by_dialect
def test_no_sign_falls_into_an_event(lively: Relay, dialect: Dialect) -> None:
    text = dialect.text("in two halves")
    lively.upstream.play(
        [
            stream_head(),
            chunk(dialect.preamble + dialect.text("a") + text[:25]),
            {"sleep": 0.5},
            chunk(text[25:] + dialect.terminator),
            {"end": True},
        ]
    )
    body = bytes(lively.ask(dialect, stream=True).body)
    assert text.encode() in body


@by_dialect
def test_a_client_that_waits_for_the_first_word_gets_signs(lively: Relay, dialect: Dialect) -> None:
    lively.upstream.play([{"sleep": 0.7}, *stream(*dialect.events("a"))])
    answer = lively.ask(dialect, stream=True)
    assert (answer.status, answer.ending) == (200, COMPLETE)
    assert b"ping" in answer.body or b"\n:" in answer.body or answer.body.startswith(b":")
    seen = sse.read(bytes(answer.body))
    assert _without_signs(seen) == sse.read("".join(dialect.events("a")).encode()).events


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=lambda dialect: dialect.name)
def test_after_a_sign_failure_is_told_inside_the_stream(lively: Relay, dialect: Dialect) -> None:
    """The 200 is out; an error can only be an event now, and the end no clean one."""
    lively.upstream.play([{"sleep": 0.5}, {"fin": True}])
    answer = lively.ask(dialect, stream=True)
    assert answer.status == 200
    assert b'"error"' in answer.body
    assert answer.ending != COMPLETE or b"[DONE]" not in answer.body


def test_a_plain_answer_gets_none(lively: Relay) -> None:
    lively.upstream.play([{"sleep": 0.5}, *reply(OPENAI.whole("a"))])
    assert lively.ask(OPENAI).json() == OPENAI.whole("a")


def test_there_are_none_unless_asked_for(relay: Relay) -> None:
    relay.upstream.play(_slow(ANTHROPIC))
    assert b"ping" not in relay.ask(ANTHROPIC, stream=True).body


# Usage


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def _counting(request: pytest.FixtureRequest) -> Iterator[Relay]:
    with serving(1, {"engine": request.param}) as relay:
        yield relay


@pytest.fixture
def counting(_counting: Relay) -> Iterator[Relay]:
    """A gateway that asks for usage on its own account."""
    yield from lend(_counting)


def _tokens(relay: Relay) -> tuple[float, float, float]:
    metrics = relay.gateway.metrics()
    kinds = ("input", "output", "cached_input")
    return tuple(metrics.total("relayd_tokens_total", type=kind) for kind in kinds)  # type: ignore[return-value]


def _grown(relay: Relay, before: tuple[float, ...], by: tuple[float, ...]) -> None:
    def grown() -> bool:
        return tuple(now - then for now, then in zip(_tokens(relay), before, strict=True)) == by

    eventually(grown, 3, f"tokens grew by {by}")


def _stream_with_usage(relay: Relay) -> list[str]:
    *events, terminator = OPENAI.events("a", "b")
    stop, done = terminator.split("\n\n", 1)
    all_events = [*events, stop + "\n\n", chat_usage(10, 3, cached=4), done]
    relay.upstream.play(stream(*all_events))
    return all_events


def test_usage_is_asked_for_and_taken_out_again(counting: Relay) -> None:
    events = _stream_with_usage(counting)
    before = _tokens(counting)
    answer = counting.ask(OPENAI, stream=True)
    asked = counting.upstream.requests[0].json()
    assert asked["stream_options"] == {"include_usage": True}
    assert {key: asked[key] for key in OPENAI.question} == OPENAI.question
    assert answer.ending == COMPLETE
    assert answer.body == "".join(event for event in events if '"usage"' not in event).encode()
    _grown(counting, before, (10, 3, 4))


def test_usage_that_was_asked_for_stays(counting: Relay) -> None:
    events = _stream_with_usage(counting)
    data = question(OPENAI, stream=True, stream_options={"include_usage": True})
    answer = ask(counting.gateway, data)
    assert answer.body == "".join(events).encode()
    assert counting.upstream.requests[0].body == data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": False}])
def test_other_options_are_kept(counting: Relay, options: dict[str, bool] | None) -> None:
    events = _stream_with_usage(counting)
    answer = counting.ask(OPENAI, stream=True, stream_options=options)
    sent = counting.upstream.requests[0].json()["stream_options"]
    assert sent["include_usage"] is True
    assert {**(options or {}), "include_usage": True} == sent
    assert answer.body == "".join(event for event in events if '"usage"' not in event).encode()


def test_usage_inside_the_last_choice_stays(counting: Relay) -> None:
    """Only the event that has nothing but usage was nobody's wish."""
    last = OPENAI.text("b").replace(
        '"choices"', '"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "choices"'
    )
    events = [OPENAI.preamble, OPENAI.text("a"), last, OPENAI.terminator]
    counting.upstream.play(stream(*events))
    assert counting.ask(OPENAI, stream=True).body == "".join(events).encode()


def test_a_taken_out_event_may_be_cut_anywhere(counting: Relay) -> None:
    events = _stream_with_usage(counting)
    body = "".join(events).encode()
    expected = "".join(event for event in events if '"usage"' not in event).encode()
    for size in (1, 11, 64, len(body)):
        pieces = [chunk(body[i : i + size]) for i in range(0, len(body), size)]
        counting.upstream.play([stream_head(), *pieces, {"end": True}])
        answer = counting.ask(OPENAI, stream=True)
        assert (answer.ending, bytes(answer.body)) == (COMPLETE, expected)


def test_it_may_come_in_one_read_with_the_first_word(counting: Relay) -> None:
    events = _stream_with_usage(counting)
    head_line = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    counting.upstream.play([send(head_line + chunked(*(event.encode() for event in events)))])
    answer = counting.ask(OPENAI, stream=True)
    assert b'"usage"' not in answer.body
    assert answer.ending == COMPLETE


def test_a_changed_body_has_its_right_length(counting: Relay) -> None:
    counting.upstream.play(stream(*OPENAI.events("a")))
    data = request("POST", OPENAI.path, ("Transfer-Encoding", "chunked"))
    body = b'{"stream":true,"model":"m","messages":[]}'
    ask(counting.gateway, data + chunked(body[:9], body[9:]))
    seen = counting.upstream.requests[0]
    length = seen.header("content-length")
    assert length is None or int(length) == len(seen.body)
    assert seen.json()["stream_options"] == {"include_usage": True}


def test_nothing_is_asked_for_by_default(relay: Relay) -> None:
    relay.upstream.play(stream(*OPENAI.events("a")))
    relay.ask(OPENAI, stream=True)
    assert "stream_options" not in relay.upstream.requests[0].json()


@by_dialect
def test_a_plain_answers_usage_is_counted(relay: Relay, dialect: Dialect) -> None:
    relay.upstream.play(reply(dialect.whole("a")))
    before = _tokens(relay)
    relay.ask(dialect)
    expected = {"openai": (10, 2, 0), "anthropic": (10, 1, 0), "responses": (7, 9, 0)}[dialect.name]
    _grown(relay, before, expected)


@pytest.mark.parametrize("dialect", [ANTHROPIC, RESPONSES], ids=lambda dialect: dialect.name)
def test_a_streams_own_usage_is_counted(relay: Relay, dialect: Dialect) -> None:
    relay.upstream.play(stream(*dialect.events("a", "b")))
    before = _tokens(relay)
    relay.ask(dialect, stream=True)
    _grown(relay, before, {"anthropic": (10, 2, 0), "responses": (7, 9, 0)}[dialect.name])


def test_the_time_to_the_first_token_is_observed_once(relay: Relay) -> None:
    def observed() -> float:
        return relay.gateway.metrics().total("relayd_ttft_seconds_count")

    before = observed()
    relay.upstream.play(stream(*OPENAI.events("a", "b", "c")))
    relay.ask(OPENAI, stream=True)
    eventually(lambda: observed() - before == 1)


def test_requests_are_counted_by_what_became_of_them(relay: Relay) -> None:
    def counted(code: str) -> float:
        return relay.gateway.metrics().total("relayd_requests_total", code=code)

    before = counted("200"), counted("404")
    relay.ask(OPENAI)
    relay.upstream.play(reply({}, 404))
    relay.ask(OPENAI)
    eventually(lambda: (counted("200") - before[0], counted("404") - before[1]) == (1, 1))
