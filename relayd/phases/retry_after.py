"""How long a worker asks to be left alone: Retry-After in its three spellings."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

from relayd._fast.head import ResponseHead


def seconds_asked_for(head: ResponseHead | None, now_s: float | None = None) -> float | None:
    """Return the wait in seconds that an answer asks for, or None.

    `retry-after-ms` is read first, then Retry-After as seconds, then as a date (RFC 9110 10.2.3), as the
    official SDKs do.  `now_s` is the wall clock.
    """
    if head is None:
        return None
    asked = number(head.retry_after_ms)
    if asked is not None:
        return asked / 1000
    if head.retry_after is None:
        return None
    asked = number(head.retry_after)
    if asked is not None:
        return asked
    try:
        at = parsedate_to_datetime(head.retry_after.decode("ascii")).timestamp()
    except (ValueError, UnicodeDecodeError, OverflowError):
        return None
    return max(0.0, at - (time.time() if now_s is None else now_s))


def number(text: bytes | None) -> float | None:
    """Return a non-negative number, or None for anything else."""
    if text is None or not text.replace(b".", b"", 1).isdigit() or len(text) > 12:
        return None
    return float(text)
