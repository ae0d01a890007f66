"""Send the request where the fewest are being served."""

from __future__ import annotations

from collections.abc import Sequence

from relayd.records import Facts, Worker
from relayd.registry import register


@register("routing", "least_conn")
class LeastConn:
    """Count requests.  Right when they are alike."""

    def pick(self, facts: Facts, candidates: Sequence[Worker], now_ns: int) -> Worker:
        """Return the worker with the fewest requests in flight, the least recently picked of equals."""
        return min(candidates, key=lambda worker: (worker.pool.in_flight, worker.pool.last_pick))
