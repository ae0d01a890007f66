"""One request as its client lives it, on the wire.

The client never retries: what relayd cannot save is a failure, and is counted as one.  It is written
on bare protocols because the machine that runs the demo also runs the gateway and three workers; the official
SDK would take more of it than all of them.

How a request can end, for whoever asked:

    answered    all of it arrived: [DONE] or a whole body, and the end of the HTTP message
    failed      no token of an answer arrived: an error status, or a connection that broke
    cut         an answer began and broke off, and the client was told: by an error event, or by a
                connection that broke in the middle of a message.  The official SDK raises on both
    silent      an answer began and ended without [DONE], as if it were whole.  Must never happen
    unfinished  the demo did not wait any longer
"""

from __future__ import annotations

import asyncio
import enum
from time import monotonic
from typing import Any, cast

import httptools
import msgspec

from relayd.demo.plan import Ask, on_the_wire

NEVER = float("inf")


class Ending(enum.StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    CUT = "cut"
    SILENT = "silent"
    UNFINISHED = "unfinished"


class Call:
    """One request and what became of it.  Times are `time.monotonic`'s."""

    def __init__(self, ask: Ask, due_at: float) -> None:
        self.ask = ask
        self.due_at = due_at
        self.sent_at = NEVER
        self.first_at = NEVER  # when the first token of a stream was there
        self.ended_at = NEVER
        self.status = 0
        self.worker = ""  # that answered, as relayd says
        self.ending: Ending | None = None
        self.how = ""  # it failed or was cut, in words
        self.told_by_event = False
        self.text = ""

    @property
    def has_begun(self) -> bool:
        """True if something of the answer has arrived."""
        return bool(self.text)

    def end(self, ending: Ending, now: float, how: str = "") -> None:
        """Note how the request ended; only the first end counts."""
        if self.ending is None:
            self.ending, self.ended_at, self.how = ending, now, how


class Client:
    """Many connections to one address, kept open and used again as an HTTP client does."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.loop = asyncio.get_running_loop()
        self.idle: list[Connection] = []
        self.all: set[Connection] = set()

    async def carry(self, call: Call) -> None:
        """Send a request and wait until it has ended, in whatever way."""
        data = on_the_wire(call.ask, f"{self.host}:{self.port}")
        try:
            connection = self.idle.pop() if self.idle else await self._connect()
        except OSError as error:
            call.sent_at = monotonic()
            call.end(Ending.FAILED, monotonic(), f"relayd cannot be reached: {error.strerror or error}")
            return
        try:
            await connection.carry(call, data)
        except asyncio.CancelledError:
            call.end(Ending.UNFINISHED, monotonic())
            raise

    async def _connect(self) -> Connection:
        _, connection = await self.loop.create_connection(lambda: Connection(self), self.host, self.port)
        return connection

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self.all):
            connection.transport.abort()


class Connection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    transport: asyncio.Transport

    def __init__(self, client: Client) -> None:
        self.client = client
        self.call: Call | None = None
        self.done: asyncio.Future[None] | None = None
        self.reader: Reader | None = None

    async def carry(self, call: Call, data: bytes) -> None:
        """Send `data`, the bytes of `call`, and wait for the end of it."""
        self.call = call
        self.reader = StreamReader(call) if call.ask.streamed else PlainReader(call)
        self.parser = httptools.HttpResponseParser(self)
        self.done = self.client.loop.create_future()
        call.sent_at = monotonic()
        if self.transport.is_closing():
            self._lost("the connection was closed while it was idle")
        else:
            self.transport.write(data)
        await self.done

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent
        self.client.all.add(self)

    def data_received(self, data: bytes) -> None:
        if self.call is None:
            return self.transport.abort()  # bytes that nobody asked for
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost(f"the answer cannot be read: {error}")
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.client.all.discard(self)
        if self in self.client.idle:
            self.client.idle.remove(self)
        self._lost("the connection was reset" if error else "the connection was closed")

    # -- httptools' side

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.call is not None
        if name.lower() == b"x-relayd-worker":
            self.call.worker = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self.call is not None
        self.call.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        assert self.reader is not None
        self.reader.read(body, monotonic())

    def on_message_complete(self) -> None:
        call, reader = self.call, self.reader
        if call is None or reader is None:
            return
        now = monotonic()
        if call.status != 200:
            call.end(Ending.FAILED, now, f"status {call.status}: {reader.rest()}")
        elif reader.is_whole():
            call.end(Ending.ANSWERED, now)
        else:
            self._broke_off(call, now, "the answer ended", Ending.SILENT)
        reuse = self.parser.should_keep_alive() and not self.transport.is_closing()
        self._finish(reuse)

    # -- ends

    def _lost(self, why: str) -> None:
        if self.call is not None:
            self._broke_off(self.call, monotonic(), why, Ending.CUT)
            self._finish(reuse=False)

    def _broke_off(self, call: Call, now: float, why: str, ending: Ending) -> None:
        if call.told_by_event:
            ending = Ending.CUT
            why = call.how
        call.end(ending if call.has_begun else Ending.FAILED, now, why)

    def _finish(self, reuse: bool) -> None:
        self.call = self.reader = None
        if reuse:
            self.client.idle.append(self)
        else:
            self.transport.close()
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


# -- what answers say


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class Reader:
    """Reads the body of one answer into its call."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.held = b""

    def read(self, body: bytes, now: float) -> None:
        """Take some more of the body."""
        self.held += body

    def is_whole(self) -> bool:
        """True if the answer is complete as far as its body says."""
        raise AssertionError("a Reader is a StreamReader or a PlainReader")

    def rest(self) -> str:
        """Return the beginning of what was not understood, for a message."""
        return self.held[:200].decode("utf-8", "replace")


class PlainReader(Reader):
    """An answer in one JSON body."""

    def is_whole(self) -> bool:
        try:
            event = _decode(self.held)
        except msgspec.MsgspecError:
            return False
        if not event.choices or event.choices[0].message is None:
            return False
        self.call.text = event.choices[0].message.content or ""
        return True


class StreamReader(Reader):
    """An answer in server-sent events."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.parts: list[str] = []
        self.is_done = False

    def read(self, body: bytes, now: float) -> None:
        *events, self.held = (self.held + body).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                self._read_event(event[6:], now)

    def _read_event(self, data: bytes, now: float) -> None:
        call = self.call
        if data == b"[DONE]":
            self.is_done = True
            return
        event = _decode(data)
        if event.error is not None:
            call.told_by_event = True
            call.how = f"an error event: {data[:200].decode('utf-8', 'replace')}"
        elif event.choices and event.choices[0].delta and event.choices[0].delta.content:
            call.first_at = min(call.first_at, now)
            call.text += event.choices[0].delta.content

    def is_whole(self) -> bool:
        return self.is_done and not self.call.told_by_event
