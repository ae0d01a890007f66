# relayd/_fast/leg.pxd -- one attempt at getting an answer from one worker.
#
# A Leg takes a connection from its worker's Pool, writes the request, and hands the answer's bytes to
# a Sink from inside the read callback: no task is woken for a chunk.  Until the commit point it holds
# what came, so that a failure can move to another worker unseen; from then on it passes everything on.
#
#     begin() -> ... -> owner.leg_ended(leg)      exactly once, unless cancel() or drain() came first
#
# Two questions are the owner's (a driver, in Python), the first at most once a leg:
#     owner.try_elsewhere(leg) -> bool    the answer is a failure and nothing was committed: True means
#                                         it is dropped, False that it is passed on as it is
#     owner.judge_event(leg, event) -> int    is this held event content (an EventKind)?
#
# All of it runs on the loop's thread.  Times are CLOCK_MONOTONIC nanoseconds; durations are ns too.

from libc.stdint cimport int64_t, uint64_t

from relayd._fast.head cimport ResponseHead
from relayd._fast.sink cimport Sink, Source
from relayd._fast.sse cimport EventScan, UsageScan
from relayd._fast.turn cimport Outlet, Turn

cpdef enum LegState:
    LEG_NEW = 0
    LEG_DIALING = 1             # waits for a connection
    LEG_WAITING = 2             # the request is going out, or the head is awaited
    LEG_HOLDING = 3             # the answer has begun, nothing is committed
    LEG_RELAYING = 4            # committed: every byte goes on at once
    LEG_ENDED = 5

# How a leg ended.  `faults.LEG_OUTCOMES` has a row for each.
cpdef enum LegOutcome:
    LEG_RUNNING = 0
    LEG_COMPLETE = 1            # the answer was passed on whole, whatever its status
    LEG_CANCELLED = 2           # its owner did not want it any more
    LEG_CONNECT = 3             # no connection: refused, unreachable, unresolved
    LEG_CONNECT_TIMEOUT = 4
    LEG_TLS = 5                 # the handshake failed, or the certificate is not to be trusted
    LEG_RESET = 6               # the connection closed before the head was complete
    LEG_BAD_ANSWER = 7          # what came is not an HTTP answer that may be relayed
    LEG_REJECTED = 8            # a status >= 500 or 429 that moved elsewhere
    LEG_ERROR_EVENT = 9         # an error event before content that moved elsewhere
    LEG_CUT = 10                # the answer ended before it was complete
    LEG_FIRST_TOKEN_TIMEOUT = 11
    LEG_IDLE_TIMEOUT = 12
    LEG_TOTAL_TIMEOUT = 13

# What a held event is to the commit point.
cpdef enum EventKind:
    EVENT_PREAMBLE = 0          # says nothing yet: role-only delta, message_start, ping, comment
    EVENT_CONTENT = 1
    EVENT_CLIENT_ERROR = 2      # an error that is the client's own, and passes
    EVENT_WORKER_ERROR = 3      # an error of the worker's, which another worker might not make

cdef enum:
    HELD_AT_MOST = 65536        # bytes held before the commit point, and of an unfinished event
    HEAD_AT_MOST = 65536        # bytes of an answer's head
    HEADERS_AT_MOST = 256
    INTERIM_AT_MOST = 16        # 1xx answers before the real one
    HEAD_SECONDS = 5            # from the first byte of a head to its last
    FRAMING_AT_MOST = 16384     # bytes without body inside a body: chunk extensions, trailers
    OUTCOMES = 16               # more than there are
    FEED_AT_MOST = 16384        # bytes given to the parser at once, so that the above is exact enough


# The body of a request, as it arrives.  Whole bodies and streamed ones are the same thing; parts are
# kept for another leg until there are more than `keep` bytes of them.
cdef class RequestBody:
    cdef list parts
    cdef readonly Py_ssize_t size  # bytes that have arrived
    cdef readonly Py_ssize_t declared  # Content-Length; -1 for chunked, -2 for no body
    cdef readonly bint complete         # all of it has arrived
    cdef readonly bint lost             # the beginning is gone: no other leg can send it
    cdef readonly Py_ssize_t keep
    cdef Py_ssize_t sent                # parts that the current leg has written
    cdef Py_ssize_t unsent_bytes
    cdef Leg reader                     # the leg that is sending it, or None
    cdef public object on_room          # called without arguments when more may be fed

    cdef int forget_sent(self) except -1
    cdef int rewind(self) except -1
    cdef int note_sent(self, Py_ssize_t size) except -1


