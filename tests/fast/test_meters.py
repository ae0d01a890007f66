"""A histogram counts each duration once, in the first bucket that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.meters import Histogram

NS = 1_000_000_000
BOUNDS = (0.001, 0.01, 1, 10)


def filled(*durations_ns: int) -> Histogram:
    """Return a histogram that has seen `durations_ns`."""
    histogram = Histogram(BOUNDS)
    for duration in durations_ns:
        histogram.observe_ns(duration)
    return histogram


@pytest.mark.parametrize(
    ("ns", "bucket"),
    [
        (0, 0), (-5, 0), (1, 0), (1_000_000, 0), (1_000_001, 1), (10_000_000, 1), (10_000_001, 2),
        (NS, 2), (NS + 1, 3), (10 * NS, 3), (10 * NS + 1, 4), (1 << 62, 4),
    ],
)  # fmt: skip
def test_an_upper_bound_belongs_to_its_bucket(ns, bucket):
    counts = [count for _, count in filled(ns).buckets()]
    assert counts == [0] * bucket + [1] * (len(BOUNDS) + 1 - bucket)


def test_buckets_are_named_by_their_bounds():
    assert [name for name, _ in filled().buckets()] == ["0.001", "0.01", "1", "10", "+Inf"]
    assert filled().bounds == BOUNDS


def test_nothing_observed():
    histogram = filled()
    assert (histogram.count, histogram.sum_s, histogram.quantile(0.99)) == (0, 0.0, 0.0)


def test_negative_durations_count_as_none():
    histogram = filled(-NS, NS)
    assert (histogram.count, histogram.sum_s) == (2, 1.0)


def test_quantiles_are_upper_bounds():
    histogram = filled(*[500_000] * 98, 5 * NS, 100 * NS)
    assert histogram.quantile(0.5) == 0.001
    assert histogram.quantile(0.98) == 0.001
    assert histogram.quantile(0.99) == 10
    assert histogram.quantile(1.0) == float("inf")


@pytest.mark.parametrize("bounds", [[], [2, 1], [1, 1], list(range(1, 41))])
def test_bounds_must_rise_and_fit(bounds):
    with pytest.raises(ValueError, match="bounds must rise"):
        Histogram(bounds)


def test_thirty_nine_bounds_fit():
    histogram = Histogram(range(1, 40))
    histogram.observe_ns(39 * NS)
    histogram.observe_ns(40 * NS)
    assert histogram.buckets()[-2:] == [("39", 1), ("+Inf", 2)]


@given(st.lists(st.integers(-NS, 100 * NS)))
def test_agrees_with_sorting(durations):
    histogram = filled(*durations)
    kept = [max(0, duration) for duration in durations]
    assert histogram.count == len(durations)
    assert histogram.sum_s == pytest.approx(sum(kept) / NS)
    expected = [sum(duration <= int(bound * NS) for duration in kept) for bound in BOUNDS]
    assert [count for _, count in histogram.buckets()] == [*expected, len(kept)]
