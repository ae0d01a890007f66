"""Phase 5: which worker?"""

from __future__ import annotations

from relayd.records import Exchange, Fleet, Worker
from relayd.routing.base import Policy


def decide(exchange: Exchange, fleet: Fleet, policy: Policy, now_ns: int) -> Worker | None:
    """Return the worker to ask next, or None when all that may be asked have been.

    The first choice falls on resting workers when all rest: a rest never takes the last one.  A second
    choice must be a good one: an answer in hand is better than a guess at a resting worker.
    """
    serving = fleet.serving(exchange.model)
    if len(serving) == 1:
        return None if exchange.tried else serving[0]
    candidates = [worker for worker in serving if worker.open_at_ns <= now_ns]
    if exchange.tried:
        candidates = [worker for worker in candidates if worker not in exchange.tried]
    elif not candidates:
        candidates = list(serving)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    return policy.pick(exchange.facts, candidates, now_ns)
