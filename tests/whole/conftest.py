"""Gateways for black-box tests: two that all tests share, and new ones for those who need them.

Starting relayd costs as much as a hundred requests, so tests that leave nothing behind share a gateway.
Each of them gets it as if it were new: the upstreams' memory is empty, their scripts are the defaults,
the workers are in favour, and at the end nothing may be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.dialects import Dialect
from tests.support.gateway import Gateway
from tests.support.upstream import Upstream, reply
from tests.support.waiting import eventually
from tests.support.wire import Answer, Client, ask, post_json, request

PAIR_SETTINGS = {
    "policy": "round_robin",
    "resilience.timeouts.first_token": "500ms",
    "resilience.breaker.rest": "100ms",  # a test's failures must not be the next one's
}


@dataclass
class Relay:
    """A gateway and its upstreams."""

    gateway: Gateway
    upstreams: list[Upstream]

    @property
    def upstream(self) -> Upstream:
        return self.upstreams[0]

    @property
    def requests(self) -> int:
        """How many requests all upstreams have seen."""
        return sum(len(upstream.requests) for upstream in self.upstreams)

    def connect(self, **options: Any) -> Client:
        """Connect to the gateway."""
        return Client.to(self.gateway, **options)

    def ask(self, dialect: Dialect, stream: bool = False, **more: Any) -> Answer:
        """Ask in a dialect, on a connection of its own; return the answer."""
        return ask(self.gateway, question(dialect, stream, **more))

    def renew(self) -> None:
        """Bring the upstreams and the gateway's opinion of them back to where they began."""
        for upstream in self.upstreams:
            upstream.play(reply({"healthy": True}))
        eventually(self._serve_alike, what="all workers serve again")
        for upstream in self.upstreams:
            upstream.forget()

    def _serve_alike(self) -> bool:
        """Ask as many times as there are upstreams; return whether each served once."""
        before = [len(upstream.requests) for upstream in self.upstreams]
        for _ in self.upstreams:
            assert ask(self.gateway, request("GET", "/renew")).status == 200
        return all(
            len(upstream.requests) == count + 1
            for upstream, count in zip(self.upstreams, before, strict=True)
        )


def question(dialect: Dialect, stream: bool = False, version: str = "1.1", **more: Any) -> bytes:
    """Return the bytes of a request in a dialect."""
    return post_json(dialect.path, dialect.ask(stream, **more), *dialect.headers, version=version)


@contextmanager
def serving(workers: int = 1, settings: dict[str, str] | None = None, **options: Any) -> Iterator[Relay]:
    """Run a gateway with so many scripted workers while the context lasts."""
    with ExitStack() as stack:
        upstreams = [stack.enter_context(Upstream()) for _ in range(workers)]
        gateway = stack.enter_context(Gateway(*upstreams, settings=settings, **options))
        yield Relay(gateway, upstreams)


@pytest.fixture(scope="session")
def _one() -> Iterator[Relay]:
    with serving() as relay:
        yield relay


@pytest.fixture(scope="session")
def _two() -> Iterator[Relay]:
    with serving(2, PAIR_SETTINGS) as relay:
        yield relay


@pytest.fixture
def relay(_one: Relay) -> Iterator[Relay]:
    """A gateway with one worker and default settings."""
    yield from lend(_one)


@pytest.fixture
def pair(_two: Relay) -> Iterator[Relay]:
    """A gateway with two workers that takes them in turn; a first token may take 500 ms."""
    yield from lend(_two)


def lend(relay: Relay) -> Iterator[Relay]:
    """Hand out a gateway that several tests share, as if it were new; the body of a fixture."""
    for upstream in relay.upstreams:
        upstream.listen()
    relay.renew()
    yield relay
    relay.gateway.wait_idle()


@pytest.fixture
def start() -> Iterator[Callable[..., Relay]]:
    """A function that starts a gateway for this test alone: `start(2, {"idle": "1s"})`."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(serving(*arguments, **options))
