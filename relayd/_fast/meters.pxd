# relayd/_fast/meters.pxd -- counting at a price that may be paid for every request.
#
# A Histogram keeps its counts in a C array; nothing is allocated after construction.  Reading it is rare
# (a scrape), so reading does the work: observe() finds one bucket and adds one.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    BUCKETS_AT_MOST = 40


cdef class Histogram:
    cdef readonly tuple bounds              # upper bounds in seconds, rising
    cdef int size
    cdef int64_t[BUCKETS_AT_MOST] limits_ns
    cdef uint64_t[BUCKETS_AT_MOST] counts   # counts[size] is beyond the last bound
    cdef uint64_t observations
    cdef double total_ns

    # Count a duration of `ns` nanoseconds; negative ones count as 0.
    cpdef int observe_ns(self, int64_t ns) except -1
