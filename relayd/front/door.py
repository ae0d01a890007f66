"""aiohttp's door: HTTP in, exchanges out.

aiohttp's C parser (llhttp) and its body streams read the requests; the answer is written by a sink,
straight to the transport.  `Door` is in the place of aiohttp's RequestHandler and runs no task: each step is
a reaction to bytes, to the end of an exchange, or to time.  That closes what plain aiohttp leaves open
(bounds on heads and on framing, three timers, Expect, pause in both directions, a drain that kills
nothing) and costs no task per request.  Compiled, with the types of door.pxd.

    IDLE --first byte--> HEAD --head--> EXCHANGE --answer--> IDLE
                           |                |
                           +----fault-------+--> CLOSING --> gone

CLOSING: the last answer has been written; what still arrives is thrown away for a moment, so that a client
that is still sending can read it (a close with unread data would reset the connection).
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, cast

from aiohttp.http import HttpRequestParser, HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.tcp_helpers import tcp_keepalive, tcp_nodelay

from relayd._fast.head import RequestHead, is_one_message
from relayd._fast.leg import RequestBody, now_ns
from relayd._fast.sink import HttpSink, SinkState, reset
from relayd._fast.turn import AT_ONCE, Outlet, Step, Turn
from relayd.config import Settings
from relayd.faults import Fault, fault
from relayd.phases.driver import Driver
from relayd.phases.routes import route_for
from relayd.readers import UNIX
from relayd.records import Client, Exchange


class DoorState(IntEnum):
    """What a connection is doing."""

    IDLE = 0
    HEAD = 1
    EXCHANGE = 2
    CLOSING = 3


# As plain numbers, which compiled code compares in one step.
IDLE, HEAD, EXCHANGE, CLOSING = map(int, DoorState)
SINK_NEW, SINK_ABORTED = int(SinkState.SINK_NEW), int(SinkState.SINK_ABORTED)
REQUESTS, HEADS, PHASES = int(Step.STEP_REQUESTS), int(Step.STEP_HEADS), int(Step.STEP_PHASES)

WRITE_HIGH = 64 << 10  # bytes waiting for a client before its worker is paused
WRITE_LOW = 16 << 10
READ_BUFFER = 64 << 10  # of a body that nobody takes; aiohttp pauses at twice this
KEEP_FOR_RETRY = 1 << 20  # bytes of a streamed body that another leg could send again
# States of a TCP connection in which the other side has said that it will send no more, or is gone:
# FIN_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING (include/net/tcp_states.h).
TCP_GONE = frozenset((4, 5, 7, 8, 9, 11))
LINGER_S = 2.0
NS = 1_000_000_000
# Bytes of chunk framing and trailers that a body may have: this much, and sixteen for each of its own.
FRAMING_AT_MOST = 16 << 10
FRAMING_PER_BYTE = 16

FIRST_LINE_AT_MOST = 8 << 10
HEADERS_AT_MOST = 256
REQUESTS_AT_MOST = 32  # that wait behind the one being served
REQUESTS_AGAIN = 16  # when no more than these wait, more are read
REQUESTS_IN_A_ROW = 4  # that are answered at once before other connections have their turn


class Door:
    """One client connection: an asyncio protocol."""

    def __init__(self, house: House) -> None:
        self.driver = house.driver
        self.house = house
        self.turn = house.turn
        self.outlet: Outlet | None = None
        self.arrived = b""  # read, and put off to the end of the turn
        self.exchange: Exchange | None = None
        self.payload: StreamReader | None = None
        self.sink: HttpSink | None = None
        self.state = IDLE
        self.since_ns = 0  # when the state, or the body's last progress, began
        self.write_since_ns = 0  # when the client last took something
        self.last_buffered = 0
        self.head_bytes = 0
        self.first_line = b""  # what has come of the head being read, as far as it is known
        self.line_known = True
        self.wire_bytes = 0
        self.alone = False  # nothing but the head being read, and its body, has come since IDLE
        # The last bytes read, since the end of a head may be cut anywhere; None where a message begins.
        self.seam: bytes | None = None
        self.unfinished = False  # the last bytes of heads brought no whole one
        self.advancing = False
        self.pumping = False
        self.client = Client("")
        self.transport: asyncio.Transport | None = None
        self.closing = False  # nothing that comes is looked at any more
        self.write_paused = False
        self._reading_paused = False  # aiohttp's: a body has enough (its streams look at it)
        self.queue_full = False  # enough requests are waiting
        self.in_a_row = 0  # requests since others had their turn
        self.yielding = False  # others have it now
        self.messages: deque[tuple[Any, Any]] = deque()
        self.parser: Any = HttpRequestParser(
            cast(Any, self),
            house.loop,
            READ_BUFFER,
            max_line_size=house.max_head,
            max_field_size=house.max_head,
            max_headers=HEADERS_AT_MOST,
            auto_decompress=False,
            max_msg_queue_size=REQUESTS_AT_MOST,
        )

    # -- the transport's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a new connection, or refuse it when there are too many."""
        self.transport = transport
        tcp_nodelay(transport, True)
        tcp_keepalive(transport)
        self.outlet = Outlet(transport, self.turn)
        transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        peer = transport.get_extra_info("peername")
        self.client = Client(peer[0] if isinstance(peer, tuple) else UNIX)
        self.since_ns = self.write_since_ns = now_ns()
        self.house.doors.add(self)
        self.driver.books.connections(1)
        limit = self.house.settings.front.max_connections
        if limit and len(self.house.doors) > limit:
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone, or was sent away."""
        self.turn.settle()  # what came before the end counts
        if self.outlet is not None:
            self.outlet.lost()
        if self in self.house.doors:
            self.driver.books.connections(-1)
        self.house.doors.discard(self)
        self.house.unread.discard(self)
        self.closing = True
        self.transport = None
        self._client_gone()
        self.parser = None
        self.payload = None
        self.sink = None
        self.messages.clear()
        self.house.door_closed()

    def eof_received(self) -> None:
        """A FIN: closing and half-closing look the same on the wire, and mean that the client has left."""
        self.turn.settle()
        sink = self.sink
        self._client_gone()
        if sink is not None:
            sink.abort()  # it may be reading still: what it got must not look whole

    def _client_gone(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self.driver.client_gone(exchange)

    def data_received(self, data: bytes) -> None:
        """Take what came; a large piece is handled at once, others at the end of the turn."""
        if self.closing:
            return  # CLOSING: read and thrown away
        if self.arrived:
            self.arrived += data
            if len(self.arrived) >= AT_ONCE:
                self.turn.settle()
        elif 0 < len(data) < AT_ONCE:
            self.arrived = data
            self.turn.put_off(REQUESTS, Door._receive_arrived, self)
        else:
            self._receive(data)

    def _receive_arrived(self) -> None:
        data, self.arrived = self.arrived, b""
        self._receive(data)

    def drop(self) -> None:
        """Cut the connection: relayd itself failed on it."""
        if self.transport is not None:
            self.transport.abort()

    def _receive(self, data: bytes) -> None:
        """Parse what came, and go on with it; nothing is what aiohttp gives when it wants to go on."""
        if self.closing:
            return
        if self.state == IDLE and data and not self.messages:
            self.state = HEAD
            self.since_ns = now_ns()
            self.alone = True
            self.in_a_row = 0
        if self.payload is None:
            self._receive_heads(data)
        else:
            if data:
                self.wire_bytes += len(data)
                self.since_ns = now_ns()
            self._receive_body(data)
            if not self.pumping:
                self._pump()
        if self.messages and self.exchange is None:
            self.turn.in_step(HEADS, Door._advance, self)

    def _parse(self, data: bytes) -> bool:
        """Feed the parser; return True if there are more messages now.

        This is what aiohttp's data_received does, without what it does for its task and for other protocols:
        after a request that asked for one HTTP goes on.
        """
        assert self.parser is not None
        messages, waiting = self.messages, len(self.messages)
        upgraded = True
        while upgraded:
            try:
                found, upgraded, data = self.parser.feed_data(data)
            except HttpProcessingError as error:
                found, upgraded = [(error, EMPTY_PAYLOAD)], False
            messages.extend(found)
            if upgraded:
                self.parser.set_upgraded(False)
        if len(messages) >= REQUESTS_AT_MOST and not self.queue_full:
            self._hold_requests_back()
        return len(messages) > waiting

    def _receive_heads(self, data: bytes) -> None:
        """Parse what is the head of a request, or several, while one may still be served."""
        self.head_bytes += len(data)
        if self.seam is None and is_one_message(data):
            if not self._receive_head(data) or not self.messages[-1][1].is_eof():
                self.seam = data[-3:]
        elif not data:
            self._receive_head(data)
            self.seam = self.seam or b""
        else:
            self._receive_pieces(data)
        if self.state == HEAD:
            if not self.messages:
                self._check_unfinished_head()
        elif data:
            self.alone = False
            if self.head_bytes > self.house.max_head and not self.queue_full:
                self._hold_requests_back()  # enough of what comes after the request being served

    def _receive_body(self, data: bytes) -> None:
        """Parse more of a body, and what comes behind it."""
        payload, exchange = self.payload, self.exchange
        assert payload is not None
        assert exchange is not None
        left = exchange.body.declared - payload.total_bytes
        if not data or len(data) <= left:
            self._parse(data)
            self.seam = None if len(data) == left else b""
        else:
            for piece in after_blank_lines(data, self.seam or b""):
                self._parse(piece)
            self.seam = ((self.seam or b"") + data[-3:])[-3:]

    def _receive_pieces(self, data: bytes) -> None:
        """Parse the rest of a head, or several messages, every head alone."""
        piece = b""
        for piece in after_blank_lines(data, self.seam or b""):
            self._receive_head(piece)
        at_end = piece.endswith(b"\r\n\r\n") and self.messages and self.messages[-1][1] is EMPTY_PAYLOAD
        self.seam = None if at_end else ((self.seam or b"") + data[-3:])[-3:]

    def _receive_head(self, piece: bytes) -> bool:
        """Parse what may be part of a head; return True if that brought a message."""
        if self._parse(piece):
            self.unfinished = False
            self.first_line = b""
            # Behind a body the next head may have begun, and only the parser knows.
            self.line_known = piece.endswith(b"\r\n\r\n")
            return True
        if piece:
            self.unfinished = True
            if len(self.first_line) < FIRST_LINE_AT_MOST:
                self.first_line += piece[:FIRST_LINE_AT_MOST]
        return False

    # -- when the client is read

    @property
    def connected(self) -> bool:
        """Aiohttp's streams ask."""
        return self.transport is not None

    def pause_reading(self) -> None:
        """Read no more: aiohttp says that a body has enough."""
        self._reading_paused = True
        if self.parser is not None:
            self.parser.pause_reading()
        self._pause_transport()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading; aiohttp asks for it after every body, paused or not."""
        if not self._reading_paused:
            return
        self._reading_paused = False
        if resume_parser:
            self.data_received(b"")  # what the parser had kept back
        if not (self._reading_paused or self.queue_full):
            self._resume_transport()

    def _hold_requests_back(self) -> None:
        """Read no more: enough has come of what follows the request being served."""
        self.queue_full = True
        self._pause_transport()

    def _let_requests_in(self) -> None:
        """Go on with requests that the parser has kept back, and read on if they leave room."""
        self.data_received(b"")
        if len(self.messages) < REQUESTS_AT_MOST:
            self.queue_full = False
            if not self._reading_paused:
                self._resume_transport()

    def _pause_transport(self) -> None:
        """Stop reading: a client that leaves now would not be noticed, so House looks after it."""
        if self.transport is not None:
            try:
                self.transport.pause_reading()
            except RuntimeError:
                pass  # it is closing, or not being read
            self.house.watch_unread(self)

    def _resume_transport(self) -> None:
        if self.transport is not None:
            try:
                self.transport.resume_reading()
            except RuntimeError:
                pass  # it is closing, or being read
        self.house.unread.discard(self)

    def has_left(self) -> bool:
        """True if the client has closed or reset the connection, as the kernel knows without a read."""
        connection = self.transport.get_extra_info("socket") if self.transport is not None else None
        if connection is None:
            return False
        try:
            state: int = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            return True
        return state in TCP_GONE

    def pause_writing(self) -> None:
        """The client does not keep up: stop what fills the sink."""
        self.write_paused = True
        self.write_since_ns = now_ns()
        if self.sink is not None:
            self.sink.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.write_paused = False
        if self.sink is not None:
            self.sink.resume()
        self._advance()

    # -- requests

    def _advance(self) -> None:
        """Start exchanges while there are messages, none is being served, and the client reads.

        Whoever sends many at once, and is refused each, would otherwise keep everybody else waiting.
        """
        if self.advancing or self.closing or self.yielding:
            return
        self.advancing = True
        try:
            while self.messages and self.exchange is None and not (self.write_paused or self.closing):
                if self.in_a_row == REQUESTS_IN_A_ROW:
                    self.yielding = True
                    self.house.call_soon(self._advance_again)
                    break
                self.in_a_row += 1
                self._next_message()
        finally:
            self.advancing = False

    def _advance_again(self) -> None:
        self.in_a_row = 0
        self.yielding = False
        self._advance()

    def _next_message(self) -> None:
        message, payload = self.messages.popleft()
        if self.parser is not None:
            self.parser.message_consumed()
        if self.queue_full and len(self.messages) <= REQUESTS_AGAIN:
            self._let_requests_in()
        if isinstance(message, HttpProcessingError):
            self._refuse_unread(parse_fault(message))
        else:
            self._begin(message, payload)

    def _check_unfinished_head(self) -> None:
        """Refuse a head that is too large, or whose first line llhttp reads as HTTP/0.9."""
        limit = self.house.max_head
        line, ended, _ = self.first_line.lstrip(b"\r\n").partition(b"\r\n")
        if self.head_bytes > limit:
            self._refuse_unread(fault("head_too_large", f"more than {limit} bytes (front.max_head)"))
        elif self.line_known and ended and not line.endswith((b" HTTP/1.1", b" HTTP/1.0")):
            self._refuse_unread(fault("bad_request", "its first line names no HTTP version served here"))

    def _begin(self, message: RawRequestMessage, payload: Any) -> None:
        """Make an exchange of a head, and hand it to the driver."""
        assert self.outlet is not None
        version, now = message.version, now_ns()
        if version is HttpVersion11:
            minor = 1
        elif version is HttpVersion10:
            minor = 0
        elif version.major == 0:
            return self._refuse_unread(fault("bad_request", "HTTP/0.9 is not served here"))
        else:
            minor = -1
        self.state = EXCHANGE
        target = message.path.encode("utf-8", "surrogateescape")
        head = RequestHead(message.method, target, minor, message.raw_headers)
        # What the body's framing is counted from: this read, if it brought nothing but this request.
        self.wire_bytes = max(0, self.head_bytes - head.size) if self.alone and not self.messages else 0
        self.head_bytes = 0
        if head.size > self.house.max_head:
            limit = f"more than {self.house.max_head} bytes (front.max_head)"
            return self._refuse_unread(fault("head_too_large", limit))
        # Behind a body that asked for another protocol aiohttp drops bytes: what follows is not clear.
        unclear = message.upgrade and payload is not EMPTY_PAYLOAD
        keep_alive = not (message.should_close or head.fault or minor < 0 or self.house.draining or unclear)
        sink = self.sink = HttpSink(self.outlet, 0 if minor == 0 else 1, message.method == "HEAD", keep_alive)
        if self.write_paused:
            sink.pause()
        if payload is EMPTY_PAYLOAD:
            declared = 0 if head.content_length == 0 else -2
        else:
            declared = -1 if head.chunked else head.content_length
            self.payload = payload
            self.line_known = False  # the next head may begin in the read that ends this body
        route = route_for(head.method, head.path, head.anthropic)
        body = RequestBody(declared, self.house.max_body if route.body == "json" else KEEP_FOR_RETRY)
        self.exchange = Exchange(self, head, sink, body, self.client, route, now)
        if payload is not EMPTY_PAYLOAD:
            if head.fault == 0:
                self._take_arrived(body)
            if self.payload is not None:
                body.on_room = self._pump
        self.turn.in_step(PHASES, Door._go_on, self)
        return None

    def _go_on(self) -> None:
        """Hand a new exchange to the driver, and what more has come of its body."""
        exchange = self.exchange
        if exchange is not None:
            self.driver.begin(exchange)
            if self.exchange is exchange:
                self.in_a_row = 0  # it waits for something, and others have their turn
        if self.payload is not None and not self.pumping:
            self._pump()

    def _take_arrived(self, body: RequestBody) -> None:
        """Give the body what came together with the head: the whole of it, for most requests."""
        payload = self.payload
        assert payload is not None
        if payload._exception is not None or self._is_mostly_framing(payload, body):
            return None  # _pump says what is wrong
        buffer = payload._buffer
        if len(buffer) == 1 and payload._eof:
            body.feed(buffer.popleft())  # what read_nowait does, at a fifth of its price
            return self._body_has_come(payload, body)
        if payload._size:
            self.pumping = True  # taking some makes aiohttp go on with what it had kept back
            try:
                body.feed(payload.read_nowait(-1))
            finally:
                self.pumping = False
        if payload.at_eof():
            self._body_has_come(payload, body)
        return None

    # -- bodies

    def want_body(self) -> None:
        """Answer Expect, now that the request will be served."""
        exchange = self.exchange
        if exchange is None or self.outlet is None or self.payload is None:
            return
        asks = exchange.head.expect_continue and self.sink is not None and self.sink.version_minor == 1
        if asks and exchange.sink.state == SINK_NEW:
            self.outlet.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pump(self) -> None:
        """Move what has arrived of the body to where it is wanted."""
        if self.pumping:
            return
        self.pumping = True
        try:
            while self._pump_some():
                pass
        finally:
            self.pumping = False

    def _pump_some(self) -> bool:
        """Move one piece; return True if there may be another."""
        exchange, payload = self.exchange, self.payload
        if exchange is None or payload is None or exchange.ended:
            return False
        if payload.exception() is not None or (self._has_parse_error() and not payload.is_eof()):
            self._body_failed(fault("bad_body", "is not framed as HTTP says"))
            return False
        body = exchange.body
        if self._is_mostly_framing(payload, body) and not self.messages:
            self._body_failed(fault("bad_body", "has more framing than content"))
            return False
        if body.full and not self.driver.wants_whole_body(exchange):
            return False
        moved = bool(payload._size)
        if moved:
            body.feed(payload.read_nowait(-1))
        if payload.at_eof():
            self._body_has_come(payload, body)
        elif not moved:
            return False
        if self.exchange is exchange:
            self.driver.body_arrived(exchange)
        return self.payload is not None

    def _body_has_come(self, payload: StreamReader, body: RequestBody) -> None:
        self.payload = None
        body.on_room = None
        # Bytes behind a body of known length, that are no whole head yet, are the beginning of one.
        self.unfinished = body.declared >= 0 and not self.messages and self.wire_bytes > payload.total_bytes
        body.finish()

    def _has_parse_error(self) -> bool:
        """True if the parser gave up: in the middle of a body it does not tell the body."""
        return bool(self.messages) and isinstance(self.messages[-1][0], HttpProcessingError)

    def _is_mostly_framing(self, payload: StreamReader, body: RequestBody) -> bool:
        if body.declared >= 0:
            return False  # a body of known length has none
        size = payload.total_bytes
        return self.wire_bytes - size > FRAMING_AT_MOST + FRAMING_PER_BYTE * size

    def _body_failed(self, refused: Fault) -> None:
        exchange = self.exchange
        if exchange is not None:
            if self.sink is not None:
                self.sink.close_after()
            self.driver.body_failed(exchange, refused)

    # -- ends

    def exchange_ended(self, exchange: Exchange) -> None:
        """The answer has been written, or never will be: go on with the next, or close."""
        if self.exchange is not exchange:
            return  # its client had left
        self.exchange = None
        sink = self.sink
        self.sink = None
        body_pending, self.payload = self.payload is not None, None
        if sink is None or self.transport is None:
            return
        if sink.state == SINK_ABORTED:
            self.closing = True
            self.state = CLOSING
            self.since_ns = now_ns()
        elif body_pending or not sink.keep_alive or self.closing:
            self._finish_closing()
        else:
            self.state = HEAD if self.unfinished and not self.messages else IDLE
            self.since_ns = now_ns()
            if self.queue_full and len(self.messages) <= REQUESTS_AGAIN:
                self._let_requests_in()
            if self.messages:
                self._advance()

    def _finish_closing(self) -> None:
        """Send FIN behind the answer and read on for a moment, so that the client can take it."""
        assert self.transport is not None
        assert self.outlet is not None
        self.closing = True
        self.state = CLOSING
        self.since_ns = now_ns()
        self.write_since_ns = self.since_ns
        self.messages.clear()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.outlet.flush()
            self.transport.write_eof()
            self._read_on()
        else:
            self.outlet.close()

    def _read_on(self) -> None:
        self._reading_paused = self.queue_full = False
        self._resume_transport()

    def _refuse_unread(self, refused: Fault) -> None:
        """Answer something that is no request, and close."""
        if self.outlet is None or self.transport is None:
            return
        head = RequestHead("GET", b"/", 1, [(b"Host", b"unread")])
        self.sink = HttpSink(self.outlet, 1, False, False)
        now = now_ns()
        route = route_for("GET", b"/", False)
        exchange = Exchange(self, head, self.sink, RequestBody(-2, 0), self.client, route, now)
        self.exchange = exchange
        self.state = EXCHANGE
        self.driver.begin_refused(exchange, refused)

    # -- time

    def sweep(self, now: int) -> None:
        """End what has taken too long.  Called once in a while for every open door."""
        transport = self.transport
        if transport is None:
            return
        limits = self.house.settings.front
        waited_s = (now - self.since_ns) / NS
        if self._takes_nothing(now):
            reset(transport)  # a FIN could look like the end of the answer
        elif self.messages and self.exchange is None:
            pass  # requests wait until the client takes the answers that it has asked for
        elif self.state == IDLE:
            if limits.keepalive and waited_s > limits.keepalive:
                transport.close()
        elif self.state == HEAD:
            if limits.head_timeout and waited_s > limits.head_timeout:
                if self.first_line.strip():
                    self._refuse_unread(fault("head_timeout"))
                else:
                    transport.close()  # a stray line end, as some clients send behind a body
        elif self.state == CLOSING:
            if waited_s > LINGER_S and not transport.get_write_buffer_size():
                transport.abort()
        elif self.payload is not None and limits.body_timeout and waited_s > limits.body_timeout:
            self._check_body_progress()

    def _check_body_progress(self) -> None:
        exchange = self.exchange
        if exchange is not None and (not exchange.body.full or self.driver.wants_whole_body(exchange)):
            self._body_failed(fault("body_timeout"))

    def _takes_nothing(self, now: int) -> bool:
        """True if bytes have waited for the client all through the write timeout."""
        assert self.transport is not None
        buffered = self.transport.get_write_buffer_size()
        if buffered:
            buffered += bytes_in_kernel(self.transport)
        if buffered == 0 or buffered != self.last_buffered:
            self.write_since_ns = now
        self.last_buffered = buffered
        limit = self.house.settings.resilience.timeouts.write
        return bool(buffered and limit and now - self.write_since_ns > limit * NS)

    def close_if_idle(self) -> None:
        """Close a connection that serves nobody: relayd is draining."""
        if self.state == IDLE and self.transport is not None and not self.yielding:
            self._finish_closing()

    def cut(self) -> None:
        """End the connection, and what is under way on it; a drain has come before."""
        if self.exchange is not None:
            self.driver.stopped(self.exchange)
        if self.transport is None:
            return
        if self.outlet is not None:
            self.outlet.flush()
        self.transport.close()  # what its client has not taken by now is lost with the loop


class House:
    """Makes doors, and looks after all of them."""

    SWEEP_EVERY_S = 0.5
    LOOK_EVERY_S = 0.05  # a client's leaving is to be noticed within 100 ms

    def __init__(self, driver: Driver, settings: Settings, turn: Turn) -> None:
        self.loop = asyncio.get_running_loop()
        self.call_soon: Callable[..., object] = self.loop.call_soon
        self.driver = driver
        self.settings = settings
        self.turn = turn
        self.max_head = settings.front.max_head
        self.max_body = settings.max_body
        self.doors: set[Door] = set()
        self.unread: set[Door] = set()  # doors whose sockets are not being read
        self._unread_timer: asyncio.TimerHandle | None = None
        self.draining = False
        self.empty: asyncio.Event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> Door:
        """Return the protocol of a new connection."""
        return Door(self)

    def start_sweeping(self) -> None:
        """Look after late doors from now on."""
        self._timer = self.loop.call_later(self.SWEEP_EVERY_S, self._sweep)

    def _sweep(self) -> None:
        self.turn.settle()
        now = now_ns()
        for door in list(self.doors):
            door.sweep(now)
        self.start_sweeping()

    def watch_unread(self, door: Door) -> None:
        """Look whether the client of `door`, which is not being read, is still there."""
        self.unread.add(door)
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self.LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._unread_timer = None
        for door in list(self.unread):
            if door.has_left() and door.transport is not None:
                reset(door.transport)
        if self.unread:
            self._unread_timer = self.loop.call_later(self.LOOK_EVERY_S, self._look)

    def door_closed(self) -> None:
        """A connection is gone."""
        if self.draining and not self.doors:
            self.empty.set()

    def drain(self) -> None:
        """Close idle connections now and every other one after its answer."""
        self.turn.settle()  # what has arrived is still served
        self.draining = True
        for door in list(self.doors):
            if door.sink is not None:
                door.sink.close_after()
            door.close_if_idle()
        if not self.doors:
            self.empty.set()

    def shutdown(self) -> None:
        """Cut every connection that is left."""
        for timer in (self._timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        for door in list(self.doors):
            door.cut()


def bytes_in_kernel(transport: asyncio.Transport) -> int:
    """Return how many bytes the kernel holds that the client has not acknowledged (tcp(7), SIOCOUTQ)."""
    connection = transport.get_extra_info("socket")
    try:
        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, AttributeError, ValueError):
        return 0  # no socket, or no longer
    return int.from_bytes(answer, sys.byteorder)


def after_blank_lines(data: bytes, seam: bytes) -> Iterator[bytes]:
    """Yield `data` in pieces that end behind blank lines, which may have begun in `seam`, what came before.

    So every head is fed alone, with at most the end of a body in front of it.  Behind an upgrade aiohttp
    drops what follows, behind a close llhttp calls it an error, and an error takes along the messages in
    front of it: good requests would lose their answers.
    """
    text, start = seam + data, len(seam)
    searched = 0
    while start < len(text):
        end = text.find(b"\r\n\r\n", searched)
        stop = len(text) if end < 0 else end + 4
        if stop > start:
            yield text[start:stop]
            start = stop
        searched = stop


def parse_fault(error: HttpProcessingError) -> Fault:
    """Return the fault for bytes that the parser did not accept."""
    text = str(error.message or "malformed")
    if isinstance(error, LineTooLong) or "Too many headers" in text or "too long" in text:
        return fault("head_too_large", "see front.max_head")
    first = text.strip().splitlines()[0] if text.strip() else "malformed"
    return fault("bad_request", first.rstrip(":")[:120].encode("ascii", "backslashreplace").decode("ascii"))