# The connections to one worker, and what it has in hand.
cdef class Pool:
    cdef readonly str name              # the worker's
    cdef readonly bytes host            # its Host value
    cdef readonly object dial           # dial(pool): starts a connection, see upstream/dial.py
    cdef readonly Turn turn
    cdef list idle                      # Connections, the youngest last
    cdef set draining                   # ... and those that read an unwanted answer to its end
    cdef object waiting                 # deque of Legs that want a connection
    cdef readonly int dialing           # connections being made
    cdef readonly int open              # connections that are open, idle or not
    cdef public int max_dials           # connections being made at the same time
    cdef public int max_idle
    cdef public int64_t idle_ns         # an idle connection is closed after this
    cdef readonly uint64_t dials        # since start
    cdef readonly uint64_t reuses
    cdef readonly uint64_t stale_retries
    # The worker's load, updated here so that it is right at every moment.
    cdef readonly int in_flight         # legs that have begun and not ended
    cdef readonly int64_t prompt_tokens  # of legs whose first content has not come
    cdef readonly int64_t output_tokens  # expected and not yet seen
    cdef readonly int64_t last_pick     # order number of the last leg begun here
    cdef uint64_t[OUTCOMES] ended       # legs by LegOutcome; the last one counts answers >= 500

    cdef Connection take_idle(self)
    cdef int want(self, Leg leg) except -1
    cdef int dial_more(self) except -1
    cdef Leg next_waiting(self, bint fresh)
    cdef int give_back(self, Connection connection) except -1


cdef class Connection:
    cdef Pool pool
    cdef Leg leg                        # who uses it, or None
    cdef object transport
    cdef Outlet outlet
    cdef object parser                  # httptools.HttpResponseParser
    cdef bytes arrived                  # read, and put off to the end of the turn
    cdef readonly uint64_t served       # answers completed on it
    cdef readonly int64_t idle_since
    cdef bint chunk_ended               # the parser's last word was the end of a head or of a chunk
    cdef bint between_chunks            # ... and nothing came behind it
    cdef bint in_message                # the parser is between a head and the end of its message
    cdef bint read_fully                # the last read left nothing in the socket
    cdef bint read_paused
    cdef Py_ssize_t unfed               # bytes of the read being handled that follow this piece
    cdef bint write_paused
    cdef bint closed
    cdef bint misplaced                 # body bytes came before the head was complete
    cdef bint dirty                     # bytes came that belong to no answer
    cdef bint answering                 # the first byte of an answer has come
    cdef int64_t head_since_ns          # when the head being read began; 0 between heads
    cdef bint interim                   # the head being read is a 1xx
    cdef bint head_done
    cdef bint complete                  # the answer's last byte has been parsed
    cdef bint reusable                  # may serve again once the answer is complete
    cdef bint by_close                  # the body ends with the connection
    cdef bint draining                  # the rest of an answer is read and thrown away
    cdef int interims
    cdef int framing                    # bytes since the last byte of the body
    cdef Py_ssize_t head_bytes
    cdef Py_ssize_t body_bytes          # in the piece being fed
    cdef Py_ssize_t drained
    cdef list headers
    cdef bytes content                  # of the body, in the piece being fed

    cdef int expect_answer(self) except -1
    cdef bint has_unread(self)
    cdef bint is_tainted(self)
    cdef bint is_stuck_in_head(self, int64_t now) noexcept
    cdef int lend(self, Leg leg) except -1
    cdef int send(self, bytes data) except -1
    cdef int receive(self, bytes data) except -1
    cdef int take_answer(self, object data) except -1
    cdef int count_framing(self, Py_ssize_t size) except -1
    cdef int after_feed(self) except -1
    cdef int pass_on(self) except -1
    cdef int read_head(self, Leg leg, int status) except -1
    cdef int refuse(self, str problem) except -1
    cdef int drain(self) except -1
    cdef int release(self) except -1
    cdef int read_on(self) except -1
    cdef int read_no_more(self) except -1
    cdef int close(self) except -1


# How long a leg may take, in ns; one object is shared by all legs under the same settings.
cdef class Limits:
    cdef readonly int64_t connect
    cdef readonly int64_t first_token
    cdef readonly int64_t idle
    cdef readonly int64_t write         # for doors: a client that takes nothing
    cdef readonly int64_t total


# What is the same for every leg of a route.
cdef class Terms:
    cdef Limits limits
    cdef Sweeper sweeper
    cdef int terminator                 # how a stream says that it is complete
    cdef bint timing                    # add server-timing to answers
    cdef bint plain_id                  # tell the request id under Anthropic's name too
    cdef int64_t keepalive_ns           # silence after which a waiting client is told; 0 never
    cdef bytes keepalive                # what it is told


