# relayd/_fast/turn.pxd -- what one turn of the event loop brought, handled together.
#
# A request is many small pieces of code, and every system call between two of them pushes the others
# out of the processor's caches.  So what arrives is not handled where it arrives, but at the end of the
# loop's turn and in step: all of it goes through one step before any of it enters the next, and what
# it had to write goes out after the last step.  docs/decisions/003 has the figures.
#
#     arrive -> ANSWERS -> ENDS -> REQUESTS -> HEADS -> PHASES -> writes
#
# Nothing waits longer than its own turn, and a turn takes in at most ARRIVALS_AT_MOST pieces.
# All of it runs on the loop's thread.  A Turn without a loop puts nothing off.

cpdef enum Step:
    STEP_ANSWERS = 0            # bytes from workers
    STEP_ENDS = 1               # legs that ended
    STEP_REQUESTS = 2           # bytes from clients
    STEP_HEADS = 3              # requests whose head is complete
    STEP_PHASES = 4             # exchanges that begin

cpdef enum:
    STEPS = 5
    ARRIVALS_AT_MOST = 32       # pieces taken in before they are handled
    KEPT_AT_MOST = 65536        # bytes of writes; more go out, so that a full transport is noticed
    AT_ONCE = 16384             # bytes; a larger piece is handled where it arrives


cdef class Turn:
    cdef object loop
    cdef list steps                     # for each Step: calls and their arguments, in turn
    cdef list outlets                   # that have something to write
    cdef int arrivals
    cdef bint awaited                   # the loop will call run()
    cdef readonly bint running

    # call(argument) at the end of this turn, in `step`.  If it raises, the loop's exception handler is told,
    # and argument.drop() is called where there is one.
    cpdef int put_off(self, int step, object call, object argument) except -1

    # The same while a turn is being handled; otherwise at once.
    cpdef int in_step(self, int step, object call, object argument) except -1

    # Handle what has been put off now: something came that must not overtake it.
    cpdef int settle(self) except -1

    cdef bint has_steps(self)
    cdef int go_through(self, int step) except -1
    cdef int flush(self, Outlet outlet) except -1


# What is written to one transport; while a turn is being handled it is kept until its end.
#
# Bytes go straight to the socket as long as the transport holds none back: its own way there takes a
# thousand instructions more.  What the socket does not take at once, and all behind it, the transport writes.
cdef class Outlet:
    cdef readonly object transport      # None when the connection is lost
    cdef readonly int descriptor        # of the socket; -1 where only the transport can write (TLS)
    cdef Turn turn
    cdef bytes kept
    cdef bint handed_over               # the transport may hold bytes back

    cpdef int write(self, bytes data) except -1
    cdef int send(self, bytes data) except -1   # now; after a flush
    cdef bint is_held_up(self) except -1
    cpdef int flush(self) except -1
    cpdef int close(self) except -1     # flush, then close the transport
    cpdef int lost(self) except -1      # the connection is gone
