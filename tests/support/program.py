"""A relayd command in a process of its own: started, read along, stopped.

Whatever a test does, relayd must not print a traceback: `close()` checks, so every test that starts one
checks as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Self

from tests.support.waiting import eventually

START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0


class Program:
    """`relayd ARGUMENTS`; made when its ready line has come."""

    def __init__(
        self,
        ready: re.Pattern[str],
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        stdout: int = subprocess.DEVNULL,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "relayd", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            text=True,
            errors="replace",
        )
        self._lines: list[str] = []
        self._reading = threading.Thread(target=self._read_stderr, daemon=True)
        self._reading.start()
        self.ready: re.Match[str]
        eventually(lambda: self._is_ready(ready), START_LIMIT_S, f"ready line of {arguments}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stderr(self) -> str:
        return "".join(self._lines)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self, within_s: float = STOP_LIMIT_S) -> int:
        """Wait for its end; return the exit code."""
        code = self._process.wait(within_s)
        self._reading.join(5)
        return code

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait(STOP_LIMIT_S)

    def close(self) -> None:
        """Stop it and check that it never printed a traceback."""
        if self.is_running:
            self.signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
        if self.is_running:
            self.kill()
            raise AssertionError(f"not ended {STOP_LIMIT_S} s after SIGINT:\n{self.stderr[-2000:]}")
        self._reading.join(5)
        assert "Traceback" not in self.stderr, self.stderr[-4000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)

    def _is_ready(self, ready: re.Pattern[str]) -> bool:
        match = ready.search(self.stderr)
        if match:
            self.ready = match
            return True
        if not self.is_running:
            self._reading.join(1)
            raise AssertionError(f"relayd ended with {self._process.returncode} at its start:\n{self.stderr}")
        return False
