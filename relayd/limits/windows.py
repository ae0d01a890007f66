"""Which hour, day or month of the calendar it is, and when that ends.

All in UTC.  Windows are numbered from 1970 on, months too.  Compiled, with the types of windows.pxd.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache

from relayd._fast.bucket import LAST_WINDOW

HOUR_S, DAY_S = 3600, 86_400
LAST_S = float((LAST_WINDOW + 1) * HOUR_S - 1)  # a clock that says more, or is before 1970, is not believed
FIRST_DAY = date(1970, 1, 1).toordinal()


def number_of(window: str, wall_s: float) -> int:
    """Return the number of the "hour", "day" or "month" in which a Unix time lies."""
    second = int(min(max(wall_s, 0.0), LAST_S))
    if window == "hour":
        return second // HOUR_S
    day = second // DAY_S
    return day if window == "day" else month_of(day)


@lru_cache(8)
def month_of(day: int) -> int:
    """Return the number of the month in which a day lies."""
    found = date.fromordinal(FIRST_DAY + day)
    return (found.year - 1970) * 12 + found.month - 1


def end_of(window: str, number: int) -> float:
    """Return the Unix time at which a window ends, which is when the next one begins."""
    if window == "month":
        years, months = divmod(number + 1, 12)
        return float((date(1970 + years, 1 + months, 1).toordinal() - FIRST_DAY) * DAY_S)
    return float((number + 1) * (HOUR_S if window == "hour" else DAY_S))
