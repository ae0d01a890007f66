"""An address that asks too often is told when to come back, and costs nobody else anything."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import anthropic
import openai
import pytest

from tests.support import procs
from tests.support.dialects import ANTHROPIC, OPENAI, Dialect
from tests.support.upstream import reply
from tests.support.wire import ask, request
from tests.whole.conftest import Relay, question

Start = Callable[..., Relay]

THREE = {"limits.per_address.rate": "1/h", "limits.per_address.burst": "3"}
BEHIND_A_PROXY = {**THREE, "trusted_proxies": "127.0.0.0/8"}


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=lambda dialect: dialect.name)
def test_too_many_are_refused_in_the_callers_words(start: Start, dialect: Dialect) -> None:
    relay = start(1, THREE)
    relay.upstream.play(reply({}))
    assert [relay.ask(dialect).status for _ in range(3)] == [200] * 3
    answer = relay.ask(dialect)
    assert answer.status == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert answer.json()["error"]["code"] == "address_rate"
    assert 3590 <= int(answer.header("retry-after")) <= 3600
    assert 3590_000 <= int(answer.header("retry-after-ms")) <= 3600_000
    assert answer.header("x-should-retry") is None
    assert len(relay.upstream.requests) == 3
    counted = relay.gateway.metrics().total("relayd_requests_total", code="429", outcome="refused")
    assert counted == 1


def test_a_hundred_at_once_and_a_hundred_a_second(start: Start) -> None:
    """The burst passes, and then one in 10 ms: as many as the clock, read before and after, allows."""
    relay = start(1, {"limits.per_address.rate": "100/s", "limits.per_address.burst": "100"})
    relay.upstream.play(reply({}))
    with ExitStack() as stack:
        clients = [stack.enter_context(relay.connect()) for _ in range(10)]
        began = time.monotonic()
        for client in clients:
            client.send(request("GET", "/x") * 30)
        statuses = [client.read().status for client in clients for _ in range(30)]
        took_s = time.monotonic() - began
    passed = statuses.count(200)
    assert passed + statuses.count(429) == 300
    assert 100 <= passed <= 101 + took_s * 100
    assert len(relay.upstream.requests) == passed


def test_a_refusal_keeps_the_connection(start: Start) -> None:
    relay = start(1, THREE)
    relay.upstream.play(reply({}))
    with relay.connect() as client:
        statuses = [client.ask(question(OPENAI)).status for _ in range(6)]
    assert statuses == [200] * 3 + [429] * 3


def test_bad_heads_count_as_well(start: Start) -> None:
    relay = start(1, THREE)
    for _ in range(3):
        assert ask(relay.gateway, request("GET", "/../etc")).status == 400
    assert relay.ask(OPENAI).status == 429


def test_behind_a_proxy_each_client_has_its_own(start: Start) -> None:
    relay = start(1, BEHIND_A_PROXY)
    relay.upstream.play(reply({}))

    def status(forwarded: str) -> int:
        return ask(relay.gateway, request("GET", "/x", ("X-Forwarded-For", forwarded))).status

    assert [status("203.0.113.7") for _ in range(4)] == [200, 200, 200, 429]
    assert status("203.0.113.8") == 200
    # A client that writes another address in front of its own is still itself.
    assert status("198.51.100.1, 203.0.113.7") == 429


def test_an_untrusted_client_cannot_choose_its_address(start: Start) -> None:
    relay = start(1, THREE)
    relay.upstream.play(reply({}))
    statuses = [
        ask(relay.gateway, request("GET", "/x", ("X-Forwarded-For", f"203.0.113.{n}"))).status
        for n in range(5)
    ]
    assert statuses == [200] * 3 + [429] * 2


def test_sdks_raise_their_rate_limit_error(start: Start) -> None:
    relay = start(1, {**THREE, "limits.per_address.burst": "1"})
    relay.upstream.play(reply({}))
    relay.ask(OPENAI)
    with pytest.raises(openai.RateLimitError) as refused:
        openai.OpenAI(base_url=f"{relay.gateway.url}/v1", api_key="k", max_retries=0).models.retrieve("m")
    assert refused.value.code == "address_rate"
    with pytest.raises(anthropic.RateLimitError):
        anthropic.Anthropic(base_url=relay.gateway.url, api_key="k", max_retries=0).messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}]
        )


def test_sdks_wait_as_they_are_told_and_succeed(start: Start) -> None:
    relay = start(1, {"limits.per_address.rate": "5/s", "limits.per_address.burst": "1"})
    relay.upstream.play(reply({"object": "list", "data": []}))
    client = openai.OpenAI(base_url=f"{relay.gateway.url}/v1", api_key="k", max_retries=2)
    for _ in range(3):
        client.get("/files", cast_to=object)
    assert len(relay.upstream.requests) == 3


def test_refusals_that_nobody_reads_are_not_piled_up(start: Start) -> None:
    """A client that only writes is stopped by its own answers, and costs what two buffers cost."""
    relay = start(1, {**THREE, "limits.per_address.burst": "1"})
    requests = request("GET", "/x") * 500
    with socket.create_connection((relay.gateway.host, relay.gateway.port), timeout=1.0) as client:
        client.sendall(requests)
        before = procs.resident_kib(relay.gateway.pid)
        with pytest.raises(TimeoutError):
            client.sendall(requests * 5000)
        assert procs.resident_kib(relay.gateway.pid) - before < 8 << 10
    relay.gateway.wait_idle()
