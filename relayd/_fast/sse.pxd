# relayd/_fast/sse.pxd -- what the relay must know of a body that it only passes on.
#
# Bodies are forwarded byte for byte.  Beside them run two scans that keep a few facts and no bytes
# of the body beyond a small fixed buffer: where server-sent events end and which of them say "error"
# or "this is the end" (EventScan), and what the answer says it cost (UsageScan).  Both take their
# input in whatever pieces the network made of it and give the same result for every way to cut it.
#
# Nothing here allocates, raises, creates a Python object or keeps a pointer.  The structs are
# embedded in whoever reads the stream (a Leg); `data` is always borrowed until return.

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    LINE_KEPT = 96          # bytes of a line that are enough to tell what it is
    KEY_KEPT = 32           # the longest name that a count is known by has 27 bytes
    USAGE_AT_MOST = 4096    # bytes of a usage object; real ones are under 700

# How a stream on this route says that it is complete.
cpdef enum Terminator:
    TERMINATOR_NONE = 0             # nothing is promised: the end of the body is the end
    TERMINATOR_DONE = 1             # data: [DONE]                   (chat, completions)
    TERMINATOR_MESSAGE_STOP = 2     # event: message_stop            (messages)
    TERMINATOR_RESPONSE = 3         # event: response.completed, .incomplete or .failed  (responses)


cdef struct EventScan:
    uint64_t events         # complete events since scan_reset()
    uint64_t comments       # how many of them had neither data nor a name
    bint in_event           # a line of the next event has already ended
    bint in_line            # the line being read has at least one byte
    bint after_cr           # the last byte was CR, so a LF now is its second half
    bint has_field          # the event being read has an event: or data: line
    bint has_data           # ... a data: line
    bint is_terminator      # the event being read is the route's terminator
    bint is_error           # ... is an error in the words of either dialect
    bint terminated         # a terminator has been seen
    bint errored            # an error event has been seen
    int terminator          # which Terminator to look for
    int kept                # bytes in `line`
    char[LINE_KEPT] line    # the first bytes of the line being read


cdef void scan_reset(EventScan* scan, int terminator) noexcept nogil

# Reads `size` bytes at `data`.  Returns the offset just past the last event that ended here, or 0 if
# none did: a safe place to stop.
cdef Py_ssize_t scan_feed(EventScan* scan, const char* data, Py_ssize_t size) noexcept nogil

# The same, but stops after the first event that ends; returns 0 when none does.
cdef Py_ssize_t scan_feed_one(EventScan* scan, const char* data, Py_ssize_t size) noexcept nogil

# The stream has ended: an event whose last empty line is missing counts as one.
cdef void scan_finish(EventScan* scan) noexcept nogil

# True where nothing of an event has been read since the last one ended: the only place where
# something of ours may be put into the stream.
cdef bint scan_at_boundary(const EventScan* scan) noexcept nogil


# Tokens as the worker reported them; -1 where it said nothing.  Zero is an answer.
cdef struct Usage:
    int64_t input           # prompt_tokens, input_tokens, promptTokenCount
    int64_t output          # completion_tokens, output_tokens, candidatesTokenCount
    int64_t cached_input    # cached_tokens, cache_read_input_tokens, cachedContentTokenCount
    int64_t cache_write     # cache_creation_input_tokens
    int64_t reasoning       # reasoning_tokens: a part of `output`
    int64_t thoughts        # thoughtsTokenCount: reasoning that `output` leaves out
    bint refused            # a count was negative, fractional or absurd, and was not believed

# All tokens that were written, reasoning among them, and the reasoning alone; -1 where nothing was said.
cdef int64_t usage_output(const Usage* usage) noexcept nogil
cdef int64_t usage_reasoning(const Usage* usage) noexcept nogil


cdef struct UsageScan:
    Usage usage             # of all objects that were read whole; a later count replaces an earlier one
    Usage pending           # of the object being read
    uint64_t objects        # usage objects read
    int state               # see sse.pyx
    int matched             # bytes of the key that have been seen
    char previous           # the last byte of the last piece
    # Inside the object:
    int size                # bytes of it so far
    int depth               # of its braces
    int lists               # ... and brackets: what is in a list are parts, not sums
    bint in_string
    bint escaped
    bint has_key            # a string has ended, and nothing has come since but space
    bint has_colon          # ... and a colon
    bint in_number
    bint bad_number         # it has a sign, a fraction, an exponent or too many digits
    int digits
    int64_t count
    int key_size            # KEY_KEPT + 1 when it is too long to be known
    char[KEY_KEPT] key


cdef void usage_reset(UsageScan* scan) noexcept nogil
cdef void usage_feed(UsageScan* scan, const char* data, Py_ssize_t size) noexcept nogil


cdef class EventScanner:
    cdef EventScan scan
    cpdef Py_ssize_t feed(self, bytes data) except -1


cdef class UsageScanner:
    cdef UsageScan scan
    cpdef int feed(self, bytes data) except -1
