# relayd/phases/driver.pxd -- the C types of driver.py: docs/decisions/004.

cimport cython
from libc.stdint cimport int64_t

from relayd._fast.head cimport RequestHead
from relayd._fast.leg cimport Leg, Limits, Pool, RequestBody, Sweeper, Terms
from relayd.auth.authenticator cimport Authenticator
from relayd.limits.addresses cimport Addresses
from relayd.limits.tenants cimport Limiter
from relayd.phases.account cimport Books
from relayd.phases.admit cimport admit
from relayd.phases.authenticate cimport authenticate
from relayd.phases.decide cimport decide
from relayd.phases.decode cimport decode, has_seen_enough, is_held_to_model, permit, rename_model
from relayd.phases.limit cimport limit, reserve, settle
from relayd.records cimport Client, Exchange, Fleet, Route, Worker


cdef int COMPLETE
cdef int LEG_ENDED
cdef int SINK_NEW
cdef int SINK_STARTED


cdef class Driver:
    cdef public object settings
    cdef public Fleet fleet
    cdef public object policy
    cdef public Sweeper sweeper
    cdef public Books books
    cdef public object discovery
    cdef public Limits limits
    cdef public int64_t total_ns
    cdef public dict terms
    cdef public bint asks_for_usage
    cdef public object rests
    cdef public object budget
    cdef public Addresses addresses
    cdef public Authenticator authenticator
    cdef public Limiter limiter
    cdef public object wall
    cdef public Py_ssize_t max_body
    cdef public Py_ssize_t max_held
    cdef public bint reveal
    cdef public Py_ssize_t held_bytes
    cdef public bint draining

    cpdef object begin(self, Exchange exchange)
    cdef object _authenticate(self, Exchange exchange, Authenticator authenticator)
    cdef object _limit(self, Exchange exchange)
    cdef int64_t _patience_ns(self, RequestHead head) except -1
    cdef bytes _answer_lines(self, Exchange exchange, Worker worker)

    @cython.locals(body=RequestBody)
    cdef object _gather(self, Exchange exchange)
    cpdef object body_arrived(self, Exchange exchange)
    cdef object _body_arrived(self, Exchange exchange)

    @cython.locals(held=Py_ssize_t)
    cdef bint _hold(self, Exchange exchange) except -1
    cpdef object body_failed(self, Exchange exchange, object refused)
    cpdef bint wants_whole_body(self, Exchange exchange) except -1

    @cython.locals(worker=Worker, started=int64_t)
    cdef object _decode(self, Exchange exchange)

    @cython.locals(head=RequestHead, body=RequestBody, client=Client, pool=Pool, leg=Leg, length=Py_ssize_t)
    cdef object _forward(self, Exchange exchange, Worker worker)

    @cython.locals(exchange=Exchange)
    cpdef int judge_event(self, Leg leg, bytes event) except -1

    @cython.locals(exchange=Exchange, worker=Worker)
    cpdef object leg_ended(self, Leg leg)
    cpdef object fail(self, Exchange exchange, object why, Leg leg=*)

    @cython.locals(started=int64_t)
    cdef object _finish(self, Exchange exchange, int code, str outcome, Leg leg=*)
