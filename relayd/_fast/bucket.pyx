# cython: language_level=3
"""How much of something somebody may have now: see bucket.pxd."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from math import gcd

cdef extern from "debug.h" nogil:
    void RELAYD_CHECK(bint condition)

cdef extern from * nogil:
    int64_t load "__atomic_load_n" (int64_t* word, int order)
    bint swap "__atomic_compare_exchange_n" (
        int64_t* word, int64_t* expected, int64_t wanted, bint weak, int good, int bad)
    int RELAXED "__ATOMIC_RELAXED"

# Ticks that a bucket may be behind: the rest of an int64 is for the time.
cdef int64_t LONGEST = (<int64_t> 1) << 61

cdef int64_t UNITS_AT_MOST = ((<int64_t> 1) << UNITS_BITS) - 1
cdef int64_t WINDOW_AT_MOST = ((<int64_t> 1) << (63 - UNITS_BITS)) - 1

QUOTA_AT_MOST = UNITS_AT_MOST   # more than 4 * 10**12 units are not counted
LAST_WINDOW = WINDOW_AT_MOST    # of hours since 1970, that is in the year 2209


# --- rates ------------------------------------------------------------------------------------------

@cython.final
cdef class Rate:
    """`count` units every `period_ns` nanoseconds, and `burst` of them at once.

    Raises:
        ValueError: a number is not positive, or the burst would take centuries to come back.
    """

    def __init__(self, int64_t count, int64_t period_ns, int64_t burst, int64_t now_ns):
        cdef object ticks_a_unit
        if count < 1 or period_ns < 1 or burst < 1:
            raise ValueError("a rate's count, period and burst must be positive")
        self.count = count
        self.period_ns = period_ns
        self.burst = burst
        self.epoch_ns = now_ns
        self.scale = min(count // gcd(count, period_ns), <int64_t> SCALE_AT_MOST)
        ticks_a_unit = -(-int(period_ns) * int(self.scale) // int(count))       # rounded up: never too much
        if ticks_a_unit * int(burst) >= LONGEST:
            raise ValueError("a burst of this size would take centuries to come back")
        self.interval = ticks_a_unit

    cdef int64_t ticks(self, int64_t now_ns) noexcept nogil:
        return (now_ns - self.epoch_ns) * self.scale

    cdef int64_t wait(self, int64_t full_at, int64_t cost, int64_t now_ns) noexcept nogil:
        cdef int64_t now = self.ticks(now_ns), behind, missing
        if cost > self.burst:
            return -1
        behind = full_at - now if full_at > now else 0
        missing = behind + cost * self.interval - self.burst * self.interval
        return (missing + self.scale - 1) // self.scale if missing > 0 else 0

    cdef int64_t take(self, int64_t* full_at, int64_t cost, int64_t now_ns) noexcept nogil:
        cdef int64_t now = self.ticks(now_ns), seen = load(full_at, RELAXED), wait
        while True:
            wait = self.wait(seen, cost, now_ns)
            if wait:
                return wait
            if swap(full_at, &seen, max(seen, now) + cost * self.interval, False, RELAXED, RELAXED):
                return 0

    cdef void charge(self, int64_t* full_at, int64_t units, int64_t now_ns) noexcept nogil:
        cdef int64_t now = self.ticks(now_ns), seen = load(full_at, RELAXED), room, more
        while True:
            room = LONGEST - (max(seen, now) - now)
            if room <= 0:
                return
            more = units * self.interval if units <= room // self.interval else room
            if swap(full_at, &seen, max(seen, now) + more, False, RELAXED, RELAXED):
                return

    cdef void give_back(self, int64_t* full_at, int64_t units) noexcept nogil:
        cdef int64_t seen = load(full_at, RELAXED)
        while not swap(full_at, &seen, seen - units * self.interval, False, RELAXED, RELAXED):
            pass

    cdef int64_t left(self, int64_t full_at, int64_t now_ns) noexcept nogil:
        cdef int64_t behind = full_at - self.ticks(now_ns)
        if behind <= 0:
            return self.burst
        return (self.burst * self.interval - behind) // self.interval if (
            behind < self.burst * self.interval) else 0

    cdef int64_t full_in(self, int64_t full_at, int64_t now_ns) noexcept nogil:
        cdef int64_t behind = full_at - self.ticks(now_ns)
        return (behind + self.scale - 1) // self.scale if behind > 0 else 0


# --- tables -----------------------------------------------------------------------------------------

cdef inline Slot* place(Table table, uint64_t low, int probe) noexcept nogil:
    return &table.slots[(low + <uint64_t> probe) & <uint64_t> (table.capacity - 1)]


cdef class Table:
    """Slots by 16-byte key in `memory`: a writable buffer of `capacity` times SLOT_SIZE bytes, zeroed."""

    SLOT_SIZE = sizeof(Slot)

    cdef int use(self, object memory) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        self.slots = <Slot*> view.buf
        self.capacity = view.len // <Py_ssize_t> sizeof(Slot)
        PyBuffer_Release(&view)         # `memory` is kept, and must not be resized
        self.memory = memory
        if self.capacity < PROBES or self.capacity & (self.capacity - 1):
            raise ValueError("the memory must hold a power of two of slots, at least 8")
        return 0

    cdef Slot* look(self, uint64_t low, uint64_t high) noexcept nogil:
        cdef int i
        cdef Slot* slot
        for i in range(PROBES):
            slot = place(self, low, i)
            if slot.low == low and slot.high == high:
                return slot
        return NULL

    cdef Slot* find(self, uint64_t low, uint64_t high, int64_t nothing) noexcept nogil:
        cdef int i
        cdef Slot* slot
        cdef Slot* best = self.look(low, high)
        if best is not NULL:
            return best
        best = place(self, low, 0)
        for i in range(PROBES):
            slot = place(self, low, i)
            if slot.low == 0 and slot.high == 0:
                best = slot
                break
            if slot.word < best.word:
                best = slot
        if (best.low or best.high) and best.word > nothing:
            self.forgotten += 1
        best.low = low
        best.high = high
        best.word = nothing
        return best


@cython.final
cdef class Buckets(Table):
    """Buckets of `rate`: see bucket.pxd."""

    def __cinit__(self, Rate rate, object memory):
        self.rate = rate
        self.use(memory)

    cpdef int64_t take_of(self, uint64_t low, uint64_t high, int64_t cost, int64_t now_ns) noexcept nogil:
        if cost > self.rate.burst:
            return -1       # and nobody is forgotten for it
        return self.rate.take(&self.find(low, high, self.rate.ticks(now_ns)).word, cost, now_ns)

    cpdef int64_t wait_of(self, uint64_t low, uint64_t high, int64_t cost, int64_t now_ns) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        return self.rate.wait(self.rate.ticks(now_ns) if slot is NULL else slot.word, cost, now_ns)

    cpdef void charge_of(self, uint64_t low, uint64_t high, int64_t units, int64_t now_ns) noexcept nogil:
        self.rate.charge(&self.find(low, high, self.rate.ticks(now_ns)).word, units, now_ns)

    cpdef void give_back_of(self, uint64_t low, uint64_t high, int64_t units) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        if slot is not NULL:
            self.rate.give_back(&slot.word, units)

    cpdef int64_t left_of(self, uint64_t low, uint64_t high, int64_t now_ns) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        return self.rate.burst if slot is NULL else self.rate.left(slot.word, now_ns)

    cpdef int64_t full_in_of(self, uint64_t low, uint64_t high, int64_t now_ns) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        return 0 if slot is NULL else self.rate.full_in(slot.word, now_ns)

    def take(self, bytes key, int64_t cost, int64_t now_ns):
        """Take `cost` units for `key`; return 0, or the nanoseconds to wait, or -1 for never."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        if cost < 0:
            raise ValueError("a cost is not negative")
        return self.take_of(halves[0], halves[1], cost, now_ns)

    def wait(self, bytes key, int64_t cost, int64_t now_ns):
        """Return what take() would, and take nothing."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        if cost < 0:
            raise ValueError("a cost is not negative")
        return self.wait_of(halves[0], halves[1], cost, now_ns)

    def charge(self, bytes key, int64_t units, int64_t now_ns):
        """Take `units` for `key` whether they are there or not."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        if units < 0:
            raise ValueError("a charge is not negative")
        self.charge_of(halves[0], halves[1], units, now_ns)

    def give_back(self, bytes key, int64_t units):
        """Give `units` back that were taken for `key` and not used."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        if not 0 <= units <= self.rate.burst:
            raise ValueError("more is given back than could be taken")
        self.give_back_of(halves[0], halves[1], units)

    def left(self, bytes key, int64_t now_ns):
        """Return how many units could be taken for `key` now."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        return self.left_of(halves[0], halves[1], now_ns)

    def full_in(self, bytes key, int64_t now_ns):
        """Return the nanoseconds until the bucket of `key` is full again."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        return self.full_in_of(halves[0], halves[1], now_ns)


@cython.final
cdef class Counts(Table):
    """How many are under way: see bucket.pxd."""

    def __cinit__(self, object memory):
        self.use(memory)

    cpdef bint take_of(self, uint64_t low, uint64_t high, int64_t most) noexcept nogil:
        cdef int64_t* count
        cdef int64_t seen
        if most < 1:
            return False
        count = &self.find(low, high, 0).word
        seen = load(count, RELAXED)
        while seen < most:
            if swap(count, &seen, seen + 1, False, RELAXED, RELAXED):
                return True
        return False

    cpdef void give_back_of(self, uint64_t low, uint64_t high) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        cdef int64_t seen
        if slot is NULL:
            return
        seen = load(&slot.word, RELAXED)
        while seen > 0 and not swap(&slot.word, &seen, seen - 1, False, RELAXED, RELAXED):
            pass

    cpdef int64_t count_of(self, uint64_t low, uint64_t high) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        return 0 if slot is NULL else slot.word

    def take(self, bytes key, int64_t most):
        """Count one more for `key` and return True, or False where there are `most` already."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        return self.take_of(halves[0], halves[1], most)

    def give_back(self, bytes key):
        """Count one less for `key`."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        self.give_back_of(halves[0], halves[1])

    def count(self, bytes key):
        """Return how many are under way for `key`."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        return self.count_of(halves[0], halves[1])


