"""A histogram counts each duration once, in the first bucket that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.leg import LegOutcome
from relayd._fast.meters import Histogram, Meters
from tests.fast.stage import Stage, chunks, reply, stream

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


# --- everything that is counted for a request ---------------------------------------------------------


def meters() -> Meters:
    """Return meters that have seen nothing."""
    return Meters(*(Histogram(BOUNDS) for _ in range(5)))


def ended_leg(answer: bytes) -> object:
    """Return a leg that has passed `answer` on."""
    stage = Stage()
    leg = stage.ask()
    stage.worker_says(answer)
    return leg


USAGE = (
    b'{"usage":{"prompt_tokens":10,"completion_tokens":4,"cached_tokens":3,"cache_creation_input_tokens":2}}'
)


def test_an_exchange_without_a_leg_has_only_a_duration():
    counted = meters()
    counted.ended(0, NS)
    assert (counted.duration.count, counted.duration.sum_s) == (1, 1.0)
    others = (counted.ttft, counted.tpot, counted.overhead, counted.decision)
    assert [histogram.count for histogram in others] == [0] * 4


def test_times_are_told_apart():
    counted, leg = meters(), ended_leg(reply(body=b"{}"))
    arrived, ready = leg.ended_ns - 10 * NS, leg.ended_ns - 4 * NS
    counted.answered(leg, arrived, ready, 3 * NS, 2 * NS, -1, False)
    assert counted.duration.sum_s == 10.0
    assert counted.overhead.sum_s == 1.0, "of the time since it could be decided on, what no worker took"
    assert counted.decision.sum_s == 2.0
    assert (counted.ttft.count, counted.tpot.count) == (0, 0), "a plain answer has no first token"


def test_a_stream_has_a_first_token():
    counted = meters()
    leg = ended_leg(stream(b"data: a\n\n", b"data: b\n\n", b": comment\n\n", b"data: c\n\n"))
    counted.answered(leg, leg.first_ns - NS, leg.first_ns, 0, 0, -1, False)
    assert counted.ttft.sum_s == 1.0
    assert counted.tpot.sum_s == pytest.approx((leg.ended_ns - leg.first_ns) // 2 / NS)


def test_one_token_has_no_rate():
    counted, leg = meters(), ended_leg(stream(b"data: a\n\n"))
    counted.answered(leg, 0, 0, 0, 0, -1, False)
    assert counted.tpot.count == 0


@pytest.mark.parametrize(("uncached", "given"), [(False, 10), (True, 15)])
def test_reported_tokens_are_counted(uncached, given):
    counted = meters()
    for _ in range(2):
        counted.answered(ended_leg(reply(body=USAGE)), 0, 0, 0, 0, 77, uncached)
    assert (counted.input_tokens, counted.output_tokens) == (2 * given, 8)
    assert counted.cached_input_tokens == 6
    assert (counted.estimated_input_tokens, counted.estimated_output_tokens) == (0, 0)


def test_without_a_report_tokens_are_estimated():
    counted = meters()
    counted.answered(ended_leg(reply(body=b"x" * 40)), 0, 0, 0, 0, 7, False)
    assert (counted.estimated_input_tokens, counted.estimated_output_tokens) == (7, 10)
    counted.answered(ended_leg(stream(b"data: a\n\n", b": x\n\n", b"data: b\n\n")), 0, 0, 0, 0, 7, False)
    assert (counted.estimated_input_tokens, counted.estimated_output_tokens) == (14, 12)
    assert (counted.input_tokens, counted.output_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("answer", "estimate"),
    [
        (reply(body=b"{}", status=b"400 Bad"), 7),
        (reply(body=b"{}", status=b"500 Oops"), 7),
        (reply(body=b"{}"), -1),
    ],
)
def test_some_answers_cost_no_tokens(answer, estimate):
    counted = meters()
    counted.answered(ended_leg(answer), 0, 0, 0, 0, estimate, False)
    assert (counted.estimated_input_tokens, counted.estimated_output_tokens) == (0, 0)


def test_a_usage_that_is_not_believed_is_counted():
    counted = meters()
    counted.answered(ended_leg(reply(body=b'{"usage":{"prompt_tokens":-1}}')), 0, 0, 0, 0, 7, False)
    assert counted.refused_usages == 1


def test_a_leg_that_told_the_client_nothing_has_only_times():
    counted, stage = meters(), Stage()
    leg = stage.ask()
    stage.worker_closes()
    counted.answered(leg, 0, 0, 0, 0, 7, False)
    assert (counted.duration.count, counted.estimated_input_tokens, counted.ttft.count) == (1, 0, 0)


def test_a_cut_stream_is_counted_as_far_as_it_came():
    counted, stage = meters(), Stage()
    leg = stage.ask()
    stage.worker_says(stream(b"data: a\n\n", last=False), chunks([b"data: b\n\n"], last=False))
    stage.worker_resets()
    counted.answered(leg, 0, 0, 0, 0, 7, False)
    assert (counted.ttft.count, counted.estimated_output_tokens) == (1, 2)


def test_a_pool_counts_how_its_legs_ended():
    stage = Stage()
    assert sum(stage.pool.legs_ended()) == 0
    stage.ask()
    stage.worker_says(reply(body=b"x"))
    stage.ask()
    stage.worker_says(reply(body=b"x", status=b"500 Oops"))
    stage.ask().cancel()
    stage.ask()
    stage.worker_closes()
    ended = stage.pool.legs_ended()
    assert (ended[LegOutcome.LEG_COMPLETE], ended[LegOutcome.LEG_CANCELLED], ended[LegOutcome.LEG_RESET]) == (
        1,
        1,
        1,
    )
    assert ended[-1] == 1, "complete answers of 500 and above are told apart"
    assert sum(ended) == 4
