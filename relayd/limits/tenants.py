"""How much each tenant may have: the yes or no to a request, and what becomes of it.

    admit     a request of the tier's rate, its slots and its quota           -> Grant, or Denial
    reserve   tokens of the tier, and everything of the model's own limits    -> None, or Denial
    settle    the request is over: its slots and the tokens it did not use come back
    refund    the request was refused after all: everything comes back

Each is all or nothing, and each grant ends once.  A denial names the limit that must be waited for longest.
Sans-I/O: times are arguments, monotonic nanoseconds for rates and Unix seconds for the calendar.

Everything is counted in memory: it begins anew with the process.  Compiled, with the types of tenants.pxd.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from heapq import nlargest
from itertools import chain
from typing import NamedTuple

from relayd._fast.bucket import Buckets
from relayd._fast.head import rate_lines
from relayd.config import Tier
from relayd.limits.grants import Grant
from relayd.limits.scopes import Denial, Scope, Tables, Tenant

SLOTS = 1 << 16  # tenants that are remembered by each limit
KNOWN_AT_MOST = 4096  # tenants whose names and keys are kept at hand
SHOWN_AT_MOST = 1000
TOKENS_AT_MOST = 1_000_000_000  # that one request is believed to use


class Use(NamedTuple):
    """What a tenant has, for /status; None for what its tier does not limit."""

    tenant: str
    tier: str
    in_flight: int
    requests_left: int | None
    tokens_left: int | None
    quota_requests_used: int | None
    quota_used: int | None


class Limiter:
    """The limits of all tenants."""

    def __init__(self, tiers: Mapping[str, Tier], now_ns: int, wall: float, slots: int = SLOTS) -> None:
        self.tables = Tables(now_ns, slots)
        self.since_wall = wall  # quotas know nothing of what was used before
        self.tiers: dict[str, Scope] = {}
        self._secret = os.urandom(16)
        self.known: dict[str, Tenant] = {}
        self.reload(tiers, now_ns)

    def reload(self, tiers: Mapping[str, Tier], now_ns: int) -> None:
        """Take other tiers.  What was used stays used, but a rate that has changed begins full.

        Grants that are under way end in the tables that they were taken from.
        """
        self.tables.now_ns = now_ns
        self.tiers = {name: self._scope(name, tier) for name, tier in tiers.items()}
        self.default = self.tiers.get("default") or Scope("", Tier(), self.tables)

    def _scope(self, name: str, tier: Tier) -> Scope:
        """Return the scope of a tier: the one that is there, if nothing about it has changed."""
        old = self.tiers.get(name)
        return old if old is not None and old.allowed == tier else Scope(name, tier, self.tables, old=old)

    def tier(self, name: str) -> Scope:
        """Return the limits of a tier; of `default` if there is none of that name; none without that."""
        return self.tiers.get(name) or self.default

    # -- the life of a grant

    def admit(self, tenant_name: str, tier_name: str, now_ns: int, now_wall: float) -> Grant | Denial:
        """Take one request of the tier's limits."""
        tenant = self._tenant(tenant_name)
        scope = self.tier(tier_name)
        tenant.tier = scope
        tenant.seen_ns = now_ns
        grant = Grant(scope, tenant)
        if grant.take_request(now_ns, now_wall):
            return grant
        grant.give_back()
        return longest(scope.request_denials(tenant, now_ns, now_wall))

    def reserve(self, grant: Grant, model: str, tokens: int, now_ns: int, now_wall: float) -> Denial | None:
        """Take an estimate of tokens, and one request of the model's own limits: once a grant.

        After a denial the grant holds what admit gave, until it is refunded.
        """
        if grant.ended or grant.reserved:
            return None
        wanted = max(0, min(tokens, TOKENS_AT_MOST))
        taken = grant.take_tokens(wanted, now_ns, now_wall)
        of_model = self._model_grant(grant, model)
        if taken and of_model is not None:
            taken = of_model.take_request(now_ns, now_wall) and of_model.take_tokens(wanted, now_ns, now_wall)
        if taken:
            grant.reserved = True
            return None
        grant.give_back_tokens()
        if of_model is not None:
            of_model.give_back()
        return self._why(grant, wanted, now_ns, now_wall)

    def settle(self, grant: Grant, used_tokens: int | None, now_ns: int, now_wall: float) -> None:
        """End a grant: slots come back, and tokens become what was used; None leaves the estimate."""
        if grant.ended:
            return
        grant.ended = True
        used = -1 if used_tokens is None else max(0, min(used_tokens, TOKENS_AT_MOST))
        of_model = grant.model
        grant.give_back_slot()
        if of_model is not None:
            of_model.give_back_slot()
        if used < 0:
            return
        grant.settle_tokens(used, now_ns, now_wall)
        if of_model is not None:
            of_model.settle_tokens(used, now_ns, now_wall)

    def refund(self, grant: Grant, now_ns: int, now_wall: float) -> None:
        """End the grant of a request that used nothing: everything comes back."""
        if grant.ended:
            return
        grant.ended = True
        grant.give_back()
        if grant.model is not None:
            grant.model.give_back()

    def _model_grant(self, grant: Grant, model: str) -> Grant | None:
        """Return a grant of the model's own limits, if it has any."""
        scope = grant.scope.models.get(model)
        grant.model = None if scope is None else Grant(scope, grant.tenant)
        return grant.model

    def _why(self, grant: Grant, tokens: int, now_ns: int, now_wall: float) -> Denial:
        """Return what keeps `tokens` from being reserved, when nothing of them is."""
        tenant = grant.tenant
        denials = grant.scope.token_denials(tenant, tokens, now_ns, now_wall)
        if grant.model is not None:
            of_model = grant.model.scope
            denials = chain(
                denials,
                of_model.request_denials(tenant, now_ns, now_wall),
                of_model.token_denials(tenant, tokens, now_ns, now_wall),
            )
        return longest(denials)

    # -- what is told

    def lines(self, grant: Grant, now_ns: int) -> bytes:
        """Return the X-RateLimit-* lines of an answer; b"" if neither rate is limited.

        Where a model has a rate of its own, they tell of the rate of which less is left.
        """
        scope, tenant = grant.scope, grant.tenant
        requests, tokens = scope.requests, scope.tokens
        if grant.model is not None:
            of_model = grant.model.scope
            requests = tighter(requests, of_model.requests, tenant, now_ns)
            tokens = tighter(tokens, of_model.tokens, tenant, now_ns)
        lines = lines_of_rate(b"Requests", requests, tenant, now_ns)
        return lines + lines_of_rate(b"Tokens", tokens, tenant, now_ns)

    def lines_of(self, tenant_name: str, tier_name: str, now_ns: int) -> bytes:
        """Return the X-RateLimit-* lines of an answer to whom admit has denied."""
        return self.lines(Grant(self.tier(tier_name), self._tenant(tenant_name)), now_ns)

    def usage(self, now_ns: int, now_wall: float) -> list[Use]:
        """Return what the tenants seen last have, latest first."""
        latest = nlargest(SHOWN_AT_MOST, self.known.values(), key=seen)
        return [use_of(tenant, tenant.tier or self.default, now_ns, now_wall) for tenant in latest]

    # -- who they are

    def _tenant(self, name: str) -> Tenant:
        return self.known.get(name) or self._learn(name)

    def _learn(self, name: str) -> Tenant:
        """Return a tenant that is not at hand.

        Its key is a keyed hash, so that nobody can choose names which push each other out of a table.
        """
        if len(self.known) >= KNOWN_AT_MOST:
            latest = nlargest(KNOWN_AT_MOST // 2, self.known.values(), key=seen)
            self.known = {tenant.name: tenant for tenant in latest}
        encoded = name.encode("utf-8", "surrogatepass")
        key = hashlib.blake2b(encoded, digest_size=16, key=self._secret).digest()
        tenant = Tenant(name, int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"))
        self.known[name] = tenant
        return tenant


def seen(tenant: Tenant) -> int:
    """Return when a tenant was seen last."""
    return tenant.seen_ns


def longest(denials: Iterable[Denial]) -> Denial:
    """Return the denial that must be waited for longest: until then the request would not pass."""
    return max(denials, key=retry_after_s)


def retry_after_s(denial: Denial) -> float:
    """Return the wait of a denial."""
    return denial.retry_after_s


def tighter(one: Buckets | None, other: Buckets | None, tenant: Tenant, now_ns: int) -> Buckets | None:
    """Return that of two rates of which less is left."""
    if one is None or other is None:
        return one if other is None else other
    left = one.left_of(tenant.low, tenant.high, now_ns)
    return other if other.left_of(tenant.low, tenant.high, now_ns) <= left else one


def lines_of_rate(what: bytes, buckets: Buckets | None, tenant: Tenant, now_ns: int) -> bytes:
    """Return the lines of one rate, none of no rate."""
    if buckets is None:
        return b""
    left = buckets.left_of(tenant.low, tenant.high, now_ns)
    full_in_ns = buckets.full_in_of(tenant.low, tenant.high, now_ns)
    return rate_lines(what, buckets.rate.burst, left, full_in_ns)


def use_of(tenant: Tenant, scope: Scope, now_ns: int, now_wall: float) -> Use:
    """Return what a tenant of a tier has."""
    low, high = tenant.low, tenant.high
    return Use(
        tenant.name,
        scope.name,
        scope.slots.count_of(low, high) if scope.slots is not None else 0,
        scope.requests.left_of(low, high, now_ns) if scope.requests is not None else None,
        scope.tokens.left_of(low, high, now_ns) if scope.tokens is not None else None,
        scope.quota_requests.used(tenant, now_wall) if scope.quota_requests is not None else None,
        scope.quota.used(tenant, now_wall) if scope.quota is not None else None,
    )
