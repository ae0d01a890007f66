# cython: language_level=3
"""One attempt at getting an answer from one worker, and the connections it is made on.

The path of a byte: uvloop reads it, llhttp (httptools) finds the body, the scans note what they must, and
the sink writes it to the client, all inside one callback.  Only the beginning of an answer is put off to
the end of the loop's turn (see turn.pxd).  Nothing is queued between the two sockets: when the client's
buffer is full the worker's socket is not read.

What httptools 0.9 does not do, and what stands in for it here:

    it cannot pause             pieces of at most 16 KiB are fed, and the socket is paused instead
    it is dead after an error   the connection is closed and never fed again
    trailers look like headers  on_header after the head is ignored
    1xx completes a message     `interim` says so, and sixteen of them are too many
    HEAD with a length hangs    the head ends the answer, and the parser is replaced
    nothing ends a body that    connection_lost does, if the close was clean
      ends with the connection
    statuses 000..099 pass      refused, and so is everything above 599
    chunk extensions and        framing bytes are counted since the last byte of the body
      trailers have no bound
    should_keep_alive() is      it is read when the head is complete
      right only until the end

Owner: a Leg belongs to its exchange's driver; a Connection to its Pool, and lends itself to one Leg.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from relayd._fast.head cimport (
    ResponseHead, http_date, put_number, read_response_head, without_rate_limits)
from relayd._fast.sink cimport (
    LENGTH_NO_BODY, LENGTH_UNKNOWN, SINK_NEW, Sink, Source, chunk, chunk_at, chunks_in,
)
from relayd._fast.sse cimport (
    TERMINATOR_NONE, Usage, scan_at_boundary, scan_feed, scan_feed_one, scan_finish, scan_reset, usage_feed,
    usage_output, usage_reasoning, usage_reset,
)
from relayd._fast.turn cimport AT_ONCE, STEP_ANSWERS, STEP_ENDS, Outlet, Turn

import zlib
from collections import deque

import httptools

cdef extern from "debug.h" nogil:
    void RELAYD_CHECK(bint condition)
    int RELAYD_DEBUG_BUILD

cdef extern from "<sys/socket.h>" nogil:
    Py_ssize_t recv(int descriptor, void* out, size_t size, int flags)
    int MSG_PEEK
    int MSG_DONTWAIT

cdef extern from "<string.h>" nogil:
    void* memmem(const void* haystack, size_t haystack_size, const void* needle, size_t needle_size)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* out)
    int CLOCK_MONOTONIC

DEBUG_BUILD = bool(RELAYD_DEBUG_BUILD)

cdef enum:
    WRITE_HIGH = 65536              # bytes waiting for a worker before its request body pauses
    WRITE_LOW = 16384
    ROOM = 65536                    # unsent bytes of a body after which no more is asked for
    DRAIN_SECONDS = 5               # for the rest of an unwanted answer to come
    DRAIN_AT_MOST = 65536           # of an unwanted answer, to save its connection
    DECODED_AT_MOST = 16777216      # of a compressed answer's copy
    DECODED_PIECE = 65536
    ID_AT_MOST = 128                # bytes of a request id, see head.pyx
    ADDED_AT_MOST = 512             # bytes of the lines that relayd adds to an answer

cdef object ParserError = httptools.HttpParserError
cdef object ResponseParser = httptools.HttpResponseParser

cdef int64_t pick_counter = 0


cdef int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t> now.tv_sec * 1000000000 + now.tv_nsec


def now_ns():
    """CLOCK_MONOTONIC in nanoseconds: the clock of everything here."""
    return monotonic_ns()


@cython.final
cdef class Limits:
    """How long a leg may take: nanoseconds, see design section 6 rule 5."""

    def __init__(self, connect, first_token, idle, write, total):
        self.connect = connect
        self.first_token = first_token
        self.idle = idle
        self.write = write
        self.total = total


@cython.final
cdef class Terms:
    """What is the same for every leg of a route: see leg.pxd."""

    def __init__(
        self, Limits limits, Sweeper sweeper, int terminator, bint timing, bint plain_id,
        int64_t keepalive_ns, bytes keepalive,
    ):
        self.limits = limits
        self.sweeper = sweeper
        self.terminator = terminator
        self.timing = timing
        self.plain_id = plain_id
        self.keepalive_ns = keepalive_ns
        self.keepalive = keepalive


# --- the body of a request ----------------------------------------------------------------------------

@cython.final
cdef class RequestBody:
    """The body of a request, as it arrives.

    `declared` is the Content-Length, -1 for a chunked body, -2 for none; `keep` is how many bytes are
    kept for another leg: past that the beginning is dropped as it is sent, and `lost` becomes True.
    """

    def __init__(self, Py_ssize_t declared, Py_ssize_t keep, on_room=None):
        self.parts = []
        self.declared = declared
        self.keep = keep
        self.complete = declared == -2 or declared == 0
        self.on_room = on_room

    def feed(self, bytes data):
        """Add the next bytes of the body."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size == 0:
            return
        self.size += size
        self.unsent_bytes += size
        self.parts.append(data)
        if self.size > self.keep:
            self.lost = True
            self.forget_sent()
        if self.reader is not None:
            self.reader.body_ready()

    def finish(self):
        """No more comes."""
        self.complete = True
        if self.reader is not None:
            self.reader.body_ready()

    @property
    def full(self):
        """True while more should not be fed: what is there has not been sent."""
        return self.unsent_bytes >= ROOM

    @property
    def held(self):
        """Bytes in memory."""
        return sum([len(part) for part in self.parts])

    def whole(self):
        """Return all bytes that have arrived, as one object."""
        if len(self.parts) > 1:
            self.parts = [b"".join(self.parts)]
        return self.parts[0] if self.parts else b""

    def replace(self, bytes data):
        """Put `data` in the place of the whole body, before anything was sent."""
        self.parts = [data] if data else []
        self.size = self.unsent_bytes = len(data)

    cdef int forget_sent(self) except -1:
        if self.sent:
            del self.parts[:self.sent]
            self.sent = 0
        return 0

    cdef int rewind(self) except -1:
        """Make everything unsent again, for another leg."""
        RELAYD_CHECK(not self.lost or self.sent == 0)
        self.sent = 0
        self.unsent_bytes = 0
        for part in self.parts:
            self.unsent_bytes += len(part)
        self.reader = None
        return 0

    cdef int note_sent(self, Py_ssize_t size) except -1:
        cdef bint was_full = self.unsent_bytes >= ROOM
        self.unsent_bytes -= size
        self.sent += 1
        if self.lost:
            self.forget_sent()
        if was_full and self.unsent_bytes < ROOM and self.on_room is not None:
            self.on_room()
        return 0


