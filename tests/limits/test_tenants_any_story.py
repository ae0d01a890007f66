"""A tenant has what its tier allows, whatever happens in whatever order: as a slow model counts it."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from relayd.config import Allowance, Tier
from relayd.limits.grants import Grant
from relayd.limits.scopes import Denial
from relayd.limits.tenants import Limiter
from relayd.readers import QuotaOf, RateOf

S = 1_000_000_000
NOW = 10**15
WALL = datetime(2026, 3, 14, 15, 30, tzinfo=UTC).timestamp()


class Bucket:
    """A rate in rational numbers: how many units are there, and when that was so."""

    def __init__(self, rate: RateOf, now: int) -> None:
        self.rate, self.units, self.at = Fraction(rate.units, int(rate.period_s) * S), Fraction(0), now
        self.most = rate.units  # `units` are those that are missing

    def flow(self, now: int) -> None:
        self.units, self.at = max(Fraction(0), self.units - (now - self.at) * self.rate), now

    def wait_s(self, cost: int, now: int) -> float:
        self.flow(now)
        missing = (self.units + min(cost, self.most) - self.most) / self.rate
        return max(0, -(-missing.numerator // missing.denominator)) / S


class Wait(NamedTuple):
    """How long one limit wants to be waited for, in seconds; and where it is a quota, whose."""

    code: str
    wait_s: float
    quota: tuple[Model, str] | None = None


class Model:
    """All limits of one scope for one tenant, counted slowly."""

    def __init__(self, limits: Tier | Allowance, now: int) -> None:
        self.limits = limits
        self.requests = Bucket(limits.requests, now)
        self.tokens = Bucket(limits.tokens, now)
        self.under_way = 0
        self.used = {}  # (what, window) -> units, of the window that counts

    def window(self, what: str, wall: float) -> tuple[datetime, datetime]:
        """Return the begin and end of the window that counts now."""
        quota = getattr(self.limits, what)
        begin, end = around(quota.window, wall)
        later = around(quota.window, end.timestamp())
        return later if (what, later[0]) in self.used else (begin, end)

    def quota_wait_s(self, what: str, units: int, wall: float) -> float:
        begin, end = self.window(what, wall)
        quota = getattr(self.limits, what)
        fits = self.used.get((what, begin), 0) + min(units, quota.units) <= quota.units
        return 0.0 if fits else end.timestamp() - wall

    def request_waits(self, now: int, wall: float) -> list[Wait]:
        return [
            Wait("requests_rate", self.requests.wait_s(1, now)),
            Wait("concurrency", float(self.under_way >= self.limits.concurrency)),
            Wait("quota_exhausted", self.quota_wait_s("quota_requests", 1, wall), (self, "quota_requests")),
        ]

    def token_waits(self, tokens: int, now: int, wall: float) -> list[Wait]:
        return [
            Wait("tokens_rate", self.tokens.wait_s(tokens, now)),
            Wait("quota_exhausted", self.quota_wait_s("quota", tokens, wall), (self, "quota")),
        ]

    def spend(self, what: str, units: int, wall: float) -> datetime:
        """Count units in their window, and return that."""
        begin, _ = self.window(what, wall)
        before = self.used.get((what, begin), 0)
        self.used = {at: used for at, used in self.used.items() if at[0] != what}
        self.used[what, begin] = before + units
        return begin

    def unspend(self, what: str, units: int, begin: datetime) -> None:
        if (what, begin) in self.used:
            self.used[what, begin] = max(0, self.used[what, begin] - units)


def around(window: str, wall: float) -> tuple[datetime, datetime]:
    begin = datetime.fromtimestamp(wall, UTC).replace(minute=0, second=0, microsecond=0)
    if window == "hour":
        return begin, datetime.fromtimestamp(begin.timestamp() + 3600, UTC)
    begin = begin.replace(hour=0)
    if window == "day":
        return begin, datetime.fromtimestamp(begin.timestamp() + 86_400, UTC)
    begin = begin.replace(day=1)
    return begin, datetime.fromtimestamp(begin.timestamp() + 86_400 * 31, UTC).replace(day=1)


class Held:
    """What the model of one scope has given to one request."""

    def __init__(self, model: Model, now: int, wall: float) -> None:
        self.model = model
        self.tokens = self.quota = 0
        self.quota_window = None
        model.requests.flow(now)
        model.requests.units += 1
        model.under_way += 1
        self.window = model.spend("quota_requests", 1, wall)

    def take_tokens(self, tokens: int, now: int, wall: float) -> None:
        self.tokens, self.quota = (
            min(tokens, self.model.tokens.most),
            min(tokens, self.model.limits.quota.units),
        )
        self.model.tokens.flow(now)
        self.model.tokens.units += self.tokens
        self.quota_window = self.model.spend("quota", self.quota, wall)

    def settle(self, used: int, now: int, wall: float) -> None:
        model = self.model
        model.under_way -= 1
        model.tokens.flow(now)
        model.tokens.units = max(Fraction(0), model.tokens.units + used - self.tokens)
        if used > self.quota:
            model.spend("quota", used - self.quota, wall)
        elif self.quota_window is not None:
            model.unspend("quota", self.quota - used, self.quota_window)

    def refund(self, now: int, wall: float) -> None:
        self.settle(0, now, wall)
        self.model.requests.flow(now)
        self.model.requests.units = max(Fraction(0), self.model.requests.units - 1)
        self.model.unspend("quota_requests", 1, self.window)


# Rates that a whole number of ticks lies between: others are rounded, see tests/fast/test_bucket.py.
RATE = st.builds(RateOf, st.integers(1, 20), st.sampled_from([1.0, 60.0]))
TOKENS = st.builds(RateOf, st.sampled_from([1, 7, 40, 63, 100, 250, 400]), st.sampled_from([1.0, 60.0]))
WINDOW = st.sampled_from(["hour", "day", "month"])
LIMITS = st.fixed_dictionaries(
    {
        "requests": RATE,
        "tokens": TOKENS,
        "concurrency": st.integers(1, 6),
        "quota": st.builds(QuotaOf, st.integers(1, 2000), WINDOW),
        "quota_requests": st.builds(QuotaOf, st.integers(1, 30), WINDOW),
    }
)


class Story(RuleBasedStateMachine):
    """Two tenants of one tier ask for a model with its own limits and for another one, as clocks move."""

    open = Bundle("open")  # (grant, what the models gave)

    @initialize(tier=LIMITS, of_model=LIMITS)
    def begin(self, tier, of_model) -> None:
        self.now, self.wall = NOW, WALL
        self.limits = Tier(**tier, models={"m": Allowance(**of_model)})
        self.limiter = Limiter({"default": self.limits}, NOW, WALL, slots=64)
        names = ("acme", "initech")
        self.tier = {name: Model(self.limits, NOW) for name in names}
        self.model = {name: Model(self.limits.models["m"], NOW) for name in names}

    def is_denied(self, denial: Denial, waits: list[Wait]) -> None:
        longest = pytest.approx(max(wait.wait_s for wait in waits), abs=1e-6)
        assert any(wait.wait_s for wait in waits)
        assert denial.retry_after_s == longest
        assert denial.code in [wait.code for wait in waits if wait.wait_s == longest]
        for wait in waits:  # quotas before the first no were taken from and given back: a new window began
            if wait.wait_s:
                break
            if wait.quota is not None:
                model, what = wait.quota
                model.spend(what, 0, self.wall)

    def admit(self, name: str) -> tuple[Grant, Held] | Denial:
        waits = self.tier[name].request_waits(self.now, self.wall)
        answer = self.limiter.admit(name, "default", self.now, self.wall)
        if isinstance(answer, Denial):
            self.is_denied(answer, waits)
            return answer
        assert not any(wait.wait_s for wait in waits)
        return answer, Held(self.tier[name], self.now, self.wall)

    @rule(target=open, name=st.sampled_from(["acme", "initech"]))
    def ask(self, name):
        had = self.admit(name)
        return multiple() if isinstance(had, Denial) else (had[0], [had[1]])

    @rule(
        target=open,
        name=st.sampled_from(["acme", "initech"]),
        model=st.sampled_from(["m", "other"]),
        tokens=st.integers(0, 500),
    )
    def ask_and_reserve(self, name, model, tokens):
        had = self.admit(name)
        if isinstance(had, Denial):
            return multiple()
        grant, held = had
        waits = self.tier[name].token_waits(tokens, self.now, self.wall)
        if model == "m":
            waits += self.model[name].request_waits(self.now, self.wall)
            waits += self.model[name].token_waits(tokens, self.now, self.wall)
        denial = self.limiter.reserve(grant, model, tokens, self.now, self.wall)
        if denial is not None:
            self.is_denied(denial, waits)
            self.limiter.refund(grant, self.now, self.wall)
            held.refund(self.now, self.wall)
            return multiple()
        assert not any(wait.wait_s for wait in waits)
        all_held = [held]
        if model == "m":
            all_held.append(Held(self.model[name], self.now, self.wall))
        for each in all_held:
            each.take_tokens(tokens, self.now, self.wall)
        return grant, all_held

    @rule(one=consumes(open), used=st.one_of(st.none(), st.integers(0, 800)), twice=st.booleans())
    def settle(self, one, used, twice) -> None:
        grant, all_held = one
        self.limiter.settle(grant, used, self.now, self.wall)
        for held in all_held:
            if used is None:
                held.model.under_way -= 1
            else:
                held.settle(used, self.now, self.wall)
        if twice:
            self.limiter.settle(grant, 7, self.now, self.wall)
            self.limiter.refund(grant, self.now, self.wall)

    @rule(one=consumes(open), twice=st.booleans())
    def refund(self, one, twice) -> None:
        grant, all_held = one
        self.limiter.refund(grant, self.now, self.wall)
        for held in all_held:
            held.refund(self.now, self.wall)
        if twice:
            self.limiter.refund(grant, self.now, self.wall)
            self.limiter.settle(grant, 7, self.now, self.wall)

    @rule(passed=st.one_of(st.integers(0, 10 * S), st.integers(0, 4000 * S), st.integers(0, 10**6 * S)))
    def time_passes(self, passed) -> None:
        passed -= passed % 1_000_000
        self.now += passed
        self.wall += passed // 1_000_000 / 1000

    @rule(step=st.sampled_from([3600, -3600, -3600, 60, -60, 7 * 86_400, -7 * 86_400]))
    def clock_is_set(self, step) -> None:
        self.wall += step

    @rule(name=st.sampled_from(["acme", "initech"]))
    def obey(self, name) -> None:
        """Waiting as long as was asked is enough, where nobody else asks."""
        had = self.admit(name)
        if isinstance(had, Denial):
            self.now += int(had.retry_after_s * S) + 1
            self.wall += had.retry_after_s
            had = self.admit(name)
            assert not isinstance(had, Denial) or had.code == "concurrency"
        if not isinstance(had, Denial):
            self.limiter.refund(had[0], self.now, self.wall)
            had[1].refund(self.now, self.wall)

    @rule()
    def look(self) -> None:
        for row in self.limiter.usage(self.now, self.wall):
            model = copy.deepcopy(self.tier[row.tenant])
            model.requests.flow(self.now)
            model.tokens.flow(self.now)
            assert row.in_flight == model.under_way
            assert row.requests_left == max(0, int(model.requests.most - model.requests.units))
            assert row.tokens_left == max(0, int(model.tokens.most - model.tokens.units))
            for what, used in (("quota_requests", row.quota_requests_used), ("quota", row.quota_used)):
                assert used == model.used.get((what, model.window(what, self.wall)[0]), 0)


def test_any_story():
    run_state_machine_as_test(Story, settings=settings(deadline=None, stateful_step_count=80))
