"""One client's connection: requests in, bytes out.

httptools parses; this class adds what a server needs around it: one request answered at a
time, in order (a client may send the next before the answer to the last), bodies with a
length or in chunks, `Expect: 100-continue`, bounds, keep-alive, back-pressure, slow
drip, and noticing at once that the client has left.

A client's FIN counts as leaving, as it does for the servers this one imitates.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING, cast

import httptools

from relayd.mock.drip import Drip
from relayd.mock.ledger import Headers

if TYPE_CHECKING:
    from relayd.mock.exchange import Exchange
    from relayd.mock.server import MockServer

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_PIPELINED = 32  # complete requests that wait; beyond, reading stops
WRITE_HIGH_BYTES = 64 * 1024

_FLUSH_POLL_S = 0.001
_FLUSH_POLLS = 5000  # five seconds, then the reset comes without the bytes before it


class Request:
    """One complete request."""

    __slots__ = ("body", "fields", "headers", "http_1_0", "keep_alive", "method", "path", "query")

    def __init__(self) -> None:
        self.method = b""
        self.path = ""
        self.query = b""
        self.headers: Headers = []  # as they came, names in lower case
        self.fields: dict[bytes, bytes] = {}  # the same, by name; of repeated ones the last
        self.body = b""
        self.keep_alive = True
        self.http_1_0 = False


class Connection(asyncio.Protocol):
    """See the module; `server` decides what is answered."""

    def __init__(self, server: MockServer) -> None:
        self.server = server
        self.exchange: Exchange | None = None  # the request being answered
        self.paused = False  # the client does not take what it is sent
        self.number = 0
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._url = b""
        self._chunks: list[bytes] = []
        self._head_bytes = 0
        self._body_bytes = 0
        self._complete: list[Request] = []
        self._refusal: int | None = None  # the status with which the connection ends
        self._drip: Drip | None = None
        self._lost = False

    # --- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH_BYTES)
        self.number = self.server.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_left()
        self.server.connection_lost(self, was_reset=exc is not None)

    def eof_received(self) -> bool | None:
        answering = self.exchange is not None
        self._client_left()
        if answering:
            self.transport.abort()
        return None

    def _client_left(self) -> None:
        self._lost = True
        self._complete.clear()
        if self._drip:
            self._drip.stop()
        exchange, self.exchange = self.exchange, None
        if exchange:
            exchange.client_left()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.exchange:
            self.exchange.resume()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The upgrade is declined by answering as if it had not been asked for.
            if self._complete:
                self._complete[-1].keep_alive = False
        except httptools.HttpParserError:
            self._refuse(400)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431)
        if self.exchange is None:
            self._next()

    # --- what the parser calls; none of it may raise

    def on_message_begin(self) -> None:
        self._request = Request()
        self._url = b""
        self._chunks = []
        self._head_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers.append((name.lower(), value))
        self._head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        request = self._request
        request.method = self._parser.get_method()
        request.http_1_0 = self._parser.get_http_version() == "1.0"
        path, _, request.query = self._url.partition(b"?")
        request.path = path.decode("latin-1")
        fields = request.fields = dict(request.headers)
        if int(fields.get(b"content-length", b"0")) > MAX_BODY_BYTES:  # digits: the parser has seen to that
            self._refuse(413)
        elif b"expect" in fields and fields[b"expect"].lower() == b"100-continue" and not request.http_1_0:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413)
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self._refusal is not None:
            return
        request = self._request
        request.keep_alive = self._parser.should_keep_alive()
        request.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._complete.append(request)
        if len(self._complete) == MAX_PIPELINED:
            self.transport.pause_reading()

    def _refuse(self, status: int) -> None:
        if self._refusal is None:
            self._refusal = status

    # --- one request at a time

    def _next(self) -> None:
        while self.exchange is None and not self._lost:
            if self._complete:
                self._answer(self._complete.pop(0))
            elif self._refusal is not None:
                self._lost = True
                self.server.refuse(self, self._refusal)
                self.transport.close()
            else:
                return

    def _answer(self, request: Request) -> None:
        if len(self._complete) == MAX_PIPELINED - 1:
            self.transport.resume_reading()
        self.server.handle(self, request)

    def answered(self, keep_alive: bool) -> None:
        """The answer is complete: go on to the next request, or close."""
        if self._drip:
            self._drip.when_empty(lambda: self._answered(keep_alive))
        else:
            self._answered(keep_alive)

    def _answered(self, keep_alive: bool) -> None:
        self._drip = None
        self.exchange = None
        if not keep_alive:
            self.close()
        elif self._complete or self._refusal is not None:
            self.server.loop.call_soon(self._next)  # not now: a long pipeline would nest as deeply

    # --- bytes out

    def write(self, data: bytes) -> None:
        """Send `data`, at the speed that was asked for."""
        if self._drip:
            self._drip.add(data)
        else:
            self.transport.write(data)

    def drip(self, bytes_per_s: float) -> None:
        """Send what follows slowly, until the answer ends."""
        self._drip = Drip(self, bytes_per_s)

    @property
    def can_take_more(self) -> bool:
        """Whether there is any use in writing now."""
        return not self.paused and not (self._drip and self._drip.is_full)

    def close(self) -> None:
        """Send what was written, then FIN."""
        self._lost = True
        self.exchange = None
        if self._drip:
            self._drip.when_empty(self.transport.close)
        else:
            self.transport.close()

    def reset(self) -> None:
        """Send what was written, then RST."""
        self._lost = True
        self.exchange = None
        self.server.stats.connections_aborted += 1
        if self._drip:
            self._drip.when_empty(self._reset_when_flushed)
        else:
            self._reset_when_flushed()

    def _reset_when_flushed(self, polls: int = _FLUSH_POLLS) -> None:
        if self.transport.get_write_buffer_size() and polls:
            self.server.loop.call_later(_FLUSH_POLL_S, self._reset_when_flushed, polls - 1)
            return
        linger_none(self.transport)
        self.transport.abort()


def linger_none(transport: asyncio.BaseTransport) -> None:
    """Make the close that follows a reset.  A duplicate is used since loops hide the socket itself."""
    fd = transport.get_extra_info("socket").fileno()
    if fd < 0:
        return
    with socket.socket(fileno=os.dup(fd)) as twin:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