# --- connections ------------------------------------------------------------------------------------

@cython.final
cdef class Pool:
    """The connections to one worker, and what it has in hand.

    `dial(pool)` starts a connection and ends in `dialed()` or `dial_failed()`.  At most `max_dials` are
    made at once: a burst of requests must not overflow a worker's listen queue, and many of the legs
    that wait will be served by connections that come free meanwhile.  Without a `turn` nothing is put off.
    """

    def __init__(self, str name, bytes host, object dial, Turn turn=None):
        self.name = name
        self.host = host
        self.dial = dial
        self.turn = Turn() if turn is None else turn
        self.idle = []
        self.draining = set()
        self.waiting = deque()
        self.max_dials = 64
        self.max_idle = 1024
        self.idle_ns = 60 * 1000000000

    cdef Connection take_idle(self):
        cdef Connection connection
        while self.idle:
            connection = self.idle.pop()
            if connection.closed or connection.transport.is_closing():
                continue
            if connection.is_tainted():     # bytes that nobody asked for would pass as the next answer
                connection.close()
                continue
            self.reuses += 1
            return connection
        return None

    cdef int want(self, Leg leg) except -1:
        cdef Connection connection = None if leg.stale_retry else self.take_idle()
        if connection is not None:
            return leg.connected(connection)
        leg.state = LEG_DIALING
        self.waiting.append(leg)
        self.dial_more()
        return 0

    cdef int dial_more(self) except -1:
        if self.dialing < self.max_dials and self.dialing < len(self.waiting):
            self.dialing += 1
            self.dials += 1
            self.dial(self)
        return 0

    cdef Leg next_waiting(self, bint fresh):
        """Take the first leg that still wants a connection, and this kind of connection."""
        cdef Leg leg
        cdef list passed_over = []
        try:
            while self.waiting:
                leg = self.waiting.popleft()
                if leg.state != LEG_DIALING:
                    continue                    # it has ended meanwhile
                if leg.stale_retry and not fresh:
                    passed_over.append(leg)
                    continue
                return leg
            return None
        finally:
            self.waiting.extendleft(reversed(passed_over))

    def dialed(self, Connection connection):
        """A connection has been made: it serves the first leg that waits, or idles."""
        cdef Leg leg
        self.dialing -= 1
        leg = self.next_waiting(True)
        if connection.closed:
            if leg is not None:
                leg.connect_failed(LEG_CONNECT, "closed the connection at once")
        elif leg is not None:
            leg.connected(connection)
        else:
            self.give_back(connection)
        self.dial_more()

    def dial_failed(self, int outcome, str reason):
        """A connection could not be made: the first leg that waits is told."""
        cdef Leg leg
        self.dialing -= 1
        leg = self.next_waiting(True)
        if leg is not None:
            leg.connect_failed(outcome, reason)
        self.dial_more()

    cdef int give_back(self, Connection connection) except -1:
        cdef Leg leg = self.next_waiting(False)
        if leg is not None and (connection.transport.is_closing() or connection.is_tainted()):
            self.waiting.appendleft(leg)    # a connection is being made for it already
            return connection.close()
        if leg is not None:
            return leg.connected(connection)
        if len(self.idle) >= self.max_idle:
            return connection.close()
        connection.idle_since = monotonic_ns()
        self.idle.append(connection)
        return 0

    def close_idle(self, int64_t older_than_ns):
        """Close connections that have been idle since before `older_than_ns`; return how many."""
        cdef Connection connection
        cdef list old = [c for c in self.idle if (<Connection> c).idle_since < older_than_ns]
        for connection in old:
            self.idle.remove(connection)
            connection.close()
        return len(old)

    def close_stalled(self, int64_t older_than_ns):
        """Close connections on which the rest of an unwanted answer has not come since then."""
        cdef Connection connection
        for connection in list(self.draining):
            if connection.idle_since < older_than_ns:
                connection.close()

    def legs_ended(self):
        """Return how many legs ended in each LegOutcome; the last number is of complete answers >= 500."""
        return [self.ended[i] for i in range(OUTCOMES)]

    @property
    def idle_count(self):
        """Connections that are open and serve nobody."""
        return len(self.idle)


