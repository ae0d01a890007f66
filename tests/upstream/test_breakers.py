"""When a worker rests, for how long, and when a retry may be paid for.  The clock is moved by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relayd._fast.leg import Pool
from relayd.config import Breaker
from relayd.records import NEVER, OPEN, Worker
from relayd.upstream.breakers import LONGEST_BUSY_S, Rests, RetryBudget, is_resting

NS = 1_000_000_000
START = 10**15


def a_worker() -> Worker:
    """Return a worker in favour."""
    return Worker("w", "http://w", Pool("w", b"w", None))


def resting(rests: Rests, worker: Worker, now: int = START) -> None:
    """Let `worker` fail until it rests."""
    while not rests.failed(worker, now):
        pass


# --- rests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consecutive", [1, 2, 5])
def test_so_many_failures_in_a_row_begin_a_rest(consecutive):
    rests, worker = Rests(Breaker(consecutive=consecutive)), a_worker()
    for _ in range(consecutive - 1):
        assert not rests.failed(worker, START)
        assert worker.open_at_ns <= START
    assert rests.failed(worker, START)
    assert worker.open_at_ns == START + 5 * NS
    assert is_resting(worker, START)
    assert is_resting(worker, START + 5 * NS - 1)
    assert not is_resting(worker, START + 5 * NS)


def test_a_success_in_between_begins_the_count_anew():
    rests, worker = Rests(Breaker()), a_worker()
    for _ in range(3):
        for _ in range(4):
            assert not rests.failed(worker, START)
        assert not rests.succeeded(worker)
    assert worker.open_at_ns == OPEN


def test_failures_of_requests_that_were_on_their_way_do_not_lengthen_a_rest():
    rests, worker = Rests(Breaker()), a_worker()
    resting(rests, worker)
    for _ in range(50):
        assert not rests.failed(worker, START + NS)
    assert worker.open_at_ns == START + 5 * NS


def test_each_further_rest_is_twice_as_long():
    rests, worker, now = Rests(Breaker()), a_worker(), START
    resting(rests, worker, now)
    lengths = [worker.resting_until_ns - now]
    for _ in range(8):
        now = worker.resting_until_ns
        rests.picked(worker, now)
        assert rests.failed(worker, now)
        lengths.append(worker.resting_until_ns - now)
    assert [length / NS for length in lengths] == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_many_rests_do_not_overflow():
    rests, worker, now = Rests(Breaker()), a_worker(), START
    resting(rests, worker, now)
    for _ in range(200):
        now = worker.resting_until_ns
        rests.picked(worker, now)
        rests.failed(worker, now)
        assert worker.resting_until_ns - now <= 300 * NS
    assert worker.resting_until_ns < NEVER


def test_after_a_rest_one_request_tries_the_worker():
    rests, worker = Rests(Breaker()), a_worker()
    resting(rests, worker)
    now = START + 5 * NS
    assert worker.open_at_ns <= now
    rests.picked(worker, now)
    assert worker.probing
    assert worker.open_at_ns == NEVER
    assert is_resting(worker, now + 1000 * NS)


def test_a_probes_success_ends_the_matter():
    rests, worker = Rests(Breaker()), a_worker()
    resting(rests, worker)
    rests.picked(worker, START + 5 * NS)
    assert rests.succeeded(worker)
    assert (worker.open_at_ns, worker.rests, worker.failures, worker.probing) == (OPEN, 0, 0, False)
    assert not rests.succeeded(worker), "told once"
    resting(rests, worker, START + 100 * NS)
    assert worker.open_at_ns == START + 105 * NS, "the next one is a first one again"


def test_a_probes_single_failure_begins_the_next_rest():
    rests, worker = Rests(Breaker()), a_worker()
    resting(rests, worker)
    now = START + 7 * NS
    rests.picked(worker, now)
    assert rests.failed(worker, now + NS)
    assert worker.open_at_ns == now + 11 * NS


def test_a_probe_whose_client_left_is_tried_again():
    rests, worker = Rests(Breaker()), a_worker()
    resting(rests, worker)
    now = START + 5 * NS
    rests.picked(worker, now)
    rests.said_nothing(worker)
    assert worker.open_at_ns <= now
    rests.picked(worker, now)
    assert worker.open_at_ns == NEVER


def test_who_says_nothing_changes_nothing():
    rests, worker = Rests(Breaker()), a_worker()
    rests.failed(worker, START)
    rests.said_nothing(worker)
    assert (worker.failures, worker.open_at_ns) == (1, OPEN)


def test_a_request_that_is_not_after_a_rest_is_no_probe():
    rests, worker = Rests(Breaker()), a_worker()
    rests.picked(worker, START)
    assert not worker.probing
    resting(rests, worker)
    rests.picked(worker, START + NS)  # all rest, and somebody has to be asked
    assert not worker.probing
    assert worker.open_at_ns == START + 5 * NS


def test_settings_are_obeyed():
    rests, worker = Rests(Breaker(consecutive=2, rest=1.5, longest_rest=2.0)), a_worker()
    resting(rests, worker)
    assert (worker.failures, worker.open_at_ns) == (2, START + 1_500_000_000)
    rests.picked(worker, worker.open_at_ns)
    now = worker.resting_until_ns
    rests.failed(worker, now)
    assert worker.open_at_ns == now + 2 * NS


# --- a worker's own wish ------------------------------------------------------------------------------


def test_a_busy_worker_is_left_alone():
    rests, worker = Rests(Breaker()), a_worker()
    rests.busy(worker, 3.5, START)
    assert worker.open_at_ns == START + 3_500_000_000
    assert not is_resting(worker, START), "busy is not broken"


def test_deadlines_only_lengthen():
    rests, worker = Rests(Breaker()), a_worker()
    rests.busy(worker, 10, START)
    rests.busy(worker, 2, START + NS)
    assert worker.open_at_ns == START + 10 * NS
    rests.busy(worker, 10, START + NS)
    assert worker.open_at_ns == START + 11 * NS


@pytest.mark.parametrize("asked", [301, 10**6, 1e11, float("inf")])
def test_a_wish_is_bounded(asked):
    rests, worker = Rests(Breaker()), a_worker()
    rests.busy(worker, asked, START)
    assert worker.open_at_ns == START + int(LONGEST_BUSY_S * NS)


def test_a_success_does_not_end_a_wish():
    rests, worker = Rests(Breaker()), a_worker()
    rests.failed(worker, START)
    rests.busy(worker, 10, START)
    rests.succeeded(worker)
    assert worker.open_at_ns == START + 10 * NS


def test_a_rest_and_a_wish_the_later_counts():
    rests, worker = Rests(Breaker()), a_worker()
    rests.busy(worker, 2, START)
    resting(rests, worker)
    assert worker.open_at_ns == START + 5 * NS
    rests.busy(worker, 9, START)
    assert worker.open_at_ns == START + 9 * NS


class RestingTale(RuleBasedStateMachine):
    """Anything may happen to a worker, and time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.rests, self.worker, self.now = Rests(Breaker()), a_worker(), START
        self.good_since_rest = False
        self.promised_busy = 0

    @rule(seconds=st.sampled_from([0, 0.1, 1, 4.9, 5, 100, 400]))
    def time_passes(self, seconds) -> None:
        self.now += int(seconds * NS)

    @rule()
    def fails(self) -> None:
        before = (self.worker.resting_until_ns, self.worker.rests)
        began = self.rests.failed(self.worker, self.now)
        assert self.worker.resting_until_ns >= before[0], "a failure never shortens a rest"
        if began:
            assert 5 * NS <= self.worker.resting_until_ns - self.now <= 300 * NS
            assert self.worker.rests == min(before[1] + 1, 30)
        else:
            assert (self.worker.resting_until_ns, self.worker.rests) == before

    @rule()
    def succeeds(self) -> None:
        was_resting = self.worker.rests > 0
        assert self.rests.succeeded(self.worker) is was_resting
        assert (self.worker.failures, self.worker.rests, self.worker.resting_until_ns) == (0, 0, OPEN)

    @rule()
    def says_nothing(self) -> None:
        before = (self.worker.failures, self.worker.rests, self.worker.resting_until_ns)
        self.rests.said_nothing(self.worker)
        assert (self.worker.failures, self.worker.rests, self.worker.resting_until_ns) == before

    @rule(seconds=st.floats(0, 1000))
    def asks_to_be_left_alone(self, seconds) -> None:
        before = self.worker.busy_until_ns
        self.rests.busy(self.worker, seconds, self.now)
        assert self.worker.busy_until_ns >= before
        self.promised_busy = max(self.promised_busy, self.now + int(min(seconds, LONGEST_BUSY_S) * NS))

    @precondition(lambda self: self.worker.open_at_ns <= self.now)
    @rule()
    def is_picked(self) -> None:
        self.rests.picked(self.worker, self.now)
        assert self.worker.probing is (self.worker.rests > 0)

    @invariant()
    def opens_when_all_agree(self) -> None:
        worker = self.worker
        if worker.probing:
            assert worker.open_at_ns == NEVER
        else:
            assert worker.open_at_ns == max(worker.resting_until_ns, self.promised_busy)
        assert worker.failures >= 0
        assert not worker.probing or worker.rests


