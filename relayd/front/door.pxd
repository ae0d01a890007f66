# relayd/front/door.pxd -- the C types of door.py: docs/decisions/004.

cimport cython
from libc.stdint cimport int64_t

from relayd._fast.head cimport RequestHead, is_one_message
from relayd._fast.leg cimport RequestBody
from relayd._fast.sink cimport HttpSink
from relayd._fast.turn cimport Outlet, Turn
from relayd.records cimport Client, Exchange, Route


cdef int IDLE
cdef int HEAD
cdef int EXCHANGE
cdef int CLOSING
cdef int SINK_NEW
cdef int SINK_ABORTED
cdef int REQUESTS
cdef int HEADS
cdef int PHASES


cdef class Door:
    cdef object house
    cdef object driver
    cdef Turn turn
    cdef readonly object transport
    cdef readonly Outlet outlet
    cdef readonly Client client
    cdef object parser
    cdef object messages                # a deque
    cdef readonly int state
    cdef readonly Exchange exchange
    cdef object payload
    cdef readonly HttpSink sink
    cdef bytes arrived
    cdef bytes seam
    cdef bytes first_line
    cdef int64_t since_ns
    cdef int64_t write_since_ns
    cdef Py_ssize_t last_buffered
    cdef Py_ssize_t head_bytes
    cdef Py_ssize_t wire_bytes
    cdef bint line_known
    cdef bint alone
    cdef bint unfinished
    cdef bint advancing
    cdef bint pumping
    cdef bint closing
    cdef bint write_paused
    cdef readonly bint _reading_paused
    cdef bint queue_full
    cdef int in_a_row
    cdef bint yielding

    cpdef object data_received(self, bytes data)
    cdef object _receive(self, bytes data)
    cdef bint _parse(self, bytes data) except -1
    cdef object _receive_heads(self, bytes data)
    cdef object _receive_body(self, bytes data)
    cdef object _receive_pieces(self, bytes data)
    cdef bint _receive_head(self, bytes piece) except -1
    cdef object _next_message(self)

    @cython.locals(
        head=RequestHead, sink=HttpSink, route=Route, body=RequestBody, now=int64_t, declared=Py_ssize_t,
        minor=int)
    cdef object _begin(self, object message, object payload)
    cdef object _take_arrived(self, RequestBody body)
    cpdef object _pump(self)
    cdef bint _pump_some(self) except -1
    cdef object _body_has_come(self, object payload, RequestBody body)
    cdef bint _has_parse_error(self) except -1
    cdef bint _is_mostly_framing(self, object payload, RequestBody body) except -1

    @cython.locals(sink=HttpSink)
    cpdef object exchange_ended(self, Exchange exchange)
    cdef object _finish_closing(self)
