"""What the kernel says about a process: open descriptors, sockets, memory.

A gateway's own counters can be wrong in the same way as the gateway.  /proc cannot.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path


def descriptors(pid: int) -> int:
    """Return how many descriptors the process `pid` has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def sockets(pid: int) -> int:
    """Return how many of the descriptors of `pid` are sockets."""
    return sum(link.startswith("socket:") for link in _links(pid))


def _links(pid: int) -> list[str]:
    links = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(entry.path))
        except FileNotFoundError:  # closed between the listing and the look
            continue
    return links


def resident_kib(pid: int) -> int:
    """Return the resident memory (VmRSS) of `pid` in KiB."""
    return _status_kib(pid, "VmRSS")


def peak_kib(pid: int) -> int:
    """Return the highest resident memory of `pid` since its start or `forget_peak`, in KiB."""
    return _status_kib(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    """Make `peak_kib` count from now on (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise LookupError(f"/proc/{pid}/status has no {field}")


def raise_descriptor_limit(wanted: int) -> int:
    """Raise this process's descriptor limit towards `wanted`; return what is allowed now.

    Children started afterwards have the same limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed)
