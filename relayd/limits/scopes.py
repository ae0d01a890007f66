"""How much is allowed: to the tenants of a tier, or to them for one model.

A scope has up to five limits, each in a table of its own.  A rate belongs to its tier.  Requests under way
and what was used in a window of the calendar belong to the tenant: all tiers share these tables, so a tenant
that comes with another tier has not used less.  Compiled, with the types of scopes.pxd.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from mmap import mmap
from typing import NamedTuple

from relayd._fast.bucket import QUOTA_AT_MOST, Buckets, Counts, Quotas, Rate
from relayd.config import Allowance, Tier
from relayd.limits.windows import end_of, number_of
from relayd.readers import QuotaOf, RateOf

NS = 1_000_000_000
NO_BOUND = 1 << 62  # requests at the same time, where only their number is wanted
FREE_SLOT_S = 1.0  # nobody knows when a request ends: the wait that is told
PERIODS = {1.0: "a second", 60.0: "a minute", 3600.0: "an hour", 86400.0: "a day"}


class Denial(NamedTuple):
    """A limit's no."""

    code: str  # "requests_rate", "tokens_rate", "concurrency" or "quota_exhausted"
    retry_after_s: float  # then the same request passes, if nobody else asks
    detail: str  # what is allowed, such as "600 requests a minute"


class Tenant:
    """Whose requests are counted together: a name, and its key in the tables."""

    def __init__(self, name: str, low: int, high: int) -> None:
        self.name = name
        self.low = low
        self.high = high
        self.tier: Scope | None = None  # of its last request
        self.seen_ns = 0


class Quota:
    """So much in each window of the calendar."""

    def __init__(self, table: Quotas, allowed: QuotaOf) -> None:
        self.table = table
        self.window = allowed.window
        self.most = min(allowed.units, QUOTA_AT_MOST)

    def take(self, tenant: Tenant, units: int, now_wall: float) -> int:
        """Use `units`; return the window in which they count, or a negative number if they are too many."""
        return self.table.take_of(tenant.low, tenant.high, units, number_of(self.window, now_wall), self.most)

    def charge(self, tenant: Tenant, units: int, now_wall: float) -> None:
        """Use `units` in any case."""
        self.table.charge_of(tenant.low, tenant.high, units, number_of(self.window, now_wall))

    def used(self, tenant: Tenant, now_wall: float) -> int:
        """Return what was used in the window that counts now."""
        return self.table.used_of(tenant.low, tenant.high, number_of(self.window, now_wall))

    def wait_s(self, tenant: Tenant, units: int, now_wall: float) -> float:
        """Return how long it takes until `units` may be used; 0.0 if they may be now."""
        if units <= self.most - self.used(tenant, now_wall):
            return 0.0
        window = self.table.window_of(tenant.low, tenant.high, number_of(self.window, now_wall))
        return max(end_of(self.window, window) - now_wall, 0.001)


class Scope:
    """The limits of a tier; or of one model for a tier's tenants, with no `models` of its own.

    `old` is the same scope before a reload: a rate that is still the same goes on.
    """

    def __init__(
        self,
        name: str,
        allowed: Tier | Allowance,
        tables: Tables,
        model: str = "",
        old: Scope | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.allowed = allowed
        requests, tokens = (None, None) if old is None else (old.requests, old.tokens)
        self.requests: Buckets | None = tables.buckets(allowed.requests, requests)
        self.tokens: Buckets | None = tables.buckets(allowed.tokens, tokens)
        self.concurrency = allowed.concurrency or NO_BOUND
        self.slots = tables.counts(model) if allowed.concurrency or not model else None
        self.quota = tables.quota("tokens", model, allowed.quota)
        self.quota_requests = tables.quota("requests", model, allowed.quota_requests)
        self.models: dict[str, Scope] = {}
        if isinstance(allowed, Tier):
            was = old.models if old is not None else {}
            self.models = {
                each: Scope(name, of, tables, each, was.get(each)) for each, of in allowed.models.items()
            }

    def request_denials(self, tenant: Tenant, now_ns: int, now_wall: float) -> Iterator[Denial]:
        """Yield a denial for each limit on requests that one more would break."""
        allowed = self.allowed
        if allowed.requests is not None and self.requests is not None:
            wait_ns = self.requests.wait_of(tenant.low, tenant.high, 1, now_ns)
            if wait_ns:
                yield self._denial("requests_rate", wait_ns / NS, rate_text(allowed.requests, "requests"))
        if self.slots is not None and self.slots.count_of(tenant.low, tenant.high) >= self.concurrency:
            yield self._denial("concurrency", FREE_SLOT_S, f"{self.concurrency:,} requests at the same time")
        yield from self._quota_denial(self.quota_requests, tenant, 1, now_wall, "requests")

    def token_denials(self, tenant: Tenant, tokens: int, now_ns: int, now_wall: float) -> Iterator[Denial]:
        """Yield a denial for each limit on tokens that so many more would break."""
        allowed = self.allowed
        if allowed.tokens is not None and self.tokens is not None:
            cost = min(tokens, self.tokens.rate.burst)
            wait_ns = self.tokens.wait_of(tenant.low, tenant.high, cost, now_ns)
            if wait_ns:
                yield self._denial("tokens_rate", wait_ns / NS, rate_text(allowed.tokens, "tokens"))
        yield from self._quota_denial(self.quota, tenant, tokens, now_wall, "tokens")

    def _quota_denial(
        self, quota: Quota | None, tenant: Tenant, units: int, now_wall: float, what: str
    ) -> Iterator[Denial]:
        if quota is not None:
            wait_s = quota.wait_s(tenant, min(units, quota.most), now_wall)
            if wait_s:
                article = "an" if quota.window == "hour" else "a"
                text = f"{quota.most:,} {what} {article} {quota.window}"
                yield self._denial("quota_exhausted", wait_s, text)

    def _denial(self, code: str, retry_after_s: float, text: str) -> Denial:
        return Denial(code, retry_after_s, f"{text} for the model {self.model}" if self.model else text)


class Tables:
    """Makes the tables of scopes, each with room for `slots` tenants.

    Memory is taken as tenants come, not when a table is made.
    """

    def __init__(self, now_ns: int, slots: int) -> None:
        self.now_ns = now_ns
        self.size = slots * Buckets.SLOT_SIZE
        self.counts = cache(self._counts)
        self._quotas = cache(self._quotas_of)

    def buckets(self, rate: RateOf | None, old: Buckets | None) -> Buckets | None:
        """Return a table of buckets that hold what a whole period allows: `old`, if that is one."""
        if rate is None:
            return None
        period_ns = int(rate.period_s * NS)
        if old is not None and (old.rate.count, old.rate.period_ns) == (rate.units, period_ns):
            return old
        return Buckets(Rate(rate.units, period_ns, rate.units, self.now_ns), mmap(-1, self.size))

    def _counts(self, model: str) -> Counts:
        return Counts(mmap(-1, self.size))

    def quota(self, what: str, model: str, allowed: QuotaOf | None) -> Quota | None:
        """Return a limit on `what` in each window."""
        return None if allowed is None else Quota(self._quotas(what, model, allowed.window), allowed)

    def _quotas_of(self, what: str, model: str, window: str) -> Quotas:
        return Quotas(mmap(-1, self.size))


def rate_text(rate: RateOf, what: str) -> str:
    """Return a rate in words."""
    return f"{rate.units:,} {what} {PERIODS.get(rate.period_s) or f'in {rate.period_s:g} s'}"
