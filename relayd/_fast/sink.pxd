# relayd/_fast/sink.pxd -- where an answer goes.
#
# A door gives each exchange a Sink.  Whoever produces the answer (a Leg, or relayd itself) says what
# it is and hands over its bytes; the sink owns framing and is the only one who knows how the client
# wants it.  Nothing behind a sink knows which door it belongs to.
#
#     start -> write* -> end            the whole answer
#     start -> write* -> abort          an answer that must not look whole
#
# A Source is what fills a sink.  When the client cannot keep up the door pauses the sink and the sink
# pauses its source.

from relayd._fast.turn cimport Outlet

cpdef enum SinkState:
    SINK_NEW = 0
    SINK_STARTED = 1
    SINK_ENDED = 2
    SINK_ABORTED = 3

cdef enum:
    LENGTH_UNKNOWN = -1         # the body ends when end() is called
    LENGTH_NO_BODY = -2         # there is none, and no framing field either (204, 304)


cdef class Source:
    # Stop, or go on, producing.  Either may be called in any state and more than once.
    cdef int pause(self) except -1
    cdef int resume(self) except -1


cdef class Sink:
    cdef readonly int state             # a SinkState
    cdef readonly int status            # of the answer; 0 before start()
    cdef readonly bint paused           # the client's buffer is full
    cdef readonly long long bytes_written   # of body, before framing
    cdef Source source                  # who fills this sink; None between legs

    # Say what the answer is.  `lines` are "Name: value\r\n" lines without framing fields; `length` is
    # the body's size in bytes, LENGTH_UNKNOWN or LENGTH_NO_BODY.
    cpdef int start(self, int status, bytes lines, Py_ssize_t length) except -1

    # Hand over bytes of the body.  They may be kept until flush().
    cpdef int write(self, bytes data) except -1
    cpdef int flush(self) except -1

    # Hand over `size` bytes of the body that are whole chunks already, as chunk() makes them.  Only for a
    # sink that can append.
    cdef int write_chunks(self, bytes data, Py_ssize_t size) except -1

    # The answer is complete.
    cpdef int end(self) except -1

    # The answer stays incomplete, and the client must be able to see that.
    cpdef int abort(self) except -1

    # True if something of ours, such as an error event, may follow what was written: the framing
    # itself then shows that the answer is not whole.
    cpdef bint can_append(self)

    # For the door: the client cannot take more, or can again.
    cpdef int pause(self) except -1
    cpdef int resume(self) except -1

    cdef int attach(self, Source source) except -1
    cdef int detach(self) except -1


cdef class HttpSink(Sink):
    cdef Outlet outlet
    cdef readonly int version_minor     # of the client's HTTP/1.x
    cdef readonly bint head_request     # HEAD: the head alone is the answer
    cdef readonly bint keep_alive       # may the connection serve another request afterwards
    cdef int framing                    # see sink.pyx
    cdef Py_ssize_t remaining           # of a declared length
    cdef bytes unsent_head              # the head, until the first bytes of the body join it

    cdef bytes _head(self, int status, bytes lines, Py_ssize_t length)
    cdef int _send(self, bytes data) except -1


# `data` as one HTTP chunk.
cdef bytes chunk(bytes data)

# Where the body of the chunk at `data` begins, with its size in `body`, if a whole chunk is there as chunk()
# would make it; else 0.  What chunk() would not make is for a parser to judge.
cdef Py_ssize_t chunk_at(const char* data, Py_ssize_t size, Py_ssize_t* body) noexcept nogil

# How many bytes of a body are in `data` if it is whole chunks as chunk() makes them and nothing else; else 0.
cdef Py_ssize_t chunks_in(const char* data, Py_ssize_t size) noexcept nogil
