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

LONGEST = 1 << 61               # ticks that a bucket may be behind: the rest of an int64 is for the time


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

    cdef int64_t take(self, int64_t* full_at, int64_t cost, int64_t now_ns) noexcept nogil:
        cdef int64_t now = self.ticks(now_ns), seen, behind, missing
        if cost > self.burst:
            return -1
        seen = load(full_at, RELAXED)
        while True:
            behind = seen - now if seen > now else 0
            missing = behind + cost * self.interval - self.burst * self.interval
            if missing > 0:
                return (missing + self.scale - 1) // self.scale
            if swap(full_at, &seen, now + behind + cost * self.interval, False, RELAXED, RELAXED):
                return 0

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


@cython.final
cdef class Buckets:
    """Buckets of `rate` by 16-byte key, in `memory`: a writable buffer of `capacity` times 24 bytes, zeroed.

    A key lies in one of eight slots.  When all are taken by others that are behind, the one that is least
    behind is forgotten: that can only favour whoever it belonged to.
    """

    SLOT_SIZE = sizeof(Slot)

    def __cinit__(self, Rate rate, object memory):
        cdef Py_buffer view
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        self.slots = <Slot*> view.buf
        self.capacity = view.len // <Py_ssize_t> sizeof(Slot)
        PyBuffer_Release(&view)         # `memory` is kept, and must not be resized
        self.memory = memory
        self.rate = rate
        if self.capacity < PROBES or self.capacity & (self.capacity - 1):
            raise ValueError("the memory must hold a power of two of slots, at least 8")

    cdef Slot* find(self, uint64_t low, uint64_t high, int64_t now_ns) noexcept nogil:
        """Return the slot of a key: its own, a free one, or the one that is least behind."""
        cdef uint64_t first = low & <uint64_t> (self.capacity - 1)
        cdef int i
        cdef Slot* slot
        cdef Slot* best = NULL
        for i in range(PROBES):
            slot = &self.slots[(first + <uint64_t> i) & <uint64_t> (self.capacity - 1)]
            if slot.low == low and slot.high == high:
                return slot
            if best is NULL or slot.full_at < best.full_at:
                best = slot
        if best.full_at > self.rate.ticks(now_ns):
            self.forgotten += 1
        best.low = low
        best.high = high
        best.full_at = self.rate.ticks(now_ns)
        return best

    cdef int64_t take_of(self, uint64_t low, uint64_t high, int64_t cost, int64_t now_ns) noexcept nogil:
        return self.rate.take(&self.find(low, high, now_ns).full_at, cost, now_ns)

    def take(self, bytes key, int64_t cost, int64_t now_ns):
        """Take `cost` units for `key`; return 0, or the nanoseconds to wait, or -1 for never."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        if cost < 0:
            raise ValueError("a cost is not negative")
        return self.take_of(halves[0], halves[1], cost, now_ns)

    def give_back(self, bytes key, int64_t units, int64_t now_ns):
        """Give `units` back that were taken for `key` and not used."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        if not 0 <= units <= self.rate.burst:
            raise ValueError("more is given back than could be taken")
        self.rate.give_back(&self.find(halves[0], halves[1], now_ns).full_at, units)

    def left(self, bytes key, int64_t now_ns):
        """Return how many units could be taken for `key` now."""
        cdef uint64_t[2] halves
        read_key(key, halves)
        return self.rate.left(self.find(halves[0], halves[1], now_ns).full_at, now_ns)


cdef int read_key(bytes key, uint64_t* halves) except -1:
    if PyBytes_GET_SIZE(key) != 16:
        raise ValueError("a key has 16 bytes")
    memcpy(halves, PyBytes_AS_STRING(key), 16)
    return 0
