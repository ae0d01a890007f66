# relayd/_fast/bucket.pxd -- how much of something somebody may have now.
#
# A bucket is GCRA (ITU-T I.371, 1996) in one int64: the time at which it will be full again.  Taking
# moves that time on by what was taken; a bucket may be behind by at most its burst.  A bucket that was never
# seen is a full one, so a table may forget any bucket whose time has passed without anybody noticing.
#
# Times are ticks since the rate was made.  A tick is 1/scale of a nanosecond, and scale is chosen so that
# a whole number of ticks lies between two units: then nothing is ever rounded.  Only rates that would need
# more than 64 ticks a nanosecond (7,919 a second, say) are slower than asked for, by less than one part in
# a million.
#
# All times given are CLOCK_MONOTONIC nanoseconds and must not run backwards by more than the epoch's age.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    SCALE_AT_MOST = 64
    PROBES = 8                  # slots in which a key may lie

cdef struct Slot:
    uint64_t low                # the key; both halves 0 in a free slot
    uint64_t high
    int64_t full_at             # ticks


cdef class Rate:
    cdef readonly int64_t count         # units ...
    cdef readonly int64_t period_ns     # ... in this time
    cdef readonly int64_t burst         # units in a full bucket
    cdef int64_t epoch_ns
    cdef int64_t scale                  # ticks a nanosecond
    cdef int64_t interval               # ticks a unit

    cdef int64_t ticks(self, int64_t now_ns) noexcept nogil

    # Take `cost` units of the bucket.  0: taken; otherwise nothing was, and it is how many nanoseconds must
    # pass before it could be (rounded up); -1 if the bucket never holds as much.
    cdef int64_t take(self, int64_t* full_at, int64_t cost, int64_t now_ns) noexcept nogil

    # Give back what was taken and not used.
    cdef void give_back(self, int64_t* full_at, int64_t units) noexcept nogil

    # Units that could be taken now.
    cdef int64_t left(self, int64_t full_at, int64_t now_ns) noexcept nogil


# Buckets of one rate by 128-bit key, in memory that was handed in.
cdef class Buckets:
    cdef readonly Rate rate
    cdef readonly Py_ssize_t capacity   # slots, a power of two
    cdef object memory                  # who owns the slots
    cdef Slot* slots
    cdef readonly uint64_t forgotten    # buckets that were behind and had to make room

    cdef Slot* find(self, uint64_t low, uint64_t high, int64_t now_ns) noexcept nogil
    cdef int64_t take_of(self, uint64_t low, uint64_t high, int64_t cost, int64_t now_ns) noexcept nogil
