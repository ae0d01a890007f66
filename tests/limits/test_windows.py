"""Hours, days and months follow each other without gaps, as the calendar says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.bucket import LAST_WINDOW
from relayd.limits.windows import end_of, number_of

WINDOWS = ["hour", "day", "month"]
LAST_S = (LAST_WINDOW + 1) * 3600 - 1


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("window", "now", "ends"),
    [
        ("hour", "2026-03-01T10:59:59.999", "2026-03-01T11:00:00"),
        ("hour", "2026-03-01T11:00:00", "2026-03-01T12:00:00"),
        ("day", "2026-12-31T23:59:59.999", "2027-01-01T00:00:00"),
        ("day", "2027-01-01T00:00:00", "2027-01-02T00:00:00"),
        ("month", "2026-02-28T23:59:59.999", "2026-03-01T00:00:00"),
        ("month", "2028-02-28T23:59:59.999", "2028-03-01T00:00:00"),
        ("month", "2028-02-29T12:00:00", "2028-03-01T00:00:00"),
        ("month", "2026-11-30T23:00:00", "2026-12-01T00:00:00"),
        ("month", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
    ],
)
def test_when_a_window_ends(window, now, ends):
    assert end_of(window, number_of(window, at(now))) == at(ends)
    assert number_of(window, at(ends)) == number_of(window, at(now)) + 1


@pytest.mark.parametrize("window", WINDOWS)
@given(st.floats(0, LAST_S))
def test_any_time_lies_in_the_window_of_its_calendar(window, wall_s):
    number = number_of(window, wall_s)
    now, end = datetime.fromtimestamp(int(wall_s), UTC), end_of(window, number)
    begin = now.replace(minute=0, second=0)
    begin = begin if window == "hour" else begin.replace(hour=0)
    begin = begin.replace(day=1) if window == "month" else begin
    assert number == 0 or end_of(window, number - 1) == begin.timestamp()
    assert begin.timestamp() <= wall_s < end
    assert 0 <= number <= LAST_WINDOW


@pytest.mark.parametrize("window", WINDOWS)
def test_clocks_that_cannot_be_right_are_read_all_the_same(window):
    assert number_of(window, -1.0) == number_of(window, float("-inf")) == 0
    last = number_of(window, LAST_S)
    assert number_of(window, 1e30) == number_of(window, float("inf")) == last
    assert last <= LAST_WINDOW