@cython.final
cdef class Quotas(Table):
    """How much was used in a window: see bucket.pxd."""

    def __cinit__(self, object memory):
        self.use(memory)

    cpdef int64_t take_of(
            self, uint64_t low, uint64_t high, int64_t units, int64_t window, int64_t most) noexcept nogil:
        cdef int64_t* word
        cdef int64_t seen, used, counted_in
        most = min(most, UNITS_AT_MOST)
        if units > most:
            return ~self.window_of(low, high, window)
        word = &self.find(low, high, pack(window, 0)).word
        seen = load(word, RELAXED)
        while True:
            counted_in = window_for(seen, window)
            used = used_in(seen, window)
            if units > most - used:
                return ~counted_in
            if swap(word, &seen, pack(counted_in, used + units), False, RELAXED, RELAXED):
                return counted_in

    cpdef void charge_of(self, uint64_t low, uint64_t high, int64_t units, int64_t window) noexcept nogil:
        cdef int64_t* word = &self.find(low, high, pack(window, 0)).word
        cdef int64_t seen = load(word, RELAXED), used
        while True:
            used = used_in(seen, window)
            used += min(units, UNITS_AT_MOST - used)
            if swap(word, &seen, pack(window_for(seen, window), used), False, RELAXED, RELAXED):
                return

    cpdef void give_back_of(self, uint64_t low, uint64_t high, int64_t units, int64_t window) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        cdef int64_t seen, used
        if slot is NULL:
            return
        seen = load(&slot.word, RELAXED)
        while seen >> UNITS_BITS == window:
            used = seen & UNITS_AT_MOST
            used -= min(units, used)    # what was given may have been forgotten since
            if swap(&slot.word, &seen, pack(window, used), False, RELAXED, RELAXED):
                return

    cpdef int64_t used_of(self, uint64_t low, uint64_t high, int64_t window) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        return 0 if slot is NULL else used_in(slot.word, window)

    cpdef int64_t window_of(self, uint64_t low, uint64_t high, int64_t window) noexcept nogil:
        cdef Slot* slot = self.look(low, high)
        return window if slot is NULL else window_for(slot.word, window)

    def take(self, bytes key, int64_t units, int64_t window, int64_t most):
        """Use `units` for `key` and return True, or False if more than `most` would be used then."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        check_use(units, window)
        return self.take_of(halves[0], halves[1], units, window, most) >= 0

    def charge(self, bytes key, int64_t units, int64_t window):
        """Use `units` for `key` whatever its quota is."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        check_use(units, window)
        self.charge_of(halves[0], halves[1], units, window)

    def give_back(self, bytes key, int64_t units, int64_t window):
        """Give `units` back that `key` took in `window`, if that is still the one that is counted."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        check_use(units, window)
        self.give_back_of(halves[0], halves[1], units, window)

    def used(self, bytes key, int64_t window):
        """Return how much `key` has used."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        check_use(0, window)
        return self.used_of(halves[0], halves[1], window)

    def window(self, bytes key, int64_t window):
        """Return the window in which `key` is counted: `window`, or the one after it."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        check_use(0, window)
        return self.window_of(halves[0], halves[1], window)


# --- a quota's word ---------------------------------------------------------------------------------

cdef inline int64_t pack(int64_t window, int64_t used) noexcept nogil:
    RELAYD_CHECK(0 <= window <= WINDOW_AT_MOST and 0 <= used <= UNITS_AT_MOST)
    return window << UNITS_BITS | used


cdef inline int64_t window_for(int64_t word, int64_t window) noexcept nogil:
    """Return the window in which a slot is counted when the clock says `window`."""
    return window + 1 if word >> UNITS_BITS == window + 1 else window


cdef inline int64_t used_in(int64_t word, int64_t window) noexcept nogil:
    return word & UNITS_AT_MOST if word >> UNITS_BITS == window_for(word, window) else 0


# --- what wrappers check ----------------------------------------------------------------------------

cdef int read_key(bytes key, uint64_t* halves) except -1:
    if PyBytes_GET_SIZE(key) != 16:
        raise ValueError("a key has 16 bytes")
    memcpy(halves, PyBytes_AS_STRING(key), 16)
    return 0


cdef int check_use(int64_t units, int64_t window) except -1:
    if units < 0 or not 0 <= window <= WINDOW_AT_MOST:
        raise ValueError("units are not negative, and windows have numbers of 21 bits")
    return 0
