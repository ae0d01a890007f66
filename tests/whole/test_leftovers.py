"""A thousand endings, drawn at random with a fixed seed: afterwards everything is back where it was.

Clients finish, leave by FIN or reset after some bytes or some time, or stop reading; workers answer,
refuse, cut, reset, stall, drip, send errors.  What is left behind is read from the mocks' sockets and from
/proc, not only from what relayd says of itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.support import procs, sse
from tests.support.dialects import ANTHROPIC, OPENAI, RESPONSES, Dialect
from tests.support.gateway import Gateway
from tests.support.mock import FAULTS, Mock
from tests.support.waiting import eventually, settled
from tests.support.wire import COMPLETE, Answer, Client, post_json

SEED = 20_261
ENDINGS = 1000
WARM_UP = 300  # allocators, caches and pools reach their size
AT_ONCE = 32

SETTINGS = {
    "resilience.timeouts.first_token": "400ms",
    "resilience.timeouts.idle": "400ms",
    "resilience.timeouts.write": "400ms",
    "resilience.breaker.rest": "50ms",
    "resilience.breaker.longest_rest": "50ms",
}

LEAVINGS = ["after bytes", "after a while", "reading nothing", "half-closing"]
TERMINATORS = {"openai": b"[DONE]", "anthropic": b"message_stop", "responses": b"response.completed"}


@dataclass(frozen=True)
class Ending:
    """One request and how it is to end."""

    dialect: Dialect
    streams: bool
    fault: str | None
    leaving: str | None  # None: the client stays to the end
    after_bytes: int
    after_s: float
    resets: bool


def _draw(rng: random.Random) -> Ending:
    return Ending(
        dialect=rng.choice([OPENAI, ANTHROPIC, RESPONSES]),
        streams=rng.random() < 0.8,
        fault=rng.choice(FAULTS) if rng.random() < 0.5 else None,
        leaving=rng.choice(LEAVINGS) if rng.random() < 0.5 else None,
        after_bytes=rng.randrange(3000),
        after_s=rng.random() * 0.08,
        resets=rng.random() < 0.5,
    )


def _play(gateway: Gateway, ending: Ending) -> None:
    with Client.to(gateway, receive_buffer=8192, wait_s=5.0) as client:
        headers = [("x-mock-fault", ending.fault)] if ending.fault else []
        body = ending.dialect.ask(ending.streams, model="mock")
        if ending.dialect is OPENAI:
            body["max_tokens"] = 30
        client.send(post_json(ending.dialect.path, body, *ending.dialect.headers, *headers))
        if ending.leaving is None:
            _is_honest(client.read(), ending)
            return
        _leave(client, ending)


def _leave(client: Client, ending: Ending) -> None:
    client.sock.settimeout(ending.after_s + 0.001)
    if ending.leaving == "after bytes":
        client.sock.settimeout(0.3)
        client.read(enough=ending.after_bytes)
    elif ending.leaving == "after a while":
        client.read()
    elif ending.leaving == "half-closing":
        client.half_close()
        client.wait_closed(1.0)
    if ending.resets:
        client.reset()


def _is_honest(answer: Answer, ending: Ending) -> None:
    """Check that a client that stayed got a whole answer, an error, or a visible cut; and never silence."""
    assert answer.ending != "silent", (ending, answer)
    if answer.ending != COMPLETE or answer.status != 200 or not ending.streams:
        return
    seen = sse.read(bytes(answer.body))
    assert not seen.unfinished, (ending, answer)
    is_whole = TERMINATORS[ending.dialect.name] in answer.body
    assert is_whole or b'"error"' in answer.body or b"response.failed" in answer.body, (ending, answer)


def _play_all(gateway: Gateway, rng: random.Random, count: int) -> None:
    endings = [_draw(rng) for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(lambda ending: _play(gateway, ending), endings):
            pass


@pytest.fixture(scope="module")
def mocks() -> Iterator[list[Mock]]:
    pace = ("--ttft", "5ms", "--itl", "2ms", "--seed", "1", "--output-tokens", "30")
    with Mock(*pace) as first, Mock(*pace) as second:
        yield [first, second]


@dataclass(frozen=True)
class Held:
    """What is open: everything but relayd's pooled connections, which may come and go."""

    requests_at_mocks: int
    in_flight: float
    descriptors: int


def _held(gateway: Gateway, mocks: list[Mock]) -> Held:
    counts = [mock.stats() for mock in mocks]
    # One connection of each mock is the question for its stats.
    pooled = sum(count["connections"]["open"] - 1 for count in counts)
    return Held(
        requests_at_mocks=sum(count["requests"]["open"] for count in counts),
        in_flight=gateway.in_flight(),
        descriptors=procs.descriptors(gateway.pid) - pooled,
    )


def test_a_thousand_endings_leave_nothing_behind(mocks: list[Mock]) -> None:
    rng = random.Random(SEED)
    with Gateway(*(mock.url for mock in mocks), settings=SETTINGS) as gateway:
        _play_all(gateway, rng, WARM_UP)
        eventually(lambda: _held(gateway, mocks).requests_at_mocks == 0)
        before = settled(lambda: _held(gateway, mocks))
        memory = procs.resident_kib(gateway.pid)
        _play_all(gateway, rng, ENDINGS)
        eventually(lambda: _held(gateway, mocks) == before, 10, f"everything as before: {before}")
        grown = procs.resident_kib(gateway.pid) - memory
        metrics = gateway.metrics()
        print(f"{grown} KiB more; legs: {_by_outcome(metrics.text)}")
        assert grown < 2048
        assert before.requests_at_mocks == before.in_flight == 0
        assert metrics.total("relayd_requests_total") <= WARM_UP + ENDINGS


def _by_outcome(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("relayd_legs_total")]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "openai", "anthropic"])
def test_every_engine_passes_whole(engine: str) -> None:
    """What the engines really send, preambles, pings, usage and all, is neither held back nor cut."""
    settings = {"engine": engine} if engine in ("vllm", "sglang") else {}
    pace = ("--engine", engine, "--ttft", "5ms", "--itl", "1ms", "--ping", "20ms", "--output-tokens", "20")
    with Mock(*pace) as mock, Gateway(mock.url, settings=settings) as gateway:
        for dialect in (OPENAI, ANTHROPIC, RESPONSES):
            _passes_whole(gateway, dialect)


def _passes_whole(gateway: Gateway, dialect: Dialect) -> None:
    before = gateway.metrics().total("relayd_tokens_total", type="output")
    for streams in (True, False):
        with Client.to(gateway) as client:
            body = dialect.ask(streams, model="mock")
            answer = client.ask(post_json(dialect.path, body, *dialect.headers))
        assert (answer.status, answer.ending) == (200, COMPLETE), answer
        if streams:
            assert TERMINATORS[dialect.name] in answer.body
            assert not sse.read(bytes(answer.body)).unfinished
    # Every plain answer tells its usage; a stream does where it was asked to, or always.
    eventually(lambda: gateway.metrics().total("relayd_tokens_total", type="output") - before >= 20)
