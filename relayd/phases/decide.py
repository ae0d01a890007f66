"""Phase 5: which worker?"""

from __future__ import annotations

from collections.abc import Sequence

from relayd.records import Exchange, Worker
from relayd.routing.base import Policy
from relayd.upstream.breakers import Rests


def serving(workers: Sequence[Worker], model: str) -> Sequence[Worker]:
    """Return the workers that may serve `model`: those that list it or list nothing, else all."""
    if not model:
        return workers
    found = [worker for worker in workers if worker.models is None or model in worker.models]
    return found or workers


def decide(
    exchange: Exchange, workers: Sequence[Worker], policy: Policy, rests: Rests, now_ns: int
) -> Worker | None:
    """Return the worker to ask next, or None when all that may be asked have been."""
    candidates = serving(workers, exchange.model)
    if exchange.tried:
        # A second choice must be a good one: an answer in hand is better than a guess at a resting worker.
        candidates = [w for w in candidates if w not in exchange.tried and rests.is_open(w, now_ns)]
    else:
        candidates = rests.eligible(candidates, now_ns)
    if not candidates:
        return None
    if len(candidates) == 1:
        return candidates[0]
    return policy.pick(exchange.facts, candidates, now_ns)
