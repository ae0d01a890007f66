# cython: language_level=3
"""What one turn of the event loop brought, handled together: see turn.pxd."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

cdef extern from "<sys/socket.h>" nogil:
    Py_ssize_t send(int descriptor, const void* data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL


@cython.final
cdef class Turn:
    """One turn of `loop`, over and over.  Without a loop nothing is put off."""

    def __init__(self, loop=None):
        self.loop = loop
        self.steps = [[] for _ in range(STEPS)]
        self.outlets = []

    cpdef int put_off(self, int step, object call, object argument) except -1:
        """Call `call(argument)` at the end of this turn, together with everything else in `step`."""
        if self.loop is None:
            call(argument)
            return 0
        (<list> self.steps[step]).append(call)
        (<list> self.steps[step]).append(argument)
        self.arrivals += 1
        if self.arrivals >= ARRIVALS_AT_MOST:
            return self.settle()
        if not self.awaited:
            self.awaited = True
            self.loop.call_soon(self.run)
        return 0

    cpdef int in_step(self, int step, object call, object argument) except -1:
        """Call `call(argument)` in its step if a turn is being handled, else at once."""
        if not self.running:
            call(argument)
            return 0
        (<list> self.steps[step]).append(call)
        (<list> self.steps[step]).append(argument)
        return 0

    def run(self):
        """Called by the loop when a turn has ended."""
        self.awaited = False
        self.settle()

    cpdef int settle(self) except -1:
        """Handle what has been put off, and write what it has to say."""
        cdef Outlet outlet
        cdef list outlets
        if self.running or not self.has_steps():
            return 0
        self.running = True
        self.arrivals = 0
        try:
            while self.has_steps():
                for step in range(STEPS):
                    self.go_through(step)
        finally:
            self.running = False
            outlets = self.outlets
            self.outlets = []
            for outlet in outlets:
                self.flush(outlet)
        return 0

    cdef int flush(self, Outlet outlet) except -1:
        try:
            outlet.flush()
        except Exception as error:      # one that cannot be written to keeps nobody else from it
            self.loop.call_exception_handler({"message": "relayd failed to write", "exception": error})
        return 0

    cdef bint has_steps(self):
        for waiting in self.steps:
            if waiting:
                return True
        return False

    cdef int go_through(self, int step) except -1:
        cdef list waiting = self.steps[step]
        cdef Py_ssize_t i = 0
        if not waiting:
            return 0
        self.steps[step] = []
        while i < len(waiting):
            try:
                waiting[i](waiting[i + 1])
            except Exception as error:
                self.loop.call_exception_handler({"message": "relayd failed", "exception": error})
                if hasattr(waiting[i + 1], "drop"):
                    waiting[i + 1].drop()
            i += 2
        return 0


@cython.final
cdef class Outlet:
    """What is written to `transport`; while `turn` is being handled it is kept until its end."""

    def __init__(self, object transport, Turn turn):
        self.transport = transport
        self.turn = turn
        self.descriptor = descriptor_of(transport)

    cpdef int write(self, bytes data) except -1:
        """Write `data`, or keep it for the end of the turn."""
        if self.kept is not None:
            self.kept += data
            if PyBytes_GET_SIZE(self.kept) > KEPT_AT_MOST:
                return self.flush()
        elif self.turn.running:
            self.kept = data
            self.turn.outlets.append(self)
        elif self.transport is not None:
            return self.send(data)
        return 0

    cdef int send(self, bytes data) except -1:
        cdef Py_ssize_t sent
        if self.descriptor >= 0 and not self.is_held_up():
            sent = send(self.descriptor, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data),
                        MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == PyBytes_GET_SIZE(data):
                return 0
            if sent > 0:
                data = data[sent:]
            self.handed_over = True     # an error, too: the transport will meet it and tell its protocol
        self.transport.write(data)
        return 0

    cdef bint is_held_up(self) except -1:
        """True if bytes must not go past the transport: it is closing, or has some of its own to write."""
        if self.transport.is_closing():
            return True                 # and the descriptor may be somebody else's by now
        if self.handed_over:
            self.handed_over = self.transport.get_write_buffer_size() > 0
        return self.handed_over

    cpdef int flush(self) except -1:
        """Write what was kept."""
        cdef bytes kept = self.kept
        if kept is not None:
            self.kept = None
            if self.transport is not None:
                return self.send(kept)
        return 0

    cpdef int close(self) except -1:
        """Write what was kept and close the transport behind it."""
        self.flush()
        if self.transport is not None:
            self.transport.close()
        return 0

    cpdef int lost(self) except -1:
        """The connection is gone: nothing more can be written."""
        self.transport = self.kept = None
        return 0


cdef int descriptor_of(object transport) except -2:
    """Return the descriptor of a plain socket, or -1."""
    cdef object connection
    if transport.get_extra_info("ssl_object") is not None:
        return -1
    connection = transport.get_extra_info("socket")
    return -1 if connection is None else connection.fileno()
