"""A `relayd mock` in a process of its own, and what its sockets saw.

with Mock("--ttft", "5ms", "--itl", "2ms") as mock, Gateway(mock.url) as gateway:
    ...
    assert mock.stats()["requests"]["open"] == 0
"""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

from tests.support.program import Program

READY = re.compile(r"listening on (http://([\d.]+):(\d+))")


class Mock(Program):
    """A simulated inference server on a free port; ready when made."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(READY, "mock", "--listen", "127.0.0.1:0", *arguments)
        self.url, self.host, self.port = self.ready[1], self.ready[2], int(self.ready[3])

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def stats(self) -> dict[str, Any]:
        """Return its counts: connections, requests, who left when."""
        with urllib.request.urlopen(self.url + "/mock/stats", timeout=5) as page:
            counts: dict[str, Any] = json.load(page)
        return counts


# Ways for an answer to end otherwise than well.
FAULTS = [
    "status=500",
    "status=503",
    "status=400",
    "rate_limit=0",
    "delay=30ms",
    "hang",
    "close",
    "cut=0",
    "cut=1",
    "cut=5",
    "reset=0",
    "reset=4",
    "error=0",
    "error=5",
    "stall=0",
    "stall=4",
    "drip=5000",
    "keepalive_close",
]
