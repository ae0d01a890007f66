"""Durations and ranges, as people write them on a command line."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


def parse_duration_s(text: str) -> float:
    """Return `50ms`, `2s`, `1.5m`, `0` in seconds; a bare number is seconds.

    Raises ValueError.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration; write 50ms, 2s, 1m or 0")
    return float(match[1]) * _SECONDS[match[2]]


def parse_range(text: str) -> tuple[int, int]:
    """Return `64` or `32-256` as the least and the most.

    Raises ValueError.
    """
    low, dash, high = text.partition("-")
    try:
        least = int(low)
        most = int(high) if dash else least
    except ValueError:
        least, most = 0, 0
    if not 1 <= least <= most:
        raise ValueError(
            f"{text!r} is no number of tokens; write 64, or 32-256 to draw lengths between the two"
        )
    return least, most


def parse_address(text: str) -> tuple[str, int]:
    """Return `HOST:PORT`, `[::1]:PORT` or `:PORT` as host and port.

    Raises ValueError.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address; write HOST:PORT, as in 127.0.0.1:8000 (port 0: any free)")
    return host.strip("[]") or "127.0.0.1", int(port)