@cython.final
cdef class Connection:
    """One connection to a worker: an asyncio protocol whose answers go to the leg that uses it."""

    def __init__(self, Pool pool):
        self.pool = pool

    # -- the transport's callbacks

    def connection_made(self, transport):
        self.transport = transport
        self.outlet = Outlet(transport, self.pool.turn)
        self.read_fully = True
        transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self.pool.open += 1
        self.expect_answer()

    def data_received(self, bytes data):
        """Handle what came: at once if it belongs to an answer under way, else at the end of the turn."""
        cdef Leg leg = self.leg
        self.read_fully = PyBytes_GET_SIZE(data) < AT_ONCE
        if leg is not None:
            leg.moved_ns = monotonic_ns()
        if self.arrived is not None:
            self.arrived += data
        elif leg is None or leg.state == LEG_RELAYING or PyBytes_GET_SIZE(data) >= AT_ONCE:
            if not self.between_chunks or leg is None or not leg.relay_chunks(data):
                self.receive(data)
            return
        else:
            self.arrived = data
            self.pool.turn.put_off(STEP_ANSWERS, receive_arrived, self)
        if self.arrived is not None and PyBytes_GET_SIZE(self.arrived) >= AT_ONCE:
            self.pool.turn.settle()

    cdef int receive(self, bytes data) except -1:
        """Take what came in pieces that the parser can be stopped between."""
        cdef Py_ssize_t start = 0, stop, size = PyBytes_GET_SIZE(data)
        while start < size and not self.closed:
            stop = min(start + FEED_AT_MOST, size)
            self.unfed = size - stop
            self.take_answer(data if size <= FEED_AT_MOST else memoryview(data)[start:stop])
            start = stop
        if self.leg is not None and self.leg.sent_ns == 0:
            self.leg.body_ready()       # it had waited for this to be read
        return 0

    def drop(self):
        """Something failed in relayd itself: what comes now cannot be made sense of."""
        self.close()

    def eof_received(self):
        return False                    # the transport closes itself, and connection_lost follows

    def connection_lost(self, error):
        cdef Leg leg
        self.pool.turn.settle()         # what came before the end counts
        leg = self.leg
        self.pool.open -= 1
        self.closed = True
        self.leg = None
        self.parser = None
        self.transport = None
        self.outlet.lost()
        self.pool.draining.discard(self)
        if self in self.pool.idle:
            self.pool.idle.remove(self)
        if leg is None:
            return
        leg.connection = None
        if self.head_done and self.by_close and error is None:
            leg.read_end()
        else:
            leg.lost_connection(self.answering, "closed the connection" if error is None else
                                "reset the connection")

    def pause_writing(self):
        self.write_paused = True

    def resume_writing(self):
        self.write_paused = False
        if self.leg is not None:
            self.leg.body_ready()

    # -- one answer

    cdef int expect_answer(self) except -1:
        if self.parser is None or self.in_message:
            self.parser = ResponseParser(self)
            self.in_message = False
        self.answering = self.interim = self.head_done = self.complete = False
        self.reusable = self.by_close = False
        self.chunk_ended = self.between_chunks = False
        self.interims = self.framing = 0
        self.head_since_ns = 0
        self.head_bytes = self.body_bytes = self.drained = 0
        self.headers = []
        self.content = None
        return 0

    cdef bint has_unread(self):
        """True if the worker has said something that has not been read, or has left.

        While a request is being sent this is an early answer: writing on to a worker that has closed
        would make uvloop drop the connection, and with it the answer that lies in the socket.  Under TLS
        bytes in the socket need not be an answer, so there nothing is known.
        """
        cdef char byte
        cdef int descriptor = self.outlet.descriptor
        return descriptor >= 0 and recv(descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0

    cdef bint is_tainted(self):
        """True if something lies in the socket that no request asked for.

        The loop reports whatever comes to a connection that serves nobody, and that closes it.  Only a read
        that filled its buffer can have left something behind; what comes between a read and the end of its
        turn is the race that every kept connection runs.
        """
        return not self.read_fully and self.has_unread()

    cdef bint is_stuck_in_head(self, int64_t now) noexcept:
        """True if a head has begun and has not been completed in time."""
        return self.head_since_ns != 0 and now - self.head_since_ns > HEAD_SECONDS * <int64_t> 1000000000

    cdef int lend(self, Leg leg) except -1:
        RELAYD_CHECK(self.leg is None and not self.closed and self.arrived is None)
        self.leg = leg
        return 0

    cdef int send(self, bytes data) except -1:
        """Write now, so that `write_paused` is right afterwards."""
        self.outlet.flush()
        return self.outlet.send(data)

    cdef int take_answer(self, object data) except -1:
        """Feed one piece of at most FEED_AT_MOST bytes to the parser and act on what it found."""
        cdef Py_ssize_t size = len(data)
        cdef str problem = None

        if self.leg is None and not self.draining:
            return self.close()         # nobody asked: whatever it is, the connection is not clean
        self.answering = True
        if self.head_since_ns == 0 and not self.head_done:
            self.head_since_ns = monotonic_ns()
        self.body_bytes = 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            problem = "switched protocols, which nobody asked for"
        except ParserError as error:
            problem = str(error.__context__ or error)
        if self.misplaced:
            return self.refuse("sent a body with an interim answer")
        if problem is not None and not self.complete:
            self.pass_on()              # what came before it was good
            return self.refuse(problem + looks_like_tls(data, self.head_done))
        if problem is not None:
            self.dirty = True
        self.count_framing(size)
        # Behind the end of a chunk a line would be a chunk's size, and that has a callback of its own.
        self.between_chunks = self.chunk_ended and ends_a_line(data, size)
        return self.after_feed()

    cdef int count_framing(self, Py_ssize_t size) except -1:
        if not self.head_done:
            self.head_bytes += size
        elif self.body_bytes:
            self.framing = 0
        else:
            self.framing += <int> size
        return 0

    cdef int after_feed(self) except -1:
        cdef Leg leg = self.leg
        if not self.head_done and self.head_bytes > HEAD_AT_MOST:
            return self.refuse("sent a head larger than 64 KiB or 256 lines")
        if self.framing > FRAMING_AT_MOST and not self.complete:
            return self.refuse("sent more than 16 KiB of chunk extensions or trailers")
        if self.draining:
            return self.drain()
        if leg is None:
            return self.close()
        self.pass_on()
        if self.complete and self.leg is leg and leg.state != LEG_ENDED:
            leg.read_end()
        return 0

    cdef int pass_on(self) except -1:
        """Give the leg what was parsed of the body."""
        cdef bytes data
        if self.content is not None and self.leg is not None and not self.draining:
            data = self.content
            self.content = None
            self.leg.read_body(data)
        return 0

    cdef int refuse(self, str problem) except -1:
        """What came is not an answer that may go on."""
        cdef Leg leg = self.leg
        if leg is not None:
            leg.fail(LEG_CUT if self.head_done else LEG_BAD_ANSWER, problem)
        self.close()
        return 0

    cdef int drain(self) except -1:
        """Throw the rest of an unwanted answer away, and keep the connection if that is cheap."""
        if self.content is not None:
            self.drained += PyBytes_GET_SIZE(self.content)
            self.content = None
        if self.complete:
            self.draining = False
            self.pool.draining.discard(self)
            return self.release()
        if self.drained > DRAIN_AT_MOST:
            return self.close()
        return 0

    cdef int release(self) except -1:
        """Serve the next leg, or close when this connection cannot."""
        RELAYD_CHECK(self.leg is None)
        if not self.complete or not self.reusable or self.dirty or self.unfed or self.closed:
            return self.close()
        self.served += 1
        self.expect_answer()
        self.read_on()
        return self.pool.give_back(self)

    cdef int read_on(self) except -1:
        if self.read_paused and not self.closed:
            self.read_paused = False
            self.transport.resume_reading()
        return 0

    cdef int read_no_more(self) except -1:
        if not self.read_paused and not self.closed:
            self.read_paused = True
            self.transport.pause_reading()
        return 0

    cdef int close(self) except -1:
        self.pool.draining.discard(self)
        if not self.closed:
            self.closed = True
            self.transport.abort()
        return 0

    # -- httptools' callbacks

    def on_message_begin(self):
        if self.complete:
            self.dirty = True           # a second answer to one request

    def on_header(self, bytes name, bytes value):
        if self.head_done or self.complete:
            return                      # a trailer, or a second answer: neither goes anywhere
        self.headers.append((name, value))

    def on_headers_complete(self):
        cdef Leg leg = self.leg
        cdef int status
        self.in_message = True
        if self.complete or leg is None:
            return
        status = self.parser.get_status_code()
        if 100 <= status < 200:
            self.interim = True
            self.interims += 1
            self.headers = []
            if status == 101 or self.interims > INTERIM_AT_MOST:
                self.interim = False
                leg.fail(LEG_BAD_ANSWER, "switched protocols" if status == 101 else
                         "sent more than 16 interim answers")
                self.close()
            return
        if self.misplaced:
            leg.fail(LEG_BAD_ANSWER, "sent a body with an interim answer")
            self.close()
            return
        self.read_head(leg, status)

    cdef int read_head(self, Leg leg, int status) except -1:
        cdef ResponseHead head
        cdef Py_ssize_t size = 0
        for line in self.headers:
            size += len(line[0]) + len(line[1])
        if len(self.headers) > HEADERS_AT_MOST or size > HEAD_AT_MOST:
            leg.fail(LEG_BAD_ANSWER, "sent a head larger than 64 KiB or 256 lines")
            return self.close()
        head = read_response_head(self.headers)
        cdef bint no_body = leg.head_request or status == 204 or status == 304
        self.headers = []
        if not 200 <= status <= 599:
            head.valid = False
        if head.chunked and self.parser.get_http_version() != "1.1":
            head.valid = False
        if not head.valid:
            leg.fail(LEG_BAD_ANSWER, f"sent a head that may not be relayed (status {status})")
            return self.close()
        self.head_done = True
        self.chunk_ended = head.chunked
        self.framing = 0
        self.by_close = not no_body and not head.chunked and head.content_length < 0
        self.reusable = not self.by_close and self.parser.should_keep_alive()
        if no_body and leg.head_request:
            self.complete = True        # llhttp would wait for the body
            self.reusable = self.reusable and not self.by_close
        return leg.read_head(status, head, self.by_close)

    def on_chunk_header(self):
        self.chunk_ended = False

    def on_chunk_complete(self):
        self.chunk_ended = True

    def on_body(self, bytes data):
        if self.complete:
            self.dirty = True           # bytes behind the end of the answer
            return
        if not self.head_done:
            self.misplaced = True       # an interim answer has no body
            return
        self.body_bytes += PyBytes_GET_SIZE(data)
        self.content = data if self.content is None else self.content + data

    def on_message_complete(self):
        self.in_message = False
        if self.interim:
            self.interim = False
            self.head_bytes = 0
            self.head_since_ns = 0      # the real head may take as long as it needs to begin
        elif self.head_done:
            self.complete = True


def receive_arrived(Connection connection):
    """Handle what was put off."""
    cdef bytes data = connection.arrived
    connection.arrived = None
    if data is not None and not connection.closed:
        connection.receive(data)


cdef bint ends_a_line(object data, Py_ssize_t size):
    return size >= 2 and data[size - 2] == 13 and data[size - 1] == 10


cdef str looks_like_tls(object data, bint head_done):
    if not head_done and len(data) > 2 and data[0] in (0x15, 0x16) and data[1] == 3:
        return "; it answers in TLS, so its URL should begin with https://"
    return ""


# --- the leg ----------------------------------------------------------------------------------------

@cython.final
cdef class Leg(Source):
    """One attempt at getting an answer from one worker.

    `head` and `body` are the request as the worker gets it; `lines` are head lines that relayd adds to the
    answer, and `request_id` is told where the worker tells none.  `owner` is asked and told (see leg.pxd)
    and `exchange` is for it alone.
    """

    def __init__(
        self, Pool pool, Sink sink, object owner, object exchange, bytes head, RequestBody body,
        Terms terms, bytes lines, bytes request_id,
    ):
        self.pool = pool
        self.sink = sink
        self.owner = owner
        self.exchange = exchange
        self.head = head
        self.body = body
        self.terms = terms
        self.limits = terms.limits
        self.lines = lines
        self.request_id = request_id

    cpdef int expect(
        self, bint head_request, bint strip_usage, bint may_wait, int64_t prompt_tokens,
        int64_t output_tokens, int64_t arrived_ns, int64_t deadline_ns,
    ) except -1:
        """Say what kind of answer this is to be.  Called once, before begin().

        `strip_usage` removes the usage event that relayd asked for on the client's behalf; `may_wait` says
        that the client is one that keep-alives are for; `arrived_ns` is when the request could be decided
        on; `deadline_ns` ends the whole exchange (0: never).
        """
        self.head_request = head_request
        self.strip_usage = strip_usage
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.arrived_ns = arrived_ns
        self.deadline_ns = deadline_ns
        self.keepalive_ns = self.terms.keepalive_ns if may_wait else 0
        return 0

    cpdef int begin(self) except -1:
        """Ask for a connection and go.  The owner hears of the end, maybe before this returns."""
        global pick_counter
        cdef Pool pool = self.pool
        RELAYD_CHECK(self.state == LEG_NEW)
        scan_reset(&self.scan, self.terms.terminator)
        usage_reset(&self.usage)
        self.begun_ns = self.moved_ns = self.wrote_ns = monotonic_ns()
        pick_counter += 1
        pool.last_pick = pick_counter
        pool.in_flight += 1
        pool.prompt_tokens += self.prompt_tokens
        pool.output_tokens += self.output_tokens
        self.late = self.sink.state != SINK_NEW
        self.sink.attach(self)
        self.terms.sweeper.add(self)
        return pool.want(self)

    cpdef int cancel(self) except -1:
        """Give up: the worker sees its connection close, and the owner hears nothing."""
        if self.state != LEG_ENDED:
            self.outcome = LEG_CANCELLED
            self.leave()
            self.state = LEG_ENDED
        return 0

    def go_on_without_client(self, Sink sink, int64_t deadline_ns):
        """Let the worker finish into `sink`, for its usage, until `deadline_ns`."""
        self.sink.detach()
        if self.deadline_ns == 0 or deadline_ns < self.deadline_ns:
            self.deadline_ns = deadline_ns
        self.sink = sink
        self.keepalive_ns = 0
        sink.attach(self)
        self.resume()

    @property
    def took_ns(self):
        """From begin() to the end."""
        return self.ended_ns - self.begun_ns

    @property
    def went_well(self):
        """True if the answer was passed on whole and tells of nothing that went wrong."""
        return (self.outcome == LEG_COMPLETE and 200 <= self.status < 400
                and not self.error_passed and not self.late)

    @property
    def events(self):
        """Complete events of the answer so far."""
        return self.scan.events - self.scan.comments

    @property
    def tokens(self):
        """(input, output, cached input, cache write, reasoning) as reported; None where nothing was said."""
        cdef const Usage* usage = &self.usage.usage
        cdef int64_t output = usage_output(usage), reasoning = usage_reasoning(usage)
        return (
            None if usage.input < 0 else usage.input,
            None if output < 0 else output,
            None if usage.cached_input < 0 else usage.cached_input,
            None if usage.cache_write < 0 else usage.cache_write,
            None if reasoning < 0 else reasoning,
        )

    @property
    def usage_refused(self):
        """True if a reported count was not believed."""
        return bool(self.usage.usage.refused)

    @property
    def at_boundary(self):
        """True if an event of relayd's own may follow what the client has got."""
        if not self.streaming or self.response.content_encoding is not None:
            return False
        return not self.let_go if self.strip_usage else bool(scan_at_boundary(&self.scan))

    @property
    def held_answer(self):
        """What was held and never passed on."""
        return bytes(self.held or b"")

    # -- the request

    cdef int connected(self, Connection connection) except -1:
        RELAYD_CHECK(self.state == LEG_DIALING or self.state == LEG_NEW)
        self.connection = connection
        self.reused = connection.served > 0
        self.state = LEG_WAITING
        self.moved_ns = monotonic_ns()
        connection.lend(self)
        if self.paused:
            connection.read_no_more()
        if self.body.complete and len(self.body.parts) == 1 and not self.is_chunked():
            return self.send_at_once(connection)
        connection.send(self.head)
        self.body.reader = self
        return self.body_ready()

    cdef int send_at_once(self, Connection connection) except -1:
        """The common case: a small body that is here, in one write with the head."""
        cdef bytes data = self.body.parts[0]
        connection.outlet.write(self.head + data)
        self.body.reader = self
        self.body.note_sent(PyBytes_GET_SIZE(data))
        self.sent_ns = self.moved_ns
        return 0

    cdef int body_ready(self) except -1:
        """Write what has arrived of the body, as far as the worker takes it."""
        cdef Connection connection = self.connection
        cdef RequestBody body = self.body
        cdef bint chunked = self.is_chunked()

        if connection is None or self.sent_ns or self.state == LEG_ENDED or self.sending:
            return 0
        self.sending = True             # making room brings more of the body, and that calls this again
        try:
            self.send_parts(connection, body, chunked)
        finally:
            self.sending = False
        return 0

    cdef int send_parts(self, Connection connection, RequestBody body, bint chunked) except -1:
        cdef bytes part
        while body.sent < len(body.parts):
            if connection.write_paused or connection.closed:
                return 0
            if connection.arrived is not None or connection.has_unread():
                return 0                # an early answer comes first
            part = body.parts[body.sent]
            connection.send(chunk(part) if chunked else part)
            self.moved_ns = monotonic_ns()
            body.note_sent(PyBytes_GET_SIZE(part))
        if body.complete:
            if chunked:
                connection.send(b"0\r\n\r\n")
            self.sent_ns = self.moved_ns = monotonic_ns()
        return 0

    cdef bint is_chunked(self):
        return self.head.endswith(b"\r\nTransfer-Encoding: chunked\r\n\r\n")

    cdef int connect_failed(self, int outcome, str reason) except -1:
        return self.fail(outcome, reason)

    # -- the answer

    cdef int read_head(self, int status, ResponseHead head, bint by_close) except -1:
        self.status = status
        self.response = head
        self.head_ns = monotonic_ns()
        self.state = LEG_HOLDING
        self.failing = status >= 500 or status == 429
        self.streaming = head.event_stream and 200 <= status < 300
        self.decoder = decoder_for(head.content_encoding)
        if self.failing and self.owner.try_elsewhere(self):
            return self.end(LEG_REJECTED, f"answered {status}")
        if self.late and not (self.streaming and status == 200 and head.content_encoding is None):
            self.streaming = False
            self.held = bytearray()         # the head that it needs has already gone out: see owner
            return 0
        if not self.streaming or head.content_encoding is not None:
            return self.commit()
        self.held = bytearray()
        return 0

    cdef int read_body(self, bytes data) except -1:
        if self.state == LEG_ENDED:
            return 0
        if self.state == LEG_RELAYING:
            if self.strip_usage and self.streaming and self.response.content_encoding is None:
                usage_feed(&self.usage, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
                return self.without_usage(data)
            self.scan_body(data)
            return self.relay(data)
        if not self.streaming:              # late
            if len(self.held) < HELD_AT_MOST:
                self.held += data
            return 0
        return self.hold(data)

    cdef int relay(self, bytes data) except -1:
        self.wrote_ns = self.moved_ns
        if self.first_ns == 0:
            self.note_first()
        self.sink.write(data)
        return 0

    cdef bint relay_chunks(self, bytes data) except -1:
        """Pass whole chunks on as they came; False if `data` is anything else, or must go otherwise.

        Most pieces of a stream are one chunk each.  Where the parser stands between chunks it stands there
        again behind them, so it need not see them.
        """
        cdef const char* text = PyBytes_AS_STRING(data)
        cdef Py_ssize_t at = 0, body, size = PyBytes_GET_SIZE(data), total
        cdef uint64_t before = self.scan.events
        if self.state != LEG_RELAYING or self.sent_ns == 0 or not self.sink.can_append():
            return False
        if self.response.content_encoding is not None:
            return False
        total = chunks_in(text, size)
        if total == 0 or self.strip_usage and not self.can_let_go(text, size):
            return False
        while at < size:
            at += chunk_at(text + at, size - at, &body)
            usage_feed(&self.usage, text + at, body)
            if self.streaming:
                scan_feed(&self.scan, text + at, body)
            at += body + 2
        if self.streaming:
            self.note_output(<int64_t> (self.scan.events - before))
        self.wrote_ns = self.moved_ns
        self.sink.write_chunks(data, total)
        return True

    cdef bint can_let_go(self, const char* chunks, Py_ssize_t size) noexcept:
        """True if `chunks` are whole events, and none is a usage event."""
        cdef Py_ssize_t at = 0, body
        if self.streaming and (self.let_go or self.held):
            return False
        while self.streaming and at < size:
            at += chunk_at(chunks + at, size - at, &body)
            if body < 2 or memcmp(chunks + at + body - 2, b"\n\n", 2) != 0:
                return False
            if memmem(chunks + at, body, b'"usage"', 7) is not NULL:
                return False
            at += body + 2
        return True

    cdef int note_first(self) except -1:
        self.first_ns = monotonic_ns()
        self.pool.prompt_tokens -= self.prompt_tokens
        self.prompt_tokens = 0
        return 0

    cdef int scan_body(self, bytes data) except -1:
        cdef uint64_t before
        if self.response.content_encoding is not None:
            return self.scan_decoded(data)
        usage_feed(&self.usage, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if self.streaming:
            before = self.scan.events
            scan_feed(&self.scan, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            self.note_output(<int64_t> (self.scan.events - before))
        return 0

    cdef int note_output(self, int64_t events) except -1:
        """An event is about a token: the worker has that much less in hand."""
        if events > self.output_tokens:
            events = self.output_tokens
        self.output_tokens -= events
        self.pool.output_tokens -= events
        return 0

    cdef int scan_decoded(self, bytes data) except -1:
        """Scan a decoded copy of a compressed answer; the answer itself passes untouched."""
        cdef bytes plain
        while self.decoder is not None and data:
            try:
                plain = self.decoder.decompress(data, DECODED_PIECE)
            except zlib.error:
                self.decoder = None
                return 0
            data = self.decoder.unconsumed_tail
            self.decoded += PyBytes_GET_SIZE(plain)
            if self.decoded > DECODED_AT_MOST:
                self.decoder = None         # a bomb, or an answer too large to read along
                return 0
            usage_feed(&self.usage, PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))
            if self.streaming:
                scan_feed(&self.scan, PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))
        return 0

    # -- before the commit point

    cdef int hold(self, bytes data) except -1:
        """Keep `data` until it holds content, then commit."""
        cdef Py_ssize_t offset = 0, ended, size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t base = len(self.held)

        self.held += data
        usage_feed(&self.usage, PyBytes_AS_STRING(data), size)
        while self.state == LEG_HOLDING:
            ended = scan_feed_one(&self.scan, PyBytes_AS_STRING(data) + offset, size - offset)
            if ended == 0:
                break
            offset += ended
            if self.judge_until(base + offset):
                return self.commit_held(data[offset:])
            base = len(self.held) - (size - offset) - offset
        if self.state == LEG_HOLDING and len(self.held) > HELD_AT_MOST:
            return self.flush_held()
        return 0

    cdef int commit_held(self, bytes rest) except -1:
        """Commit, and pass on what is held; `rest` is its end, behind the event that was content."""
        if not self.strip_usage:
            scan_feed(&self.scan, PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest))
            return self.flush_held()
        del self.held[self.judged:]
        self.flush_held()
        return self.without_usage(rest)

    cdef bint judge_until(self, Py_ssize_t end) except -1:
        """Judge the event that ends at `end` of what is held; True if it commits the answer."""
        cdef bytes event = bytes(self.held[self.judged:end])
        cdef int kind
        if self.strip_usage and is_unasked_usage(event):
            del self.held[self.judged:end]
            return False
        self.judged = end
        if self.scan.terminated:
            return True
        kind = self.owner.judge_event(self, event)
        if kind == EVENT_PREAMBLE:
            return False
        if kind == EVENT_WORKER_ERROR and self.owner.try_elsewhere(self):
            self.end(LEG_ERROR_EVENT, "sent an error event before any content")
            return False
        return True

    cdef int flush_held(self) except -1:
        cdef bytes data = bytes(self.held)
        self.held = bytearray() if self.strip_usage else None
        self.commit()
        return self.relay(data)

    cdef int without_usage(self, bytes data) except -1:
        """Pass whole events on, but not the usage event that only relayd asked for."""
        cdef Py_ssize_t offset = 0, ended, size = PyBytes_GET_SIZE(data), start = 0
        cdef bytes event
        cdef list passed = []

        while True:
            ended = scan_feed_one(&self.scan, PyBytes_AS_STRING(data) + offset, size - offset)
            if ended == 0:
                break
            offset += ended
            event = data[start:offset]
            if self.held:
                event = bytes(self.held) + event
                self.held = bytearray()
            start = offset
            self.note_output(1)
            if self.let_go or not is_unasked_usage(event):
                passed.append(event)
            self.let_go = False
        if start < size:
            self.held += data[start:]
            if len(self.held) > HELD_AT_MOST:
                passed.append(bytes(self.held))     # too long to be a usage event: let it go on
                self.held = bytearray()
                self.let_go = True
        return self.relay(b"".join(passed)) if passed else 0

    cdef int commit(self) except -1:
        """Start the client's answer: from here on nothing can be repeated."""
        cdef Py_ssize_t length = self.response.content_length
        self.state = LEG_RELAYING
        self.committed = True
        self.note_first()
        if self.late:
            return 0
        if self.status == 204 or self.status == 304:
            length = LENGTH_NO_BODY
        elif self.response.chunked or self.strip_usage and self.streaming:
            length = LENGTH_UNKNOWN
        elif length < 0:
            length = LENGTH_UNKNOWN
        self.sink.start(self.status, self.answer_lines(), length)
        return 0

    cdef bytes answer_lines(self):
        """Return the lines of the answer's head: the worker's, and what relayd adds."""
        cdef char[ADDED_AT_MOST] added
        cdef char* end = self.put_id_lines(added)
        cdef bytes date
        if self.streaming and not self.response.accel_buffering:
            end = put(end, b"X-Accel-Buffering: no\r\n", 23)
        if not self.response.has_date:
            date = http_date()
            end = put(end, b"Date: ", 6)        # RFC 9110 6.6.1
            end = put(end, PyBytes_AS_STRING(date), PyBytes_GET_SIZE(date))
            end = put(end, b"\r\n", 2)
        if self.terms.timing:
            end = put(end, b"Server-Timing: relayd;dur=", 26)
            end = put_ms(end, self.begun_ns - self.arrived_ns)
            end = put(end, b", upstream;dur=", 15)
            end = put_ms(end, self.head_ns - self.begun_ns)
            end = put(end, b"\r\n", 2)
        if self.response.has_rate_limits and b"X-RateLimit-" in self.lines:
            return without_rate_limits(self.response.block) + self.lines + added[:distance(added, end)]
        return self.response.block + self.lines + added[:distance(added, end)]

    cdef bytes id_lines(self):
        cdef char[ADDED_AT_MOST] added
        return added[:distance(added, self.put_id_lines(added))]

    cdef char* put_id_lines(self, char* end) except NULL:
        """Write the request id under the names that the worker did not use itself."""
        cdef const char* text = PyBytes_AS_STRING(self.request_id)
        cdef Py_ssize_t size = min(PyBytes_GET_SIZE(self.request_id), ID_AT_MOST)
        cdef bint untold = self.late or self.response is None      # the worker's head does not go out
        if untold or self.response.request_id is None:
            end = put(put(put(end, b"X-Request-Id: ", 14), text, size), b"\r\n", 2)
        if self.terms.plain_id and (untold or not self.response.has_plain_id):
            end = put(put(put(end, b"Request-Id: ", 12), text, size), b"\r\n", 2)
        return end

    # -- the end

    cdef int read_end(self) except -1:
        """The worker has said all it will say."""
        if self.streaming and self.terms.terminator != TERMINATOR_NONE and self.can_read():
            scan_finish(&self.scan)
            if not self.scan.terminated and not self.scan.errored:
                return self.fail(LEG_CUT, "ended the stream without its terminator")
        if self.state == LEG_HOLDING and self.streaming:
            self.flush_held()
        if self.held and self.state == LEG_RELAYING:
            self.relay(bytes(self.held))    # bytes behind the last event, in strip_usage
        self.error_passed = self.scan.errored
        if self.state == LEG_RELAYING:
            self.sink.end()
        return self.end(LEG_COMPLETE, "")

    cdef bint can_read(self):
        return self.response.content_encoding is None or self.decoder is not None

    cdef int lost_connection(self, bint answering, str reason) except -1:
        """The connection is gone while this leg was using it."""
        if self.state == LEG_ENDED:
            return 0
        if self.reused and not answering and not self.stale_retry and not self.body.lost:
            self.stale_retry = True     # it had been closed before we wrote: not the worker's fault
            self.pool.stale_retries += 1
            self.sent_ns = 0
            self.moved_ns = monotonic_ns()
            self.body.rewind()
            return self.pool.want(self)
        if self.response is None:
            return self.fail(LEG_RESET, reason + " before answering")
        return self.fail(LEG_CUT, reason + " in the middle of the answer")

    cdef int fail(self, int outcome, str reason) except -1:
        return self.end(outcome, reason)

    cdef int end(self, int outcome, str reason) except -1:
        if self.state == LEG_ENDED:
            return 0
        self.state = LEG_ENDED
        self.outcome = outcome
        self.reason = reason
        self.sink.flush()
        self.leave()
        self.pool.turn.in_step(STEP_ENDS, self.owner.leg_ended, self)
        return 0

    cdef int leave(self) except -1:
        """Give everything back: the connection, the load, the place in the sink."""
        cdef Connection connection = self.connection
        cdef Pool pool = self.pool
        if self.state == LEG_NEW:
            return 0
        self.ended_ns = monotonic_ns()
        self.terms.sweeper.remove(self)
        self.sink.detach()
        self.connection = None
        pool.ended[OUTCOMES - 1 if self.outcome == LEG_COMPLETE and self.status >= 500 else self.outcome] += 1
        pool.in_flight -= 1
        pool.prompt_tokens -= self.prompt_tokens
        pool.output_tokens -= self.output_tokens
        self.prompt_tokens = self.output_tokens = 0
        RELAYD_CHECK(pool.in_flight >= 0 and pool.output_tokens >= 0)
        if self.body.reader is self:
            self.body.reader = None
            if not self.body.lost:
                self.body.rewind()
        if connection is None:
            return 0
        connection.leg = None
        if self.sent_ns == 0 or self.outcome == LEG_CUT:
            return connection.close()
        if self.outcome == LEG_COMPLETE:
            return connection.release()
        if self.outcome == LEG_REJECTED and not connection.by_close:
            connection.draining = True      # the connection's next step is drain(), see after_feed()
            connection.idle_since = self.ended_ns
            pool.draining.add(connection)
            return connection.read_on()
        return connection.close()

    # -- flow and time

    cdef int pause(self) except -1:
        self.paused = True
        if self.connection is not None:
            self.connection.read_no_more()
        return 0

    cdef int resume(self) except -1:
        self.paused = False
        self.moved_ns = monotonic_ns()      # the worker was not given a chance to send
        if self.connection is not None:
            self.connection.read_on()
        return 0

    cdef int sweep(self, int64_t now) except -1:
        """End what has taken too long; tell a waiting client that it has not been forgotten."""
        cdef Limits limits = self.limits
        if self.deadline_ns and now > self.deadline_ns:
            return self.fail(LEG_TOTAL_TIMEOUT, "took longer than the total timeout")
        if self.state == LEG_DIALING:
            if now - self.moved_ns > limits.connect:
                return self.fail(LEG_CONNECT_TIMEOUT, "did not accept a connection in time")
        elif self.sent_ns == 0:
            # What has not arrived from the client is not the worker's to take.
            if self.body.sent < len(self.body.parts) and now - self.moved_ns > limits.idle:
                return self.fail(LEG_IDLE_TIMEOUT, "did not take the request's body in time")
        elif self.response is None and self.connection.is_stuck_in_head(now):
            return self.fail(LEG_BAD_ANSWER, "did not finish the head of its answer")
        elif self.first_ns == 0:
            if now - self.sent_ns > limits.first_token:
                return self.fail(LEG_FIRST_TOKEN_TIMEOUT, "did not begin its answer in time")
        elif not self.paused and now - self.moved_ns > limits.idle:
            return self.fail(LEG_IDLE_TIMEOUT, "stopped sending in the middle of the answer")
        if self.keepalive_ns and not self.paused and now - self.wrote_ns > self.keepalive_ns:
            return self.tell_client(now)
        return 0

    cdef int tell_client(self, int64_t now) except -1:
        """Send a keep-alive between two events, starting the answer for it if need be."""
        if self.state == LEG_RELAYING:
            if not self.streaming or not self.at_boundary or not self.sink.can_append():
                return 0
        elif self.sink.state == SINK_NEW:
            self.late = True
            self.sink.start(200, b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                            b"X-Accel-Buffering: no\r\n" + self.lines + self.id_lines(), LENGTH_UNKNOWN)
        self.wrote_ns = now
        self.sink.write(self.terms.keepalive)
        return 0


cdef inline char* put(char* out, const char* text, Py_ssize_t size) noexcept nogil:
    """Copy `text` to `out`; return where it ends."""
    memcpy(out, text, size)
    return out + size


@cython.overflowcheck(False)            # the check is not made for pointers
cdef inline Py_ssize_t distance(const char* start, const char* end) noexcept nogil:
    return end - start


cdef char* put_ms(char* out, int64_t ns) noexcept nogil:
    """Write a duration in milliseconds with two decimals."""
    cdef uint64_t hundredths = <uint64_t> max(ns, 0) // 10000
    out += put_number(out, hundredths // 100)
    out[0] = b"."
    out[1] = 48 + <char> (hundredths // 10 % 10)
    out[2] = 48 + <char> (hundredths % 10)
    return out + 3


cdef object decoder_for(bytes coding):
    """Return a zlib object that undoes `coding`, or None if there is nothing to undo or no way to."""
    if coding is None:
        return None
    if coding.lower() in (b"gzip", b"x-gzip"):
        return zlib.decompressobj(31)
    if coding.lower() == b"deflate":
        return zlib.decompressobj(15)
    return None


cdef bint is_unasked_usage(bytes event):
    """True for the event that include_usage adds: usage, and no choices."""
    return (b'"usage":{' in event or b'"usage": {' in event) and (
        b'"choices":[]' in event or b'"choices": []' in event)


# --- time -------------------------------------------------------------------------------------------

@cython.final
cdef class Sweeper:
    """Looks after everything that is late.

    A timer for each leg would cost more than the leg's own bookkeeping; a look at all open legs twenty
    times a second costs microseconds and is exact enough for timeouts of seconds.
    """

    def __init__(self, loop, double interval=0.05):
        self.loop = loop
        self.interval = interval
        self.legs = set()
        self.pools = set()

    def watch(self, Pool pool):
        """Close the idle connections of `pool` when they have been idle too long."""
        self.pools.add(pool)
        self.wake()

    def forget(self, Pool pool):
        self.pools.discard(pool)

    cdef int add(self, Leg leg) except -1:
        self.legs.add(leg)
        if self.handle is None:
            self.wake()
        return 0

    cdef int remove(self, Leg leg) except -1:
        self.legs.discard(leg)
        return 0

    def wake(self):
        if self.handle is None and self.loop is not None:
            self.handle = self.loop.call_later(self.interval, self.tick)

    def tick(self):
        """Called by the loop: sweep, and come again while there is something to look after."""
        self.handle = None
        self.sweep(monotonic_ns())
        if self.legs or any([(<Pool> pool).idle or (<Pool> pool).draining for pool in self.pools]):
            self.wake()

    def sweep(self, int64_t now):
        """Look at everything as of `now`."""
        cdef Leg leg
        cdef Pool pool
        for leg in list(self.legs):
            if leg.state != LEG_ENDED:
                leg.sweep(now)
        for pool in self.pools:
            if pool.idle:
                pool.close_idle(now - pool.idle_ns)
            if pool.draining:
                pool.close_stalled(now - DRAIN_SECONDS * <int64_t> 1000000000)

    def close(self):
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
        self.loop = None

    def __len__(self):
        return len(self.legs)