TestResting = RestingTale.TestCase
TestResting.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# --- the budget ---------------------------------------------------------------------------------------


def emptied(share: float = 0.2) -> RetryBudget:
    """Return a budget that has nothing left."""
    budget = RetryBudget(share, START)
    while budget.take(START):
        pass
    return budget


def test_a_hundred_retries_at_once_and_no_more():
    budget = RetryBudget(0.2, START)
    assert [budget.take(START) for _ in range(102)] == [True] * 100 + [False] * 2


def test_three_a_second_come_back():
    budget = emptied()
    assert not budget.take(START + NS // 4)
    taken = sum(budget.take(START + NS * tick // 10) for tick in range(3, 101))
    assert taken == 30


def test_a_share_of_successes_comes_back():
    budget = emptied(0.25)
    for _ in range(40):
        budget.succeeded()
    assert [budget.take(START) for _ in range(11)] == [True] * 10 + [False]


def test_nothing_is_saved_beyond_the_burst():
    budget = RetryBudget(0.5, START)
    for _ in range(1000):
        budget.succeeded()
    later = START + 10_000 * NS
    assert [budget.take(later) for _ in range(101)] == [True] * 100 + [False]


def test_a_clock_that_goes_back_gives_nothing():
    budget = emptied()
    assert not budget.take(START - 1000 * NS)


@given(
    st.floats(0, 1),
    st.lists(st.tuples(st.sampled_from(["take", "succeed"]), st.integers(0, NS)), max_size=200),
)
def test_never_more_than_was_earned(share, steps):
    budget, now = emptied(share), START
    earned = 1.0 - 1e-6  # what may be left of a token
    for what, step in steps:
        now += step
        earned += step / NS * RetryBudget.PER_SECOND
        if what == "succeed":
            budget.succeeded()
            earned += share
        elif budget.take(now):
            earned -= 1.0
            assert earned > -1e-6
        assert 0.0 <= budget.tokens <= RetryBudget.BURST
