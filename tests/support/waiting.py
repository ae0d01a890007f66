"""Waiting for what another process is about to do.

A black-box test cannot be told that the gateway has closed a socket or settled a counter: it has
to look until it has happened.  Everything that looks does so here, often and with a bound, so that
a test takes as long as the gateway takes and no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LOOK_EVERY_S = 0.005


def eventually(look: Callable[[], T], within_s: float = 5.0, what: str = "") -> T:
    """Return the first true thing that `look` returns; fail after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what or look}; last seen: {seen!r}")
        time.sleep(LOOK_EVERY_S)


def settled(look: Callable[[], T], still_s: float = 0.3, within_s: float = 30.0) -> T:
    """Return what `look` returns once it has not changed for `still_s` seconds."""
    deadline = time.monotonic() + within_s
    seen, since = look(), time.monotonic()
    while time.monotonic() - since < still_s:
        if time.monotonic() > deadline:
            raise AssertionError(f"still moving after {within_s} s: {seen!r}")
        time.sleep(LOOK_EVERY_S)
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
    return seen
