"""Send each request to the worker that has waited longest for one."""

from __future__ import annotations

from collections.abc import Sequence

from relayd.records import Facts, Worker
from relayd.registry import register
from relayd.routing.base import least_recently_picked


@register("routing", "round_robin")
class RoundRobin:
    """Take turns.  Blind to load and speed: for comparison, and for fleets of equals."""

    def pick(self, facts: Facts, candidates: Sequence[Worker], now_ns: int) -> Worker:
        """Return the least recently picked of `candidates`."""
        return min(candidates, key=least_recently_picked)
