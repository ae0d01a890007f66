"""What is under way, and what was used in a window, is counted to the unit; forgetting only favours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from relayd._fast.bucket import LAST_WINDOW, QUOTA_AT_MOST, Counts, Quotas

KEY = bytes(range(16))


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def counts(slots: int = 64) -> Counts:
    return Counts(bytearray(slots * Counts.SLOT_SIZE))


def quotas(slots: int = 64) -> Quotas:
    return Quotas(bytearray(slots * Quotas.SLOT_SIZE))


# --- at the same time ---------------------------------------------------------------------------------


def test_so_many_and_no_more_until_one_comes_back():
    table = counts()
    assert [table.take(KEY, 3) for _ in range(5)] == [True] * 3 + [False] * 2
    table.give_back(KEY)
    assert [table.take(KEY, 3), table.take(KEY, 3), table.count(KEY)] == [True, False, 3]


def test_a_bound_that_has_become_smaller_holds_at_once():
    table = counts()
    assert [table.take(KEY, 5) for _ in range(5)] == [True] * 5
    assert not table.take(KEY, 2)
    for _ in range(4):
        table.give_back(KEY)
    assert table.take(KEY, 2)


def test_nothing_is_ever_below_zero():
    table = counts()
    table.give_back(KEY)
    table.take(KEY, 1)
    table.give_back(KEY)
    table.give_back(KEY)
    assert table.count(KEY) == 0
    assert [table.take(KEY, 1), table.take(KEY, 1)] == [True, False]


def test_keys_with_nothing_under_way_make_room_unnoticed():
    table = counts(slots=8)
    for number in range(1, 100):
        assert table.take(key(number), 1)
        table.give_back(key(number))
    assert table.forgotten == 0


def test_a_full_table_forgets_the_smallest():
    table = counts(slots=8)
    for number in range(1, 9):
        for _ in range(number + 1):
            table.take(key(number), 10)
    assert table.take(key(9), 1)
    assert table.forgotten == 1
    assert [table.count(key(number)) for number in range(1, 10)] == [0, 3, 4, 5, 6, 7, 8, 9, 1]
    table.give_back(key(1))  # of the one that was forgotten
    assert table.count(key(9)) == 1


def test_looking_forgets_nobody():
    table = counts(slots=8)
    for number in range(1, 9):
        table.take(key(number), 1)
    assert [table.count(key(number)) for number in range(9, 50)] == [0] * 41
    assert [table.count(key(number)) for number in range(1, 9)] == [1] * 8


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=300), st.sampled_from([8, 64]))
@settings(deadline=None)
def test_nobody_is_denied_whose_requests_are_fewer(steps, slots):
    table, under_way = counts(slots), dict.fromkeys(range(1, 31), 0)
    for number, begins in steps:
        if begins:
            had = table.take(key(number), 3)
            assert had or under_way[number] >= 3
            assert slots == 8 or had == (under_way[number] < 3)
            under_way[number] += had
        elif under_way[number]:
            table.give_back(key(number))
            under_way[number] -= 1
        assert 0 <= table.count(key(number)) <= under_way[number]


# --- in a window --------------------------------------------------------------------------------------


def test_ten_of_fifty():
    table = quotas()
    assert sum(table.take(KEY, 1, 7, 10) for _ in range(50)) == 10
    assert table.used(KEY, 7) == 10
    assert table.take(KEY, 1, 8, 10)
    assert table.used(KEY, 8) == 1


def test_what_is_too_much_uses_nothing():
    table = quotas()
    assert table.take(KEY, 7, 1, 10)
    assert not table.take(KEY, 4, 1, 10)
    assert table.take(KEY, 3, 1, 10)
    assert [table.take(KEY, 0, 1, 10), table.take(KEY, 1, 1, 10)] == [True, False]


def test_only_what_was_used_in_this_window_comes_back():
    table = quotas()
    table.take(KEY, 8, 1, 10)
    table.take(KEY, 5, 2, 10)
    table.give_back(KEY, 8, 1)
    assert table.used(KEY, 2) == 5
    table.give_back(KEY, 5, 2)
    assert table.used(KEY, 2) == 0
    table.give_back(KEY, 5, 2)
    assert table.used(KEY, 2) == 0


def test_what_is_charged_is_used_even_beyond_the_quota():
    table = quotas()
    table.take(KEY, 8, 1, 10)
    table.charge(KEY, 5, 1)
    assert table.used(KEY, 1) == 13
    assert not table.take(KEY, 0, 1, 10)
    table.give_back(KEY, 4, 1)
    assert [table.take(KEY, 1, 1, 10), table.take(KEY, 1, 1, 10)] == [True, False]
    assert table.take(KEY, 10, 2, 10)


def test_a_clock_that_is_set_back_over_a_border_gives_no_second_quota():
    table = quotas()
    windows = [5, 6] * 50
    assert sum(table.take(KEY, 1, window, 10) for window in windows for _ in range(3)) == 13
    assert table.window(KEY, 5) == 6
    assert table.used(KEY, 5) == table.used(KEY, 6) == 10
    assert not table.take(KEY, 1, 5, 10)
    assert table.take(KEY, 1, 7, 10)


@pytest.mark.parametrize("wrong", [9, 100, 2000, LAST_WINDOW])
def test_a_clock_that_was_far_ahead_leaves_nothing_behind(wrong):
    table = quotas()
    table.charge(KEY, 100, wrong)
    assert table.used(KEY, 7) == 0
    assert table.take(KEY, 10, 7, 10)
    assert not table.take(KEY, 1, 7, 10)


def test_more_than_can_be_counted_is_the_most_that_can_be():
    table = quotas()
    for units in (QUOTA_AT_MOST, 1, (1 << 63) - 1):
        table.charge(KEY, units, LAST_WINDOW)
        assert table.used(KEY, LAST_WINDOW) == QUOTA_AT_MOST
    assert not table.take(KEY, 1, LAST_WINDOW, (1 << 63) - 1)
    assert not table.take(KEY, (1 << 63) - 1, LAST_WINDOW, 10)
    assert table.take(KEY, QUOTA_AT_MOST, 0, (1 << 63) - 1)


def test_asking_for_more_than_there_ever_is_forgets_nobody():
    table, full = counts(slots=8), quotas(slots=8)
    for number in range(1, 9):
        table.take(key(number), 1)
        full.take(key(number), 1, 3, 10)
    for number in range(9, 30):
        assert not table.take(key(number), 0)
        assert not full.take(key(number), 11, 3, 10)
    assert table.forgotten == full.forgotten == 0
    assert not full.take(key(50), 11, 7, 10)
    assert full.window(key(50), 6) == 6


def test_windows_that_are_over_make_room_unnoticed():
    table = quotas(slots=8)
    for window in range(20):
        for number in range(8):
            assert table.take(key(8 * window + number + 1), 1, window, 1)
    assert table.forgotten == 0


def test_a_full_table_forgets_who_used_least():
    table = quotas(slots=8)
    for number in range(1, 9):
        table.take(key(number), number, 3, 10)
    assert table.take(key(9), 1, 3, 10)
    assert table.forgotten == 1
    assert [table.used(key(number), 3) for number in range(1, 10)] == [0, 2, 3, 4, 5, 6, 7, 8, 1]
    table.give_back(key(1), 1, 3)
    assert [table.used(key(number), 3) for number in range(1, 10)] == [0, 2, 3, 4, 5, 6, 7, 8, 1]


class Story(RuleBasedStateMachine):
    """One key's window moves on, back by one, and wherever a broken clock says."""

    @initialize(most=st.integers(1, 100), window=st.integers(0, 1000))
    def begin(self, most, window) -> None:
        self.table, self.most, self.window = quotas(), most, window
        self.used = {}  # by the window in which it was counted
        self.held = []  # (units, the window)
        self.counted_in = None

    def use(self, units) -> None:
        if self.counted_in not in (self.window, self.window + 1):
            self.counted_in = self.window
            self.used = {self.window: 0}
        self.used[self.counted_in] += units

    def used_now(self) -> int:
        return self.used[self.counted_in] if self.counted_in in (self.window, self.window + 1) else 0

    @rule(units=st.integers(0, 120))
    def take(self, units) -> None:
        had = self.table.take(KEY, units, self.window, self.most)
        assert had == (self.used_now() + units <= self.most)
        if had:
            self.use(units)
            assert self.table.window(KEY, self.window) == self.counted_in
            self.held.append((units, self.counted_in))

    @rule(units=st.integers(0, 500))
    def charge(self, units) -> None:
        self.table.charge(KEY, units, self.window)
        self.use(units)

    @rule(which=st.integers(0, 100))
    def give_back(self, which) -> None:
        if self.held:
            units, window = self.held.pop(which % len(self.held))
            self.table.give_back(KEY, units, window)
            if window in self.used:
                self.used[window] = max(0, self.used[window] - units)

    @rule(step=st.sampled_from([1, 1, 1, -1, -2, 2, 30, -30]))
    def clock_moves(self, step) -> None:
        self.window = max(0, self.window + step)

    @rule()
    def look(self) -> None:
        assert self.table.used(KEY, self.window) == self.used_now()


