"""A `relayd mock` in a process of its own, and what its sockets saw.

with Mock("--ttft", "5ms", "--itl", "2ms") as mock, Gateway(mock.url) as gateway:
    ...
    assert mock.stats()["requests"]["open"] == 0
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from typing import Any

from tests.support.waiting import eventually

READY = re.compile(r"listening on (http://([\d.]+):(\d+))")
START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0


class Mock:
    """A simulated inference server on a free port; ready when made."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "relayd", "mock", "--listen", "127.0.0.1:0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        threading.Thread(target=self._read_stderr, daemon=True).start()
        eventually(lambda: READY.search(self.stderr), START_LIMIT_S, "the mock is ready")
        match = READY.search(self.stderr)
        assert match
        self.url, self.host, self.port = match[1], match[2], int(match[3])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def stderr(self) -> str:
        return "".join(self._lines)

    def stats(self) -> dict[str, Any]:
        """Return its counts: connections, requests, who left when."""
        with urllib.request.urlopen(self.url + "/mock/stats", timeout=5) as page:
            counts: dict[str, Any] = json.load(page)
        return counts

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait(STOP_LIMIT_S)

    def close(self) -> None:
        """Stop it."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(STOP_LIMIT_S)
        assert "Traceback" not in self.stderr, self.stderr[-4000:]

    def __enter__(self) -> Mock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
