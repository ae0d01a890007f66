"""The machine: its cores, its clock-keeping, and who else is using it.

A shared machine is the commonest reason for a figure that cannot be repeated, so each measurement is told how
much of the two cores was spent by processes that had no part in it, and how far apart the cores were: a
virtual machine's host moves them, and the cost of everything that crosses between them changes by half.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.toolchain import native

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cores:
    """Where the gateway runs and where everything else does; None when there is only one core to run on."""

    gateway: int | None
    load: int | None

    @property
    def measured(self) -> list[int]:
        return [core for core in (self.gateway, self.load) if core is not None]


def choose_cores() -> Cores:
    """Returns the first two cores this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[0], allowed[1]) if len(allowed) > 1 else Cores(None, None)


def facts() -> dict[str, object]:
    """What a reader needs to compare this run with another."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_loop_ns": round(python_loop_ns(), 1),
        "system": _system_name(),
    }


def python_loop_ns(turns: int = 300_000) -> float:
    """How long this interpreter takes for one turn of an empty loop: builds of one version differ twofold."""

    def once() -> float:
        start = time.perf_counter_ns()
        for _ in range(turns):
            pass
        return (time.perf_counter_ns() - start) / turns

    return min(once() for _ in range(3))


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return platform.system()


def raise_open_files(needed: int) -> int:
    """Allows this process and its children `needed` descriptors, or as many as may be; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = needed if unlimited else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return needed if soft == resource.RLIM_INFINITY else soft


def clock_s(pid: int) -> float:
    """Processor time of another process so far, all threads; 0 when it is gone.

    The clock id is how Linux encodes a process (clock_getcpuclockid(3)); it counts in nanoseconds, where
    /proc/PID/stat counts in hundredths of a second.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def distance_ns(cores: Cores) -> float:
    """How long a word takes from the gateway's core to the load's and back; 0.0 where there are not two."""
    if not cores.measured:
        return 0.0
    command = [str(native("distance")), str(cores.gateway), str(cores.load)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return float(done.stdout) if done.returncode == 0 else 0.0


class Bystanders:
    """How much of the measured cores other processes used, from the making of this object on."""

    def __init__(self, cores: Cores, participants: list[int]) -> None:
        self._cores = cores.measured
        self._participants = participants
        self._start_s = time.monotonic()
        self._busy_s = self._busy_now()
        self._own_s = self._own_now()

    def share(self) -> float:
        """Returns cores' worth of foreign work, on average; 0.0 where the cores are not pinned."""
        span = time.monotonic() - self._start_s
        if not self._cores or span <= 0:
            return 0.0
        busy, own = self._busy_now() - self._busy_s, self._own_now() - self._own_s
        return max(0.0, (busy - own) / span)

    def _busy_now(self) -> float:
        names = {f"cpu{core}" for core in self._cores}
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        return sum(sum(map(int, words[1:4])) for words in lines if words[0] in names) * TICK_S

    def _own_now(self) -> float:
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(map(clock_s, self._participants)) + sum(usage.ru_utime + usage.ru_stime for usage in own)
