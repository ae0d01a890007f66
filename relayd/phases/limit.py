"""Phase 3: may this tenant ask now?  And at the end: what did it use?"""

from __future__ import annotations

from relayd._fast.leg import Leg
from relayd.faults import Fault, fault
from relayd.limits.scopes import Denial
from relayd.limits.tenants import Limiter
from relayd.records import Exchange


def limit(exchange: Exchange, limiter: Limiter, now_ns: int, now_wall: float) -> Fault | None:
    """Take a request of the tenant's limits; return a fault if there is none to take."""
    answer = limiter.admit(exchange.tenant, exchange.tier, now_ns, now_wall)
    if isinstance(answer, Denial):
        return denied(answer)
    exchange.grant = answer
    return None


def reserve(exchange: Exchange, limiter: Limiter, now_ns: int, now_wall: float) -> Fault | None:
    """Reserve the tokens that a request may use, once its model is known."""
    facts = exchange.facts
    tokens = facts.prompt_tokens + facts.output_tokens
    denial = limiter.reserve(exchange.grant, exchange.model, tokens, now_ns, now_wall)
    return denied(denial) if denial is not None else None


def denied(denial: Denial) -> Fault:
    """Return the fault of what a limit does not allow."""
    return fault(denial.code, denial.detail, retry_after_s=denial.retry_after_s)


def settle(exchange: Exchange, leg: Leg | None, limiter: Limiter, now_ns: int, now_wall: float) -> None:
    """Give back what was granted and not used.  What no worker was asked for has used nothing."""
    if exchange.tried:
        limiter.settle(exchange.grant, used_tokens(exchange, leg), now_ns, now_wall)
    else:
        limiter.refund(exchange.grant, now_ns, now_wall)


def used_tokens(exchange: Exchange, leg: Leg | None) -> int | None:
    """Return the tokens that a request has used, None where the reservation is the best estimate."""
    if leg is None or leg.response is None or leg.status >= 400:
        return 0
    given, written, cached, cache_write = leg.tokens[:4]
    if given is None and written is None:
        return exchange.facts.prompt_tokens + leg.events if leg.streaming else None
    used: int = (given or 0) + (written or 0)
    if exchange.route.uncached_input:
        used += (cached or 0) + (cache_write or 0)
    return used
