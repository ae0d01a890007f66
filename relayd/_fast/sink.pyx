# cython: language_level=3
"""Where an answer goes, and how its end is told to the client.

HTTP/1.x has three ways to say where a body ends, and they fail differently.  A declared length and
chunks show a cut by themselves: the connection closes early.  A body that ends with the connection
(HTTP/1.0) does not: a clean close looks complete, so there an abort must reset the connection.

The head waits for the first bytes of the body, so that a small answer is one write.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from relayd._fast.head cimport length_line
from relayd._fast.turn cimport Outlet

import socket
import struct
from http import HTTPStatus

cdef extern from "debug.h" nogil:
    void RELAYD_CHECK(bint condition)

cdef enum Framing:
    NO_BODY = 0
    BY_LENGTH = 1
    BY_CHUNKS = 2
    BY_CLOSE = 3

cdef enum:
    JOINED_UP_TO = 32768        # larger pieces go to the transport as they are, uncopied
    CHUNK_DIGITS = 7            # of a size that chunk_at() reads: far more than is read at once

cdef dict STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
cdef bytes RESET_ON_CLOSE = struct.pack("ii", 1, 0)


cdef class Source:
    """What fills a sink."""

    cdef int pause(self) except -1:
        return 0

    cdef int resume(self) except -1:
        return 0


cdef class Sink:
    """Where an answer goes: the interface (see sink.pxd).  This one swallows everything.

    A leg whose client has left, and that is allowed to finish for its usage, writes here.
    """

    def __cinit__(self):
        self.state = SINK_NEW

    cpdef int start(self, int status, bytes lines, Py_ssize_t length) except -1:
        self.state = SINK_STARTED
        self.status = status
        return 0

    cpdef int write(self, bytes data) except -1:
        self.bytes_written += PyBytes_GET_SIZE(data)
        return 0

    cpdef int flush(self) except -1:
        return 0

    cdef int write_chunks(self, bytes data, Py_ssize_t size) except -1:
        self.bytes_written += size
        return 0

    cpdef int end(self) except -1:
        self.state = SINK_ENDED
        return 0

    cpdef int abort(self) except -1:
        self.state = SINK_ABORTED
        return 0

    cpdef bint can_append(self):
        return False

    cpdef int pause(self) except -1:
        if not self.paused:
            self.paused = True
            if self.source is not None:
                self.source.pause()
        return 0

    cpdef int resume(self) except -1:
        if self.paused:
            self.paused = False
            if self.source is not None:
                self.source.resume()
        return 0

    cdef int attach(self, Source source) except -1:
        self.source = source
        if self.paused:
            source.pause()
        return 0

    cdef int detach(self) except -1:
        self.source = None
        return 0


cdef bytes chunk(bytes data):
    """Return `data` as one HTTP chunk."""
    cdef:
        Py_ssize_t size = PyBytes_GET_SIZE(data), rest = size, digits = 0
        bytes framed
        char* out
    while rest:
        digits += 1
        rest >>= 4
    framed = PyBytes_FromStringAndSize(NULL, digits + size + 4)
    out = PyBytes_AS_STRING(framed)
    rest = size
    for i in range(digits - 1, -1, -1):
        out[i] = b"0123456789abcdef"[rest & 15]
        rest >>= 4
    out[digits] = 13
    out[digits + 1] = 10
    memcpy(out + digits + 2, PyBytes_AS_STRING(data), size)
    out[digits + 2 + size] = 13
    out[digits + 3 + size] = 10
    return framed


cdef Py_ssize_t chunk_at(const char* data, Py_ssize_t size, Py_ssize_t* body) noexcept nogil:
    cdef Py_ssize_t at = 0, length = 0
    cdef char digit
    while at < size and at < CHUNK_DIGITS:
        digit = data[at]
        if 48 <= digit <= 57:
            length = length * 16 + digit - 48
        elif 97 <= digit <= 102:
            length = length * 16 + digit - 87
        else:
            break
        at += 1
    if at == 0 or data[0] == 48 or size - at < length + 4:
        return 0
    if data[at] != 13 or data[at + 1] != 10:
        return 0
    at += 2
    if data[at + length] != 13 or data[at + length + 1] != 10:
        return 0
    body[0] = length
    return at


cdef Py_ssize_t chunks_in(const char* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at = 0, start, body, total = 0
    while at < size:
        start = chunk_at(data + at, size - at, &body)
        if start == 0:
            return 0
        total += body
        at += start + body + 2
    return total


@cython.final
cdef class HttpSink(Sink):
    """An HTTP/1.x answer, written to `outlet`.

    `version_minor` is the client's, 0 or 1; `keep_alive` says whether the client and the door would
    go on with the connection, and becomes False when the answer's framing does not allow it.
    """

    def __init__(self, Outlet outlet, int version_minor, bint head_request, bint keep_alive):
        self.outlet = outlet
        self.version_minor = version_minor
        self.head_request = head_request
        self.keep_alive = keep_alive

    def close_after(self):
        """The connection will not serve another request; says so if the head is not out yet."""
        self.keep_alive = False

    cdef bytes _head(self, int status, bytes lines, Py_ssize_t length):
        cdef bytes line = STATUS_LINES.get(status), framing = b"", connection = b""

        if line is None:
            line = b"HTTP/1.1 %d \r\n" % status
        if status == 204 or status == 304 or length == LENGTH_NO_BODY:
            self.framing = NO_BODY
        elif length >= 0:
            self.framing = NO_BODY if self.head_request else BY_LENGTH
            self.remaining = length
            framing = length_line(length)
        elif self.version_minor == 1:
            self.framing = NO_BODY if self.head_request else BY_CHUNKS
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            self.framing = NO_BODY if self.head_request else BY_CLOSE
            self.keep_alive = False
        if not self.keep_alive:
            connection = b"Connection: close\r\n"
        elif self.version_minor == 0:
            connection = b"Connection: keep-alive\r\n"
        return line + lines + framing + connection + b"\r\n"

    cpdef int start(self, int status, bytes lines, Py_ssize_t length) except -1:
        RELAYD_CHECK(self.state == SINK_NEW)
        if self.state != SINK_NEW:
            raise RuntimeError("the answer has already been started")
        self.state = SINK_STARTED
        self.status = status
        self.unsent_head = self._head(status, lines, length)
        return 0

    cdef int _send(self, bytes data) except -1:
        if self.unsent_head is not None:
            data = self.unsent_head + data
            self.unsent_head = None
        self.outlet.write(data)
        return 0

    cpdef int write(self, bytes data) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self.state != SINK_STARTED or size == 0 or self.framing == NO_BODY:
            return 0
        self.bytes_written += size
        if self.framing == BY_CHUNKS:
            if size > JOINED_UP_TO:
                self._send(b"%x\r\n" % size)
                self.outlet.write(data)
                self.outlet.write(b"\r\n")
                return 0
            data = chunk(data)
        elif self.framing == BY_LENGTH:
            RELAYD_CHECK(size <= self.remaining)
            self.remaining -= size
            if size > JOINED_UP_TO:
                self.flush()
        return self._send(data)

    cdef int write_chunks(self, bytes data, Py_ssize_t size) except -1:
        RELAYD_CHECK(self.can_append() and chunks_in(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) == size)
        self.bytes_written += size
        return self._send(data)

    cpdef int flush(self) except -1:
        if self.unsent_head is not None:
            self._send(b"")
        return 0

    cpdef int end(self) except -1:
        if self.state != SINK_STARTED:
            return 0
        if self.framing == BY_LENGTH and self.remaining:
            return self.abort()         # shorter than promised: never a clean end
        if self.framing == BY_CHUNKS:
            self._send(b"0\r\n\r\n")
        self.flush()
        self.state = SINK_ENDED
        return 0

    cpdef int abort(self) except -1:
        """Close without completing the answer; reset where a close would look complete."""
        if self.state == SINK_ENDED or self.state == SINK_ABORTED:
            return 0
        self.keep_alive = False
        if self.state == SINK_STARTED and self.framing == BY_CLOSE:
            reset(self.outlet.transport)
        else:
            self.flush()
            self.outlet.close()
        self.state = SINK_ABORTED
        return 0

    cpdef bint can_append(self):
        return self.state == SINK_STARTED and self.framing == BY_CHUNKS


def reset(transport):
    """Close `transport` with a TCP reset, dropping what has not been sent."""
    if transport is None:
        return                          # it is gone already
    connection = transport.get_extra_info("socket")
    if connection is not None:
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        except OSError:
            pass                        # already gone
    transport.abort()
