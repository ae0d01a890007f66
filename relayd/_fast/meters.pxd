# relayd/_fast/meters.pxd -- counting at a price that may be paid for every request.
#
# A Histogram keeps its counts in a C array; nothing is allocated after construction.  Reading it is rare
# (a scrape), so reading does the work: observe() finds one bucket and adds one.
#
# What an answer cost is worked out once, by cost_of(), and everybody who wants to know -- metrics, the log,
# limits -- is given the same Cost.

from libc.stdint cimport int64_t, uint64_t

from relayd._fast.leg cimport Leg

cdef enum:
    BUCKETS_AT_MOST = 40


cdef class Histogram:
    cdef readonly tuple bounds              # upper bounds in seconds, rising
    cdef tuple names                        # ... as text
    cdef int size
    cdef int64_t[BUCKETS_AT_MOST] limits_ns
    cdef uint64_t[BUCKETS_AT_MOST] counts   # counts[size] is beyond the last bound
    cdef uint64_t observations
    cdef double total_ns

    # Count a duration of `ns` nanoseconds; negative ones count as 0.
    cpdef int observe_ns(self, int64_t ns) except -1


# The tokens of one exchange; -1 where nothing is known.  Cached and written input are parts of `input`,
# reasoning is a part of `output`, whatever the worker's words for them.
cdef class Cost:
    cdef readonly int64_t input
    cdef readonly int64_t output
    cdef readonly int64_t cached_input
    cdef readonly int64_t cache_write
    cdef readonly int64_t reasoning
    cdef readonly bint input_estimated      # relayd's own number, not the worker's last word
    cdef readonly bint output_estimated


# What `leg` cost, whether it ended well or not.  `prompt_estimate` is used where the worker reported no
# input, -1 if tokens mean nothing here; `writes` says that answers on this route are made of tokens;
# `uncached_input` says that the reported input leaves the cached tokens out.
cpdef Cost cost_of(Leg leg, int64_t prompt_estimate, bint writes, bint uncached_input)


# Everything that is counted for every request, for one model on one worker.
cdef class Meters:
    cdef readonly str model                 # as a label
    cdef readonly str worker                # "" for exchanges that no worker answered
    cdef readonly Histogram ttft            # arrival to first content, of streams
    cdef readonly Histogram tpot            # per output token after the first, of streams
    cdef readonly Histogram duration        # arrival to end
    cdef readonly Histogram overhead        # of it, what no worker took
    # Tokens as workers reported them, and estimates where they did not.
    cdef readonly int64_t input_tokens
    cdef readonly int64_t output_tokens
    cdef readonly int64_t cached_input_tokens
    cdef readonly int64_t cache_write_tokens
    cdef readonly int64_t reasoning_tokens
    cdef readonly int64_t estimated_input_tokens
    cdef readonly int64_t estimated_output_tokens
    cdef readonly int64_t refused_usages

    # An exchange without an answer from a worker has ended.
    cpdef int ended(self, int64_t arrived_ns, int64_t now_ns) except -1

    # `leg` has answered it, at this `cost`.  `leg_ns` is what all its legs took.
    cpdef int answered(
        self, Leg leg, Cost cost, int64_t arrived_ns, int64_t ready_ns, int64_t leg_ns) except -1
    cdef int note_cost(self, Cost cost) except -1