cdef class Leg(Source):
    cdef readonly Pool pool
    cdef readonly Sink sink
    cdef readonly object owner          # asked and told, see above
    cdef Connection connection
    cdef RequestBody body
    cdef bytes head                     # of the request, ready to write
    cdef bytes lines                    # head lines that relayd adds to the answer
    cdef bytes request_id               # told to the client where the worker told no id of its own
    cdef readonly object exchange       # the owner's; not looked into
    cdef readonly int state             # a LegState
    cdef readonly int outcome           # a LegOutcome
    cdef readonly str reason            # what happened, for the log and the client
    cdef readonly int status            # of the answer; 0 before its head
    cdef readonly ResponseHead response
    cdef readonly bint committed        # the answer goes to the client, for better or worse
    cdef readonly bint streaming        # the answer is an event stream
    cdef readonly bint reused           # the connection had served before
    cdef readonly bint stale_retry      # ... and had died, so a fresh one was taken
    cdef readonly bint late             # relayd's own keep-alive already started the answer
    cdef readonly bint error_passed     # an error event was passed on
    cdef bint head_request
    cdef bint paused                    # the sink cannot take more
    cdef bint sending                   # body_ready() is at work
    cdef bint let_go                    # the beginning of the event being read has been passed on
    cdef bint strip_usage               # remove the usage event that nobody asked for
    cdef bint failing                   # the status is one that another worker might not give
    cdef bint asked                     # try_elsewhere has been asked
    cdef EventScan scan
    cdef UsageScan usage
    cdef object decoder                 # of a compressed answer's copy, or None
    cdef Py_ssize_t decoded
    cdef bytearray held
    cdef Py_ssize_t judged              # bytes of `held` in events already judged
    cdef int64_t prompt_tokens          # still counted in the pool
    cdef int64_t output_tokens          # still counted in the pool
    # When.
    cdef readonly int64_t arrived_ns    # the request's head came
    cdef readonly int64_t begun_ns
    cdef readonly int64_t sent_ns       # the request was written completely; 0 until then
    cdef readonly int64_t head_ns
    cdef readonly int64_t first_ns      # first content
    cdef readonly int64_t ended_ns
    cdef int64_t moved_ns               # the last byte in either direction on the connection
    cdef int64_t wrote_ns               # the last time something went to the client
    # How long.
    cdef Terms terms
    cdef Limits limits                  # the terms'
    cdef int64_t deadline_ns            # of the whole exchange
    cdef int64_t keepalive_ns           # of the terms, if this client waits for a stream

    cpdef int expect(
        self, bint head_request, bint strip_usage, bint may_wait, int64_t prompt_tokens,
        int64_t output_tokens, int64_t arrived_ns, int64_t deadline_ns) except -1
    cpdef int begin(self) except -1
    cpdef int cancel(self) except -1
    cdef int connected(self, Connection connection) except -1
    cdef int connect_failed(self, int outcome, str reason) except -1
    cdef int send_at_once(self, Connection connection) except -1
    cdef int body_ready(self) except -1
    cdef int send_parts(self, Connection connection, RequestBody body, bint chunked) except -1
    cdef bint is_chunked(self)
    cdef int read_head(self, int status, ResponseHead head, bint by_close) except -1
    cdef int read_body(self, bytes data) except -1
    cdef int relay(self, bytes data) except -1
    cdef bint relay_chunks(self, bytes data) except -1
    cdef bint can_let_go(self, const char* chunks, Py_ssize_t size) noexcept
    cdef int note_first(self) except -1
    cdef int note_output(self, int64_t events) except -1
    cdef int scan_body(self, bytes data) except -1
    cdef int scan_decoded(self, bytes data) except -1
    cdef int hold(self, bytes data) except -1
    cdef bint judge_until(self, Py_ssize_t end) except -1
    cdef int commit_held(self, bytes rest) except -1
    cdef int flush_held(self) except -1
    cdef int without_usage(self, bytes data) except -1
    cdef int commit(self) except -1
    cdef bytes answer_lines(self)
    cdef bytes id_lines(self)
    cdef char* put_id_lines(self, char* end) except NULL
    cdef bint can_read(self)
    cdef int read_end(self) except -1
    cdef int lost_connection(self, bint answering, str reason) except -1
    cdef int fail(self, int outcome, str reason) except -1
    cdef int end(self, int outcome, str reason) except -1
    cdef int leave(self) except -1
    cdef int sweep(self, int64_t now) except -1
    cdef int tell_client(self, int64_t now) except -1


# Looks after everything that is late.  One per loop; nothing runs while nothing is open.
cdef class Sweeper:
    cdef object loop
    cdef set legs
    cdef set pools
    cdef object handle
    cdef readonly double interval       # seconds between sweeps

    cdef int add(self, Leg leg) except -1
    cdef int remove(self, Leg leg) except -1


cdef int64_t monotonic_ns() noexcept nogil