def test_any_story():
    run_state_machine_as_test(Story, settings=settings(deadline=None))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=300))
@settings(deadline=None)
def test_in_a_table_that_is_too_small_nobody_is_denied_what_he_could_have_had(steps):
    table, used = quotas(slots=8), {}
    for at, (number, units) in enumerate(steps):
        window = 1 + at // 100
        before = used.get((number, window), 0)
        if table.take(key(number), units, window, 10):
            used[number, window] = before + units
        else:
            assert before + units > 10
        assert table.used(key(number), window) <= used.get((number, window), 0)


def test_keys_units_and_windows_are_checked():
    with pytest.raises(ValueError, match="16 bytes"):
        counts().take(b"short", 1)
    for units, window in [(-1, 1), (1, -1), (1, LAST_WINDOW + 1)]:
        with pytest.raises(ValueError, match="negative"):
            quotas().take(KEY, units, window, 10)
        with pytest.raises(ValueError, match="negative"):
            quotas().charge(KEY, units, window)
        with pytest.raises(ValueError, match="negative"):
            quotas().give_back(KEY, units, window)
    with pytest.raises(ValueError, match="power of two"):
        counts(slots=12)
    with pytest.raises(ValueError, match="power of two"):
        quotas(slots=4)
    with pytest.raises((TypeError, BufferError)):
        Counts(b"read only" * 100)
