"""Phase 3: may this tenant ask now?  And at the end: what did it use?"""

from __future__ import annotations

from relayd._fast.meters import Cost
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


def settle(exchange: Exchange, cost: Cost | None, limiter: Limiter, now_ns: int, now_wall: float) -> None:
    """Give back what was granted and not used.  What no worker was asked for has used nothing."""
    if not exchange.tried:
        limiter.refund(exchange.grant, now_ns, now_wall)
    elif cost is None:
        limiter.settle(exchange.grant, 0, now_ns, now_wall)
    elif cost.input < 0 and cost.output < 0:
        limiter.settle(exchange.grant, None, now_ns, now_wall)  # nobody knows: the estimate stands
    else:
        limiter.settle(exchange.grant, max(cost.input, 0) + max(cost.output, 0), now_ns, now_wall)
