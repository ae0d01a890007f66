# relayd/_fast/head.pxd -- which lines of a head go on to the other side, and which stop a request.
#
# Both directions work on the list of (name, value) pairs that the HTTP parsers give, in their order
# and spelling.  One pass over it checks every name and value, notes the few that relayd itself acts
# on, and joins the rest, untouched, into one block of "Name: value\r\n" lines.

from libc.stdint cimport int64_t, uint64_t

# What is wrong with a request's head; the numbers index faults.HEAD_FAULTS.
cpdef enum HeadFault:
    HEAD_OK = 0
    HEAD_BAD_METHOD = 1             # TRACE, CONNECT: refused up front
    HEAD_BAD_VERSION = 2            # neither HTTP/1.1 nor HTTP/1.0
    HEAD_BAD_TARGET = 3             # not an origin-form path, or one that climbs
    HEAD_BAD_HOST = 4               # missing, repeated or malformed
    HEAD_BAD_NAME = 5               # a field name that is not a token
    HEAD_BAD_VALUE = 6              # a control byte in a field value
    HEAD_BAD_LENGTH = 7             # Content-Length that is not one number, or beside chunked
    HEAD_BAD_CODING = 8             # a transfer coding other than chunked
    HEAD_BAD_CREDENTIAL = 9         # two Authorization lines, or two credentials in one
    HEAD_BAD_EXPECT = 10            # an expectation other than 100-continue
    HEAD_LOOP = 11                  # this very process has seen the request before
    HEAD_BAD_WISH = 12              # a line for relayd alone, such as X-Relayd-Priority, says what it cannot

# How much a request matters, as its client says.
cpdef enum Priority:
    PRIORITY_CRITICAL = 0
    PRIORITY_INTERACTIVE = 1
    PRIORITY_DEFAULT = 2
    PRIORITY_BATCH = 3


cdef class RequestHead:
    # What relayd acts on.  bytes are as received, None where the client said nothing.
    cdef readonly int fault                 # a HeadFault
    cdef readonly str method
    cdef readonly bytes target              # origin-form, exactly as received
    cdef readonly bytes path                # target up to "?"
    cdef readonly bytes host
    cdef readonly bytes content_type
    cdef readonly bytes content_encoding
    cdef readonly bytes accept_encoding
    cdef readonly bytes forwarded_for
    cdef readonly bytes forwarded_proto
    cdef readonly bytes request_id          # the client's, or one of ours; never None
    cdef readonly bytes traceparent         # the same
    cdef readonly bytes authorization
    cdef readonly bytes api_key             # x-api-key or api-key
    cdef readonly bytes bad_name            # the field that `fault` is about, if it is about one
    cdef readonly Py_ssize_t size           # about how many bytes it had on the wire
    cdef readonly Py_ssize_t content_length  # -1 when none was given
    cdef readonly bint chunked
    cdef readonly bint expect_continue
    cdef readonly Py_ssize_t timeout_ms     # that the client will wait, 0 if it did not say
    cdef readonly int priority              # a Priority
    cdef readonly bint anthropic            # has an anthropic-version line
    cdef bytes passed                       # the lines that go on as they are
    cdef bytes credentials                  # Authorization, x-api-key, api-key lines

    # Each returns a HeadFault, or -1 with an exception set.
    cdef int _read(self, str method, bytes target, int version_minor, object headers) except -1
    cdef int _read_target(self, bytes target) except -1
    cdef int _name(self) except -1
    cdef int _read_headers(self, object headers) except -1
    cdef int _note(self, int action, bytes value) except -1

    # The head for a worker.  `client` is the block that relayd adds about who asks (forwarding, via);
    # length: bytes of the body, -1 for chunked, -2 for no body at all.  Fields in `without`, a set of
    # lower-case names, stay behind.
    cpdef bytes for_worker(
        self, bytes host, bytes client, bint stream, bint with_credentials, Py_ssize_t length,
        object without=*)


cdef class ResponseHead:
    cdef readonly bint valid                # False: the answer must not be relayed
    cdef readonly bytes block               # the lines that go on as they are
    cdef readonly bytes content_encoding
    cdef readonly bytes retry_after
    cdef readonly bytes retry_after_ms
    cdef readonly bytes request_id          # x-request-id
    cdef readonly bint has_plain_id         # there is a request-id too, Anthropic's name for it
    cdef readonly bint event_stream
    cdef readonly bint has_date
    cdef readonly bint accel_buffering
    cdef readonly bint has_rate_limits      # X-RateLimit lines of the worker's own
    cdef readonly bint chunked
    cdef readonly Py_ssize_t content_length  # -1 when none was given


cpdef ResponseHead read_response_head(list headers)

# True if bytes follow the first head in `data` that should not be parsed together with it: that head closes
# the connection, leaves HTTP, or has no body, and an error behind it must not cost it its answer.
cpdef bint is_one_message(bytes data)

# The Date value for now, made once a second.
cpdef bytes http_date()

cdef int put_number(char* out, uint64_t number) noexcept nogil
cdef bytes length_line(Py_ssize_t length)

# Random lower-case hexadecimal digits, 16 a word.
cpdef bytes random_hex(int words)

cdef bytes without_rate_limits(bytes lines)

# The three X-RateLimit lines of a rate, named and written as OpenAI's API has them.  what: "Requests" or
# "Tokens", at most 32 bytes; full_in_ns: until the bucket is full again.  ValueError: longer, or negative.
cpdef bytes rate_lines(bytes what, int64_t most, int64_t left, int64_t full_in_ns)
