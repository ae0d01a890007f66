"""What the mock's sockets saw, for tests: connections, requests, and who left when.

Only inference requests are counted and entered in the ledger; `by_path` counts all but
the mock's own routes.  Counts are taken where the thing happens, so that after a test
they tell whether everything was given back.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

LEDGER_ENTRIES = 1000
MAX_PATHS = 64  # distinct paths counted by name; the rest are one entry

OPEN, COMPLETED, CANCELLED, FAILED, REJECTED = "open", "completed", "cancelled", "failed", "rejected"

Headers = list[tuple[bytes, bytes]]


class Entry:
    """One inference request, from its head to its end."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "connection", "ended_at", "events", "fault", "headers", "id",
        "model", "outcome", "path", "prompt_tokens", "started_at", "status", "stream", "tokens_sent",
    )  # fmt: skip

    def __init__(self, request_id: str, path: str, connection: int, headers: Headers) -> None:
        self.id = request_id
        self.path = path
        self.connection = connection  # its number: two requests with one number shared a connection
        self.headers = headers
        self.model = ""
        self.stream = False
        self.status = 0  # 0: no answer was begun
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.events = 0
        self.tokens_sent = 0  # of completion_tokens; an answer that is spoilt on its way has none
        self.fault = ""
        self.outcome = OPEN
        self.started_at = time.time()
        self.ended_at: float | None = None

    def as_json(self, with_headers: bool) -> dict[str, Any]:
        """Return it as /mock/stats shows it."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "headers"}
        if with_headers:
            row["headers"] = [
                [name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers
            ]
        return row


class Stats:
    """All counts of one server."""

    def __init__(self) -> None:
        self.connections_open = 0
        self.requests_open = 0
        self.reset()

    def reset(self) -> None:
        """Begin anew; what is open stays open."""
        self.connections_accepted = self.connections_closed = 0
        self.connections_reset = 0  # by the client
        self.connections_aborted = 0  # reset by the mock, as a fault
        self.requests_started = 0
        self.outcomes = {COMPLETED: 0, CANCELLED: 0, FAILED: 0, REJECTED: 0}
        self.by_path: dict[str, int] = {}
        self.tokens_sent = self.events_sent = 0
        self.last_disconnect: dict[str, Any] | None = None
        self.ledger: deque[Entry] = deque(maxlen=LEDGER_ENTRIES)

    def count_path(self, path: str) -> None:
        """Count a request by its path, bounded."""
        if path not in self.by_path and len(self.by_path) >= MAX_PATHS:
            path = "other"
        self.by_path[path] = self.by_path.get(path, 0) + 1

    def open(self, entry: Entry) -> None:
        """An inference request begins."""
        self.requests_started += 1
        self.requests_open += 1
        self.ledger.append(entry)

    def close(self, entry: Entry, outcome: str) -> None:
        """It ends, once."""
        if entry.outcome != OPEN:
            return
        entry.outcome = outcome
        entry.ended_at = time.time()
        self.requests_open -= 1
        self.outcomes[outcome] += 1

    def client_left(self, entry: Entry) -> None:
        """The client closed while `entry` was being answered."""
        phase = "streaming" if entry.events else "answering" if entry.status else "waiting"
        self.last_disconnect = {
            "at": time.time(),
            "request_id": entry.id,
            "phase": phase,
            "events": entry.events,
        }

    def as_json(self, with_headers: bool = False) -> dict[str, Any]:
        """Return everything, as /mock/stats shows it."""
        return {
            "connections": {
                "open": self.connections_open, "accepted": self.connections_accepted,
                "closed": self.connections_closed, "reset": self.connections_reset,
                "aborted": self.connections_aborted,
            },
            "requests": {
                "started": self.requests_started, **self.outcomes, "open": self.requests_open,
                "by_path": self.by_path,
            },
            "tokens_sent": self.tokens_sent,
            "events_sent": self.events_sent,
            "last_disconnect": self.last_disconnect,
            "ledger": [entry.as_json(with_headers) for entry in self.ledger],
        }  # fmt: skip
