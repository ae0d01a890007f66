"""Child processes: pinned to a core, watched, and ended by their id whatever happens.

A child is also told to die with its parent (PR_SET_PDEATHSIG), so that a benchmark that is killed leaves
nothing behind.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.faults import Unavailable

PR_SET_PDEATHSIG = 1
STOP_S = 5.0
_libc = ctypes.CDLL(None)


class Child:
    """One process that this run started; its output goes to `log`."""

    def __init__(self, command: list[str], core: int | None, log: Path, cwd: Path | None = None) -> None:
        def prepare() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if core is not None:
                os.sched_setaffinity(0, {core})

        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, preexec_fn=prepare
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def last_words(self) -> str:
        """The last line it wrote, or how it ended if it wrote none."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else f"ended with status {self.process.returncode}"

    def await_ready(self, is_ready: Callable[[], bool], seconds: float = 20.0) -> None:
        """Waits until `is_ready()`.  Raises Unavailable when the process ends first or never gets there."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            if self.process.poll() is not None:
                raise Unavailable(self.last_words())
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"it did not answer within {seconds:.0f} s; its last words: {self.last_words()}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """Asks it to end, then makes it and what it started end."""
        family = family_of(self.pid)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            for pid in family:
                _kill(pid)
            self.process.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def family_of(pid: int) -> list[int]:
    """Returns `pid` and every process below it."""
    found, pending = [], [pid]
    while pending:
        found.append(parent := pending.pop())
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pending += map(int, children.read_text().split())
            except OSError:
                continue
    return found


def memory_kib(pids: list[int]) -> float:
    """Memory of these processes, what they share counted once (PSS); resident size where PSS is unknown."""
    return sum(_process_kib(pid) for pid in pids)


def _process_kib(pid: int) -> float:
    for name, pattern in (("smaps_rollup", r"^Pss:\s+(\d+)"), ("status", r"^VmRSS:\s+(\d+)")):
        try:
            text = Path(f"/proc/{pid}/{name}").read_text()
        except OSError:
            continue
        if found := re.search(pattern, text, re.MULTILINE):
            return float(found[1])
    return 0.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
