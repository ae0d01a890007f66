# relayd/phases/account.pxd -- the C types of account.py: docs/decisions/004.

cimport cython
from libc.stdint cimport int64_t

from relayd._fast.leg cimport Leg
from relayd._fast.meters cimport Cost, Histogram, Meters, cost_of
from relayd.records cimport Exchange, Fleet, Route


cdef class Books:
    cdef public object metrics
    cdef public Fleet fleet
    cdef public object log
    cdef public bytes pseudonym
    cdef dict pairs
    cdef dict requests
    cdef Histogram decision
    cdef readonly Histogram bookkeeping
    cdef dict seen

    cpdef object began(self)
    cdef str _shown(self, str text)

    @cython.locals(route=Route, meters=Meters, cost=Cost, worker=str, ended_ns=int64_t)
    cpdef Cost ended(self, Exchange exchange, int code, str outcome, Leg leg)
    cdef object _count(self, Exchange exchange, Meters meters, int code, str outcome)

    @cython.locals(ended_ns=int64_t)
    cdef object _write(self, Exchange exchange, int code, str outcome, Leg leg, Cost cost)


@cython.locals(estimate=int64_t)
cdef Cost cost_for(Exchange exchange, Leg leg)

cdef object ms(int64_t ns)
cdef object line_tokens(Cost cost)
