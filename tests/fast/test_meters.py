"""A histogram counts each duration once, in the first bucket that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.leg import EventKind, Leg, LegOutcome
from relayd._fast.meters import Histogram, Meters, cost_of
from relayd._fast.sse import Terminator
from tests.fast.stage import Stage, reply, stream

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
    return Meters("m", "w", *(Histogram(BOUNDS) for _ in range(4)))


def ended_leg(answer: bytes) -> Leg:
    """Return a leg that has passed `answer` on."""
    stage = Stage()
    leg = stage.ask()
    stage.worker_says(answer)
    return leg


def cut_leg(*said: bytes, cancelled: bool = False, terminator: int = 0) -> Leg:
    """Return a leg whose worker, or client, went away after this much."""
    stage = Stage(terminator)
    leg = stage.ask()
    stage.worker_says(*said)
    if cancelled:
        leg.cancel()
    else:
        stage.worker_resets()
    return leg


def answered(*legs: Leg, estimate: int = -1, writes: bool = True, uncached: bool = False) -> Meters:
    """Return meters that have counted these legs' answers, and no time but the legs' own."""
    counted = meters()
    for leg in legs:
        cost = cost_of(leg, estimate, writes, uncached)
        counted.answered(leg, cost, leg.begun_ns, leg.begun_ns, leg.took_ns)
    return counted


def reported(counted: Meters) -> tuple[int, ...]:
    """Return the tokens that workers reported."""
    return (
        counted.input_tokens, counted.output_tokens, counted.cached_input_tokens,
        counted.cache_write_tokens, counted.reasoning_tokens,
    )  # fmt: skip


def estimated(counted: Meters) -> tuple[int, int]:
    """Return the tokens that were estimated."""
    return counted.estimated_input_tokens, counted.estimated_output_tokens


USAGE = (
    b'{"usage":{"prompt_tokens":10,"completion_tokens":4,"cached_tokens":3,"cache_creation_input_tokens":2,'
    b'"reasoning_tokens":1}}'
)
START = b'data: {"usage":{"input_tokens":5,"cache_read_input_tokens":7,"output_tokens":1}}\n\n'
DELTA = b'data: {"usage":{"output_tokens":40}}\n\n'
TEXT = b"data: a\n\n"
ERROR = b'data: {"error":{"message":"died"}}\n\n'


def test_an_exchange_without_a_leg_has_only_a_duration():
    counted = meters()
    counted.ended(0, NS)
    assert (counted.duration.count, counted.duration.sum_s) == (1, 1.0)
    others = (counted.ttft, counted.tpot, counted.overhead)
    assert [histogram.count for histogram in others] == [0] * 3


def test_times_are_told_apart():
    counted, leg = meters(), ended_leg(reply(body=b"{}"))
    arrived, ready = leg.ended_ns - 10 * NS, leg.ended_ns - 4 * NS
    counted.answered(leg, cost_of(leg, -1, True, False), arrived, ready, 3 * NS)
    assert counted.duration.sum_s == 10.0
    assert counted.overhead.sum_s == 1.0, "of the time since it could be decided on, what no worker took"
    assert (counted.ttft.count, counted.tpot.count) == (0, 0), "a plain answer has no first token"


def test_a_stream_has_a_first_token():
    counted = meters()
    leg = ended_leg(stream(TEXT, TEXT, b": comment\n\n", TEXT))
    counted.answered(leg, cost_of(leg, -1, True, False), leg.first_ns - NS, leg.first_ns, 0)
    assert counted.ttft.sum_s == 1.0
    assert counted.tpot.sum_s == pytest.approx((leg.ended_ns - leg.first_ns) // 2 / NS)


def test_one_token_has_no_rate():
    assert answered(ended_leg(stream(TEXT))).tpot.count == 0


def test_the_rate_goes_by_what_the_worker_counted():
    leg = ended_leg(stream(TEXT, b'data: {"usage":{"completion_tokens":101}}\n\n'))
    assert answered(leg).tpot.sum_s == pytest.approx((leg.ended_ns - leg.first_ns) // 100 / NS)


@pytest.mark.parametrize(("uncached", "given"), [(False, 10), (True, 15)])
def test_reported_tokens_are_counted(uncached, given):
    counted = answered(*[ended_leg(reply(body=USAGE)) for _ in range(2)], estimate=77, uncached=uncached)
    assert reported(counted) == (2 * given, 8, 6, 4, 2)
    assert estimated(counted) == (0, 0)


def test_a_cost_says_what_is_not_known():
    cost = cost_of(ended_leg(reply(body=b'{"usage":{"prompt_tokens":0}}')), -1, True, False)
    assert (cost.input, cost.output, cost.cached_input, cost.cache_write, cost.reasoning) == (
        0,
        -1,
        -1,
        -1,
        -1,
    )
    assert (cost.total, cost.estimated) == (0, False)


def test_a_cost_has_a_total():
    cost = cost_of(ended_leg(reply(body=USAGE)), -1, True, True)
    assert (cost.total, cost.estimated) == (19, False)


ESTIMATES = [
    # what, leg, (input, output) as estimated when 7 tokens were expected to be read
    ("a plain answer's size", lambda: ended_leg(reply(body=b"x" * 40)), (7, 10)),
    ("a stream's events", lambda: ended_leg(stream(TEXT, b": x\n\n", TEXT)), (7, 2)),
    ("a stream cut before it told", lambda: cut_leg(stream(TEXT, TEXT, last=False)), (7, 2)),
    ("only the input was told", lambda: ended_leg(reply(body=b'{"usage":{"prompt_tokens":4}}')), (0, 7)),
    ("the input was not believed",
     lambda: ended_leg(reply(body=b'{"usage":{"prompt_tokens":-4,"completion_tokens":2}}')), (7, 0)),
    ("a stream that began to tell", lambda: cut_leg(stream(START, TEXT, TEXT, TEXT, last=False)), (0, 4)),
    ("its client went away", lambda: cut_leg(stream(START, TEXT, TEXT, last=False), cancelled=True), (0, 3)),
    ("told more than its events", lambda: cut_leg(stream(START, TEXT, DELTA, last=False)), (0, 40)),
    ("nothing for the client", lambda: cut_leg(), (0, 0)),
    ("its client left before the answer", lambda: cut_leg(cancelled=True), (7, 0)),
    ("it ended with an error", lambda: ended_leg(stream(START, TEXT, ERROR)), (0, 3)),
    ("an error", lambda: ended_leg(reply(body=b"{}", status=b"400 Bad")), (0, 0)),
    ("a worker's error", lambda: ended_leg(reply(body=b"{}", status=b"500 Oops")), (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("what", "leg", "expected"), ESTIMATES)
def test_without_a_report_tokens_are_estimated(what, leg, expected):
    assert estimated(answered(leg(), estimate=7)) == expected, what


@pytest.mark.parametrize(("what", "leg", "expected"), ESTIMATES)
def test_where_tokens_mean_nothing_none_are_made_up(what, leg, expected):
    ended = leg()
    counted = answered(ended, estimate=-1)
    assert counted.estimated_input_tokens == 0
    if ended.tokens[1] is None:
        assert counted.estimated_output_tokens == 0


def test_an_answer_that_is_not_made_of_tokens_costs_what_was_read():
    leg = ended_leg(reply(body=b"x" * 4000))
    assert estimated(answered(leg, estimate=7, writes=False)) == (7, 0)
    cost = cost_of(leg, 7, False, False)
    assert (cost.input, cost.output, cost.estimated) == (7, -1, True)


def test_a_report_before_the_terminator_is_the_last_word():
    said = stream(
        TEXT,
        b'data: {"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
        b"data: [DONE]\n\n",
        last=False,
    )
    leg = cut_leg(said, terminator=Terminator.TERMINATOR_DONE)
    assert leg.outcome == LegOutcome.LEG_CUT
    counted = answered(leg, estimate=7)
    assert reported(counted)[:2] == (3, 2)
    assert estimated(counted) == (0, 0)


def test_what_was_told_before_a_commit_was_told():
    """Anthropic's message_start has come, no content has, and the client leaves: the prompt was read."""
    stage = Stage(judge=lambda event: EventKind.EVENT_PREAMBLE)
    leg = stage.ask()
    stage.worker_says(stream(START, last=False))
    leg.cancel()
    assert not leg.committed
    counted = answered(leg, estimate=99, uncached=True)
    assert reported(counted)[0] == 12
    assert estimated(counted) == (0, 1)
    assert counted.ttft.count == 0


def test_a_usage_that_is_not_believed_is_counted():
    leg = ended_leg(reply(body=b'{"usage":{"prompt_tokens":-1}}'))
    assert answered(leg, estimate=7).refused_usages == 1


def test_a_leg_that_told_the_client_nothing_has_only_times():
    stage = Stage()
    leg = stage.ask()
    stage.worker_closes()
    counted = answered(leg, estimate=7)
    assert (counted.duration.count, counted.ttft.count) == (1, 0)
    assert (reported(counted), estimated(counted)) == ((0,) * 5, (0, 0))


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
