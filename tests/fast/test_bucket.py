"""A bucket holds what it should, to the unit and to the nanosecond, as a model in rational numbers says."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from relayd._fast.bucket import Buckets, Rate

S = 1_000_000_000
START = 123_456_789_012
KEY = bytes(range(16))


def buckets(count: int, period_ns: int, burst: int, slots: int = 64) -> Buckets:
    return Buckets(Rate(count, period_ns, burst, START), bytearray(slots * Buckets.SLOT_SIZE))


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Model:
    """The same in rational numbers: what is missing from a full bucket, and since when."""

    def __init__(self, count: int, period_ns: int, burst: int) -> None:
        self.a_unit = Fraction(period_ns, count)
        self.burst = burst
        self.full_at = Fraction(START)
        self.longest_debt = Fraction(1 << 61, count // gcd(count, period_ns))

    def take(self, cost: int, now: int) -> int:
        if cost > self.burst:
            return -1
        full_at = max(self.full_at, Fraction(now)) + cost * self.a_unit
        missing = full_at - now - self.burst * self.a_unit
        if missing > 0:
            return -(-missing.numerator // missing.denominator)
        self.full_at = full_at
        return 0

    def wait(self, cost: int, now: int) -> int:
        if cost > self.burst:
            return -1
        missing = max(self.full_at - now, Fraction(0)) + (cost - self.burst) * self.a_unit
        return max(0, -(-missing.numerator // missing.denominator))

    def charge(self, units: int, now: int) -> None:
        charged = max(self.full_at, Fraction(now)) + units * self.a_unit
        self.full_at = max(self.full_at, min(charged, now + self.longest_debt))

    def give_back(self, units: int) -> None:
        self.full_at -= units * self.a_unit

    def left(self, now: int) -> int:
        behind = max(self.full_at - now, Fraction(0))
        return max(0, int((self.burst * self.a_unit - behind) // self.a_unit))

    def full_in(self, now: int) -> int:
        behind = max(self.full_at - now, Fraction(0))
        return -(-behind.numerator // behind.denominator)


def test_a_hundred_at_once_and_a_hundred_a_second_after():
    table = buckets(100, S, 100)
    assert [table.take(KEY, 1, START) for _ in range(101)] == [0] * 100 + [10_000_000]
    admitted = sum(table.take(KEY, 1, START + ms * 1_000_000) == 0 for ms in range(1, 1001))
    assert admitted == 100
    assert table.left(KEY, START + 1_000_000_000) == 0
    assert table.left(KEY, START + 3 * S) == 100


def test_the_wait_that_is_told_is_the_shortest_that_helps():
    table = buckets(7, S, 3)
    for _ in range(3):
        table.take(KEY, 1, START)
    wait = table.take(KEY, 1, START)
    assert wait == 142_857_143
    assert table.take(KEY, 1, START + wait - 1) == 1
    assert table.take(KEY, 1, START + wait) == 0


def test_a_refusal_takes_nothing():
    table = buckets(10, S, 10)
    table.take(KEY, 8, START)
    for _ in range(100):
        assert table.take(KEY, 3, START) > 0
    assert table.left(KEY, START) == 2
    assert table.take(KEY, 2, START) == 0


def test_more_than_the_bucket_ever_holds_is_never_had():
    table = buckets(10, S, 10)
    assert table.take(KEY, 11, START) == -1
    assert table.take(KEY, 11, START + 100 * S) == -1
    assert table.left(KEY, START) == 10


def test_what_is_given_back_can_be_had_again_and_no_more_than_that():
    table = buckets(10, 60 * S, 10)
    table.take(KEY, 10, START)
    table.give_back(KEY, 4)
    assert table.left(KEY, START) == 4
    table.give_back(KEY, 10)
    assert table.left(KEY, START) == 10
    assert [table.take(KEY, 10, START), table.take(KEY, 1, START) > 0] == [0, True]


def test_what_is_charged_beyond_the_bucket_is_a_debt_that_time_pays():
    table = buckets(10, S, 10)
    table.take(KEY, 10, START)
    table.charge(KEY, 25, START)
    assert table.left(KEY, START) == 0
    assert table.full_in(KEY, START) == 3_500_000_000
    assert table.take(KEY, 1, START) == table.wait(KEY, 1, START) == 2_600_000_000
    assert table.take(KEY, 0, START) == 2_500_000_000
    assert table.take(KEY, 1, START + 2_600_000_000) == 0


def test_a_bucket_that_had_been_full_for_long_owes_no_less_for_that():
    table = buckets(10, S, 10)
    table.take(KEY, 10, START)
    table.charge(KEY, 15, START + 100 * S)
    assert table.full_in(KEY, START + 100 * S) == 1_500_000_000


@pytest.mark.parametrize(("count", "period_ns"), [(1, S), (7919, S), (1, 86_400 * S), (10**15, S)])
def test_a_debt_has_an_end_however_much_is_charged(count, period_ns):
    table = buckets(count, period_ns, 1)
    for now in (START, START + 1, START + 10**15):
        for _ in range(5):
            table.charge(KEY, (1 << 63) - 1, now)
            assert 1 << 54 < table.take(KEY, 1, now) <= 1 << 62
            assert table.left(KEY, now) == 0
        table.give_back(KEY, 1)


def test_looking_at_a_key_and_giving_back_for_one_that_was_forgotten_make_no_slot():
    table = buckets(1, S, 10, slots=8)
    for number in range(1, 9):
        table.take(key(number), 5, START)
    for number in range(11, 30):
        assert table.left(key(number), START) == 10
        assert table.wait(key(number), 10, START) == 0
        assert table.full_in(key(number), START) == 0
        assert table.take(key(number), 11, START) == -1
        table.give_back(key(number), 5)
    assert table.forgotten == 0
    assert [table.left(key(number), START) for number in range(1, 9)] == [5] * 8


def test_tables_on_the_same_memory_are_one_table():
    memory = bytearray(64 * Buckets.SLOT_SIZE)
    rate = Rate(1, S, 3, START)
    one, other = Buckets(rate, memory), Buckets(rate, memory)
    assert [one.take(KEY, 2, START), other.take(KEY, 1, START), one.take(KEY, 1, START)] == [0, 0, S]
    other.give_back(KEY, 3)
    assert one.left(KEY, START) == 3


def test_one_key_knows_nothing_of_another():
    table = buckets(1, S, 1)
    assert [table.take(key(number), 1, START) for number in range(1, 30)] == [0] * 29
    assert all(table.take(key(number), 1, START) > 0 for number in range(1, 30))


def test_a_full_table_forgets_whom_it_favours_most():
    table = buckets(1, S, 10, slots=8)
    for number in range(1, 9):
        table.take(key(number), number, START)
    assert table.take(key(9), 1, START) == 0
    assert table.forgotten == 1
    assert [table.left(key(number), START) for number in range(2, 9)] == [10 - n for n in range(2, 9)]


def test_buckets_that_are_full_again_make_room_unnoticed():
    table = buckets(1, S, 10, slots=8)
    for number in range(1, 9):
        table.take(key(number), 1, START)
    for number in range(11, 19):
        assert table.take(key(number), 1, START + 2 * S) == 0
    assert table.forgotten == 0


@pytest.mark.parametrize(
    ("count", "period_ns", "burst"), [(0, S, 1), (1, 0, 1), (1, S, 0), (-1, S, 1), (1, 1 << 62, 4)]
)
def test_rates_that_make_no_sense(count, period_ns, burst):
    with pytest.raises(ValueError, match=r"positive|centuries"):
        Rate(count, period_ns, burst, START)


@pytest.mark.parametrize("slots", [0, 4, 12, 65])
def test_memory_that_is_no_table(slots):
    with pytest.raises(ValueError, match="power of two"):
        buckets(1, S, 1, slots)


def test_keys_and_costs_are_checked():
    table = buckets(1, S, 1)
    with pytest.raises(ValueError, match="16 bytes"):
        table.take(b"short", 1, START)
    with pytest.raises(ValueError, match="negative"):
        table.take(KEY, -1, START)
    with pytest.raises(ValueError, match="negative"):
        table.wait(KEY, -1, START)
    with pytest.raises(ValueError, match="negative"):
        table.charge(KEY, -1, START)
    with pytest.raises(ValueError, match="given back"):
        table.give_back(KEY, 2)


# --- against the model --------------------------------------------------------------------------------

PERIODS = st.sampled_from([S, 60 * S, 3600 * S, 86_400 * S])


class Story(RuleBasedStateMachine):
    """Anything may be taken, charged, given back and looked at, in any order, as time passes."""

    @initialize(count=st.integers(1, 100_000_000), period=PERIODS, burst=st.integers(1, 10_000))
    def begin(self, count, period, burst) -> None:
        if count // gcd(count, period) > 64:
            count = max(1, count // 10**6 * 10**6)  # these are rounded, see below
            if count // gcd(count, period) > 64:
                count = 7
        self.table, self.model = buckets(count, period, burst), Model(count, period, burst)
        self.now, self.taken = START, 0

    @rule(cost=st.integers(0, 12_000))
    def take(self, cost) -> None:
        got = self.table.take(KEY, cost, self.now)
        assert got == self.model.take(cost, self.now)
        if got == 0:
            self.taken = cost

    @rule(units=st.integers(0, 50_000))
    def charge(self, units) -> None:
        self.table.charge(KEY, units, self.now)
        self.model.charge(units, self.now)

    @rule(units=st.integers(0, 12_000))
    def give_back(self, units) -> None:
        units = min(units, self.taken)
        self.taken -= units
        self.table.give_back(KEY, units)
        self.model.give_back(units)

    @rule(passed=st.one_of(st.integers(0, 1000), st.integers(0, 10 * S), st.integers(0, 100_000 * S)))
    def time_passes(self, passed) -> None:
        self.now += passed

    @rule(cost=st.integers(0, 12_000))
    def look(self, cost) -> None:
        assert self.table.left(KEY, self.now) == self.model.left(self.now)
        assert self.table.wait(KEY, cost, self.now) == self.model.wait(cost, self.now)
        assert self.table.full_in(KEY, self.now) == self.model.full_in(self.now)


def test_any_story():
    run_state_machine_as_test(Story)


STEP = st.tuples(st.integers(1, 40), st.sampled_from(["take", "charge", "give back"]), st.integers(0, 12))


@given(st.lists(STEP, max_size=200))
@settings(deadline=None)
def test_in_a_table_that_is_too_small_nobody_is_denied_what_he_could_have_had(steps):
    table, models, held, now = buckets(10, S, 10, slots=8), {}, {}, START
    for number, what, units in steps:
        model = models.setdefault(number, Model(10, S, 10))
        if what == "take":
            if table.take(key(number), units, now) == 0:
                held[number] = held.get(number, 0) + units
                model.charge(units, now)  # whether it had them or not
            else:
                assert model.wait(units, now) != 0
        elif what == "charge":
            table.charge(key(number), units, now)
            model.charge(units, now)
        else:
            units = min(units, held.get(number, 0), 10)
            held[number] = held.get(number, 0) - units
            table.give_back(key(number), units)
            model.give_back(units)
        now += 7_000_000


@given(st.integers(1, 10_000_000), PERIODS)
def test_a_rate_that_is_rounded_is_never_faster_and_hardly_slower(count, period_ns):
    table, exact = buckets(count, period_ns, 1), Fraction(period_ns, count)
    assert table.take(KEY, 1, START) == 0
    wait = table.take(KEY, 1, START)
    assert exact <= wait <= exact + 1 + exact / 1_000_000
