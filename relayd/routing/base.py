"""What every policy is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relayd.records import Facts, Worker


class Policy(Protocol):
    """Chooses one of the workers that may take a request.

    One object per gateway, called on the loop's thread once a leg.
    """

    def pick(self, facts: Facts, candidates: Sequence[Worker], now_ns: int) -> Worker:
        """Return one of `candidates`, of which there is at least one."""


def least_recently_picked(worker: Worker) -> int:
    """Return what ties are broken by: an idle fleet must not send its first burst to worker 0."""
    return worker.pool.last_pick
