# relayd/_fast/bucket.pxd -- how much of something somebody may have now.
#
# Three tables by 128-bit key, each with one int64 a slot that is changed with __atomic built-ins:
#
#   Buckets   how often: a rate that fills up again with time
#   Counts    how many at the same time
#   Quotas    how much in one window (an hour, a day, a month) of the calendar
#
# Slots lie in memory that was handed in.  A key lies in one of eight slots.  A slot that says nothing (a
# full bucket, a count of 0, a window that is over) is free for others without anybody noticing; when all
# eight say something, the one that says least is forgotten, which can only favour whoever it belonged to.  So
# what is given back to a slot that is not there any more is dropped, and looking at a key, or asking for more
# than it could ever have, makes no slot.
#
# A bucket is GCRA (ITU-T I.371, 1996) in one int64: the time at which it will be full again.  Taking
# moves that time on by what was taken; a bucket may be behind by at most its burst.  What was used without
# having been asked for is charged, and may leave it further behind: a debt, which time pays.
#
# Times are ticks since the rate was made.  A tick is 1/scale of a nanosecond, and scale is chosen so that
# a whole number of ticks lies between two units: then nothing is ever rounded.  Only rates that would need
# more than 64 ticks a nanosecond (7,919 a second, say) are slower than asked for, by less than a tick a unit.
#
# All times given are CLOCK_MONOTONIC nanoseconds and must not run backwards by more than the epoch's age.
# Units are never negative.  Nothing here raises but the wrappers with a bytes key, which check what they get.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    SCALE_AT_MOST = 64
    PROBES = 8                  # slots in which a key may lie
    UNITS_BITS = 42             # of a quota's word; the window's number has the 21 above them

cdef struct Slot:
    uint64_t low                # the key; both halves 0 in a slot that was never used
    uint64_t high
    int64_t word                # Buckets: full again at, in ticks; Counts: how many; Quotas: window and units


cdef class Rate:
    cdef readonly int64_t count         # units ...
    cdef readonly int64_t period_ns     # ... in this time
    cdef readonly int64_t burst         # units in a full bucket
    cdef int64_t epoch_ns
    cdef int64_t scale                  # ticks a nanosecond
    cdef int64_t interval               # ticks a unit

    cdef int64_t ticks(self, int64_t now_ns) noexcept nogil

    # How many nanoseconds must pass before `cost` units could be taken (rounded up); 0: they could be now;
    # -1: the bucket never holds as much.
    cdef int64_t wait(self, int64_t full_at, int64_t cost, int64_t now_ns) noexcept nogil

    # Take `cost` units of the bucket and return 0; or take nothing and return what wait() does.
    cdef int64_t take(self, int64_t* full_at, int64_t cost, int64_t now_ns) noexcept nogil

    # Take `units` whether they are there or not; a debt ends where an int64 would.
    cdef void charge(self, int64_t* full_at, int64_t units, int64_t now_ns) noexcept nogil

    # Give back what was taken and not used.
    cdef void give_back(self, int64_t* full_at, int64_t units) noexcept nogil

    # Units that could be taken now.
    cdef int64_t left(self, int64_t full_at, int64_t now_ns) noexcept nogil

    # Nanoseconds until the bucket is full again, rounded up.
    cdef int64_t full_in(self, int64_t full_at, int64_t now_ns) noexcept nogil


# Slots in memory that was handed in, and what all three tables do with them.
cdef class Table:
    cdef readonly Py_ssize_t capacity   # slots, a power of two
    cdef readonly uint64_t forgotten    # slots that said something and had to make room
    cdef object memory                  # who owns the slots
    cdef Slot* slots

    cdef int use(self, object memory) except -1     # ValueError: too small, or no power of two

    # The slot of a key, or NULL.
    cdef Slot* look(self, uint64_t low, uint64_t high) noexcept nogil

    # The slot of a key.  If there is none, a slot that nobody has had, or the one with the smallest word
    # becomes it, with the word `nothing`, which is what a slot has that says nothing now.
    cdef Slot* find(self, uint64_t low, uint64_t high, int64_t nothing) noexcept nogil


# Each function of the three tables with the halves of a key has a wrapper with the key as 16 bytes.

# Buckets of one rate.
cdef class Buckets(Table):
    cdef readonly Rate rate

    cpdef int64_t take_of(self, uint64_t low, uint64_t high, int64_t cost, int64_t now_ns) noexcept nogil
    cpdef int64_t wait_of(self, uint64_t low, uint64_t high, int64_t cost, int64_t now_ns) noexcept nogil
    cpdef void charge_of(self, uint64_t low, uint64_t high, int64_t units, int64_t now_ns) noexcept nogil
    cpdef void give_back_of(self, uint64_t low, uint64_t high, int64_t units) noexcept nogil
    cpdef int64_t left_of(self, uint64_t low, uint64_t high, int64_t now_ns) noexcept nogil
    cpdef int64_t full_in_of(self, uint64_t low, uint64_t high, int64_t now_ns) noexcept nogil


# How many are under way.
cdef class Counts(Table):
    # Count one more and return True, or return False where there are `most` already.
    cpdef bint take_of(self, uint64_t low, uint64_t high, int64_t most) noexcept nogil

    # Count one less.  Never below 0: the one that is given back may have been forgotten.
    cpdef void give_back_of(self, uint64_t low, uint64_t high) noexcept nogil

    cpdef int64_t count_of(self, uint64_t low, uint64_t high) noexcept nogil


# How much was used in a window.  Windows are numbered; all of one table are of one length.
#
# Wall clocks are set back.  Where a key has been counted in the window after the one that is given, it goes
# on being counted there, or each step over a border would be a new quota; where it was counted in a later
# one still, the clock had been wrong, and the key begins anew.
cdef class Quotas(Table):
    # Use `units` if no more than `most` are used then.  Returns the window in which they were counted, for
    # give_back; or, if they would be too many, ~window (which is negative) of that in which they are.
    cpdef int64_t take_of(
        self, uint64_t low, uint64_t high, int64_t units, int64_t window, int64_t most) noexcept nogil

    # Use `units` whatever the quota is.
    cpdef void charge_of(self, uint64_t low, uint64_t high, int64_t units, int64_t window) noexcept nogil

    # Give back what was taken in `window`, if that is still the one that is counted.
    cpdef void give_back_of(self, uint64_t low, uint64_t high, int64_t units, int64_t window) noexcept nogil

    cpdef int64_t used_of(self, uint64_t low, uint64_t high, int64_t window) noexcept nogil

    # The window in which a key is counted: `window`, or the one after it.
    cpdef int64_t window_of(self, uint64_t low, uint64_t high, int64_t window) noexcept nogil
