# relayd/records.pxd -- the C types of what records.py describes.
#
# records.py says what each field means.  Compiled code reads them as a struct's fields, Python code as
# attributes; the types are checked on assignment.

from libc.stdint cimport int64_t

from relayd._fast.head cimport RequestHead
from relayd._fast.leg cimport Leg, Pool, RequestBody
from relayd._fast.sink cimport Sink


cdef class Worker:
    cdef public str name
    cdef public str url
    cdef public Pool pool
    cdef public bytes line
    cdef public bytes lines
    cdef public frozenset line_names
    cdef public bint has_key
    cdef public frozenset models
    cdef public bint up
    cdef public int failures
    cdef public int rests
    cdef public int64_t resting_until_ns
    cdef public int64_t busy_until_ns
    cdef public bint probing
    cdef public int64_t open_at_ns


cdef class Model:
    cdef readonly str name
    cdef readonly object workers
    cdef readonly dict names

    cpdef str name_at(self, Worker worker)


cdef class Fleet:
    cdef public object workers
    cdef public dict by_pool
    cdef readonly dict declared
    cdef readonly object passthrough
    cdef public frozenset models
    cdef readonly bint renames
    cdef readonly dict _serving

    cpdef object serving(self, str model)
    cpdef str name_at(self, str model, Worker worker)


cdef class Route:
    cdef readonly str name
    cdef readonly object dialect
    cdef readonly int terminator
    cdef readonly str body
    cdef readonly bint uncached_input


cdef class Client:
    cdef public str address
    cdef public bytes host
    cdef public bytes lines
    cdef public bytes credential
    cdef public bint in_authorization
    cdef public bytes digest


cdef class Exchange:
    cdef public object door
    cdef public RequestHead head
    cdef public Sink sink
    cdef public RequestBody body
    cdef public Client client
    cdef public Route route
    cdef public int64_t arrived_ns
    cdef public int64_t ready_ns
    cdef public int64_t decision_ns
    cdef public int64_t leg_ns
    cdef public str tenant
    cdef public str tier
    cdef public str fault
    cdef public str address
    cdef public str phase
    cdef public frozenset allowed
    cdef public object grant
    cdef public str model
    cdef public str asked
    cdef public bint stream
    cdef public bint strip_usage
    cdef public object facts
    cdef public list tried
    cdef public Worker next_worker
    cdef public int retries
    cdef public Leg leg
    cdef public Py_ssize_t searched
    cdef public Py_ssize_t held_bytes
    cdef public str outcome
    cdef public bint ended
