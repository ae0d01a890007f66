"""When a worker is left alone, and when a retry is allowed.

Sans-I/O: every method takes the time and only changes what it was given.

A worker that fails `consecutive` times in a row rests: first `rest` seconds, then twice as long each time,
up to `longest_rest`.  After a rest one request tries it; its success ends the matter and its failure starts
the next rest.  A rest never takes the last worker: when all rest, all are asked (`phases/decide`).  A
client's mistake, a client's leaving, 429 and 503 with Retry-After say nothing about a worker's health.
"""

from __future__ import annotations

from relayd.config import Breaker
from relayd.records import NEVER, OPEN, Worker

NS = 1_000_000_000
LONGEST_BUSY_S = 300.0


class Rests:
    """Decides which workers rest."""

    def __init__(self, settings: Breaker) -> None:
        self.settings = settings

    def succeeded(self, worker: Worker) -> bool:
        """Note a good answer; return True if this ends a rest."""
        if not worker.failures and not worker.rests:
            return False
        was_resting = worker.rests > 0
        worker.failures = worker.rests = 0
        worker.resting_until_ns = OPEN
        worker.probing = False
        settle(worker)
        return was_resting

    def failed(self, worker: Worker, now_ns: int) -> bool:
        """Note a failure; return True if the worker rests from now on."""
        worker.failures += 1
        probe_failed = worker.probing
        worker.probing = False
        settle(worker)
        if worker.failures < self.settings.consecutive and not probe_failed:
            return False
        if now_ns < worker.resting_until_ns:
            return False  # requests that were on their way when the rest began
        rest_s = min(self.settings.rest * 2**worker.rests, self.settings.longest_rest)
        worker.rests = min(worker.rests + 1, 30)
        worker.resting_until_ns = now_ns + int(rest_s * NS)
        settle(worker)
        return True

    def said_nothing(self, worker: Worker) -> None:
        """Note a request whose end says nothing about the worker: its probe may be tried again."""
        if worker.probing:
            worker.probing = False
            settle(worker)

    def busy(self, worker: Worker, retry_after_s: float, now_ns: int) -> None:
        """Note that the worker asked to be left alone; deadlines only lengthen."""
        until = now_ns + int(min(retry_after_s, LONGEST_BUSY_S) * NS)
        worker.busy_until_ns = max(worker.busy_until_ns, until)
        settle(worker)

    def picked(self, worker: Worker, now_ns: int) -> None:
        """Note that a request goes to `worker`: after a rest, it is the only one until it ends."""
        if worker.rests and now_ns >= worker.resting_until_ns:
            worker.probing = True
            settle(worker)


def settle(worker: Worker) -> None:
    """Work out when a worker may be asked."""
    if worker.probing:
        worker.open_at_ns = NEVER
    else:
        worker.open_at_ns = max(worker.resting_until_ns, worker.busy_until_ns)


def is_resting(worker: Worker, now_ns: int) -> bool:
    """True while `worker` rests, or while one request is trying it after a rest."""
    return now_ns < worker.resting_until_ns or worker.probing


class RetryBudget:
    """Retries as a share of successes: a fleet that fails must not be asked twice as much.

    A bucket that fills by `share` a success and by three a second, and holds a hundred.
    """

    PER_SECOND = 3.0
    BURST = 100.0

    def __init__(self, share: float, now_ns: int) -> None:
        self.share = share
        self.tokens = self.BURST
        self.filled_ns = now_ns

    def succeeded(self) -> None:
        """A request succeeded."""
        if self.tokens < self.BURST:
            self.tokens += self.share

    def take(self, now_ns: int) -> bool:
        """Return True if a retry is allowed now, and count it."""
        waited_s = max(0, now_ns - self.filled_ns) / NS
        self.tokens = min(self.BURST, self.tokens + waited_s * self.PER_SECOND)
        self.filled_ns = now_ns
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True
