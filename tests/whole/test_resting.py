"""A worker that keeps failing is left alone for a while; retries are few; the last is never given up."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.dialects import OPENAI
from tests.support.gateway import Gateway
from tests.support.upstream import Request, Script, Upstream, reply
from tests.support.waiting import eventually
from tests.support.wire import ask
from tests.whole.conftest import Relay, question

Start = Callable[..., Relay]

ROUND_ROBIN = {"policy": "round_robin"}
POLICIES = ["round_robin", "least_conn", "least_tokens"]
LONG_REST = {"resilience.breaker.rest": "1m"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_that_refuses_is_tried_a_few_times_only(start: Start, policy: str) -> None:
    relay = start(2, {"policy": policy, **LONG_REST})
    down, fine = relay.upstreams
    down.kill()
    fine.play(reply({"ok": True}))
    assert {relay.ask(OPENAI).status for _ in range(100)} == {200}
    assert len(fine.requests) == 100
    tried = relay.gateway.metrics().total("relayd_legs_total", worker=down.name)
    assert tried <= 10


@pytest.mark.parametrize("policy", POLICIES)
def test_five_failures_in_a_row_are_enough(start: Start, policy: str) -> None:
    relay = start(2, {"policy": policy, **LONG_REST})
    bad, good = relay.upstreams
    bad.play(reply({}, 500))
    good.play(reply({"ok": True}))
    assert {relay.ask(OPENAI).status for _ in range(40)} == {200}
    assert len(bad.requests) == 5


def test_failures_that_are_not_in_a_row_are_forgiven(start: Start) -> None:
    relay = start(2, {**ROUND_ROBIN, **LONG_REST})
    uneven, good = relay.upstreams
    uneven.play_by(lambda seen: reply({}, 500 if len(uneven.requests) % 5 else 200))
    good.play(reply({}))
    assert {relay.ask(OPENAI).status for _ in range(60)} == {200}
    assert len(uneven.requests) >= 25


def test_a_rest_comes_to_an_end(start: Start) -> None:
    relay = start(2, {**ROUND_ROBIN, "resilience.breaker.rest": "300ms"})
    ill, good = relay.upstreams
    ill.play(reply({}, 500))
    good.play(reply({}))
    for _ in range(20):
        relay.ask(OPENAI)
    ill.play(reply({"well": True}))
    ill.forget()

    def is_back() -> bool:
        relay.ask(OPENAI)
        return len(ill.requests) >= 3

    eventually(is_back, 10, "the worker is asked again")


def test_after_a_rest_one_request_tries_it(start: Start) -> None:
    relay = start(2, {**ROUND_ROBIN, "resilience.breaker.rest": "300ms"})
    ill, good = relay.upstreams
    ill.play(reply({}, 500))
    good.play(reply({}))
    for _ in range(20):
        relay.ask(OPENAI)
    ill.forget()
    time.sleep(0.4)
    for _ in range(20):
        assert relay.ask(OPENAI).status == 200
    assert len(ill.requests) == 1


def test_the_last_worker_never_rests(start: Start) -> None:
    relay = start(1, LONG_REST)
    relay.upstream.play(reply({"error": {"message": "ill"}}, 500))
    assert {relay.ask(OPENAI).status for _ in range(20)} == {500}
    assert len(relay.upstream.requests) == 20
    relay.upstream.play(reply({"ok": True}))
    assert relay.ask(OPENAI).status == 200


def test_with_all_workers_ill_somebody_is_still_asked(start: Start) -> None:
    relay = start(2, {**ROUND_ROBIN, **LONG_REST})
    for upstream in relay.upstreams:
        upstream.play(reply({"error": {"message": "ill"}}, 500))
    for _ in range(30):
        assert relay.ask(OPENAI).status >= 500
    for upstream in relay.upstreams:
        upstream.play(reply({"ok": True}))
    assert {relay.ask(OPENAI).status for _ in range(5)} == {200}


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_one_bad_client_does_not_take_the_fleet_down(start: Start, status: int) -> None:
    relay = start(2, {**ROUND_ROBIN, **LONG_REST})
    for upstream in relay.upstreams:
        upstream.play(reply({"error": {"message": "too long"}}, status))
    assert {relay.ask(OPENAI).status for _ in range(20)} == {status}
    assert relay.requests == 20
    for upstream in relay.upstreams:
        upstream.play(reply({"ok": True}))
    assert {relay.ask(OPENAI).status for _ in range(4)} == {200}
    assert all(len(upstream.requests) == 12 for upstream in relay.upstreams)


def test_clients_that_leave_say_nothing_about_a_worker(start: Start) -> None:
    relay = start(2, {**ROUND_ROBIN, **LONG_REST})
    for upstream in relay.upstreams:
        upstream.play([{"await_close": 5}])
    for number in range(16):
        client = relay.connect()
        client.send(b"GET /any HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually(lambda number=number: relay.requests == number + 1)
        client.close()
    relay.gateway.wait_idle()
    relay.renew()
    assert {relay.ask(OPENAI).status for _ in range(4)} == {200}
    assert all(upstream.requests for upstream in relay.upstreams)


def test_a_worker_that_asks_for_time_is_given_it(start: Start) -> None:
    """Retry-After of a 503 is a wish, not a fault: others serve meanwhile, and it is not held against it."""
    relay = start(2, {**ROUND_ROBIN, **LONG_REST})
    busy, free = relay.upstreams
    busy.play(reply({}, 503, ("retry-after", "1")))
    free.play(reply({}))
    assert {relay.ask(OPENAI).status for _ in range(20)} == {200}
    assert len(busy.requests) == 1
    busy.play(reply({}))

    def is_back() -> bool:
        relay.ask(OPENAI)
        return len(busy.requests) > 2

    eventually(is_back, 5, "the worker is asked again")


def test_retries_have_a_budget(start: Start) -> None:
    """Two in five requests would want a second worker; a fifth of the successes and a burst of 100 may."""
    relay = start(2, {**ROUND_ROBIN, "resilience.retry.budget": "20%"})
    failing, good = relay.upstreams

    def mostly_fails(seen: Request) -> Script:
        return reply({}, 503 if len(failing.requests) % 5 else 200)

    failing.play_by(mostly_fails)
    good.play(reply({}))
    began = time.monotonic()
    with relay.connect() as client:
        asked = question(OPENAI)
        statuses = [client.ask(asked).status for _ in range(1000)]
    elapsed = time.monotonic() - began
    successes = statuses.count(200)
    retries = relay.requests - len(statuses)
    print(f"{retries} retries, {successes} successes, {elapsed:.1f} s")
    assert set(statuses) == {200, 503}
    assert retries <= 100 + 0.2 * successes + 3 * elapsed + 5
    assert retries >= 100


def test_a_request_is_tried_on_so_many_workers_and_no_more(start: Start) -> None:
    relay = start(5, {**ROUND_ROBIN, "resilience.retry.attempts": "2"})
    for upstream in relay.upstreams:
        upstream.play(reply({}, 500))
    assert relay.ask(OPENAI).status == 500
    assert relay.requests == 3
    assert {len(upstream.requests) for upstream in relay.upstreams} == {0, 1}


def test_retries_are_counted(start: Start) -> None:
    relay = start(2, ROUND_ROBIN)
    relay.upstreams[0].play(reply({}, 500))
    relay.upstreams[1].play(reply({}))
    for _ in range(2):
        relay.ask(OPENAI)
    relay.gateway.wait_idle()
    tried = len(relay.upstreams[0].requests)
    assert tried
    assert relay.gateway.metrics().total("relayd_retries_total") == tried
    assert relay.gateway.metrics().total("relayd_requests_total", code="200") == 2


# Sharing out


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_shares_out(start: Start, policy: str) -> None:
    relay = start(3, {"policy": policy})
    for _ in range(30):
        assert relay.ask(OPENAI).status == 200
    assert [len(upstream.requests) for upstream in relay.upstreams] == [10, 10, 10]


@pytest.mark.parametrize("policy", ["least_conn", "least_tokens"])
def test_a_busy_worker_gets_less(start: Start, policy: str) -> None:
    relay = start(2, {"policy": policy})
    busy, free = relay.upstreams
    busy.play([{"await_close": 10}])
    free.play(reply({}))
    clients = []
    while not busy.requests:
        clients.append(relay.connect())
        clients[-1].send(question(OPENAI, max_tokens=4000))
        eventually(lambda: relay.requests == len(clients))
    free.forget()
    for _ in range(20):
        assert relay.ask(OPENAI).status == 200
    assert len(busy.requests) == 1
    for client in clients:
        client.close()


def test_a_model_goes_to_the_workers_that_have_it() -> None:
    with (
        Upstream(models=["small"]) as small,
        Upstream(models=["small", "large"]) as large,
        Gateway(small, large, settings=ROUND_ROBIN) as gateway,
    ):
        for _ in range(4):
            assert ask(gateway, question(OPENAI, model="large")).status == 200
        assert (len(small.requests), len(large.requests)) == (0, 4)
        for _ in range(4):
            assert ask(gateway, question(OPENAI, model="small")).status == 200
        assert (len(small.requests), len(large.requests)) == (2, 6)
