"""A scripted upstream: a server that does exactly what the test says and notes what was done to it.

A script is a list of operations, in the words of the wire cases (`tests/conformance/README.md`):

    send, send_b64       raw bytes                       end          the last chunk
    chunk, chunk_b64     one HTTP chunk                  sleep        seconds
    chunk_parts          one chunk of [text, times]...   fin, rst     close, reset
    repeat, gap          times, seconds in between       await_close  wait for the peer to leave
    read                 "head": start before the body has been read; "body": read it now;
                         "nothing": let what the peer sends pile up, and do nothing else
    gate                 a Gate: wait until the test opens it

The request's body is read before the script starts unless the first operation is `read: head`.
After a script that did not close, the connection waits for the next request.

    with Upstream(stream(openai.text("hi"), openai.DONE)) as upstream:
        ...
        assert upstream.requests[0].header("content-length") == "2"
        assert upstream.connections[0].closed_at - left_at < 0.1

Which script answers which request: `play(a, b)` answers the first with `a` and all others with `b`;
`play_by(f)` asks `f(request)` once the request's body has been read.  The questions a gateway asks for
itself (its list of models, health) are answered alike by every upstream and kept apart, in `probes`.

It listens on one port for its whole life; `refuse()` makes connects fail without giving the port up,
and `kill()` also resets what is open, as a crash does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.backstage import BACKSTAGE

Operation = dict[str, Any]
Script = Sequence[Operation]

STREAM_LIMIT = 1 << 17  # longer heads than that are nobody's
PAUSE_LIMIT_S = 60.0
PROBE = re.compile(rb"GET /(health|healthz|ready|v1/models|metrics|server_info|get_server_info)[ ?]")


# Scripts in a word


def send(data: bytes | str) -> Operation:
    """Return the operation that sends raw bytes."""
    return {"send_b64": base64.b64encode(data.encode() if isinstance(data, str) else data).decode()}


def chunk(data: bytes | str) -> Operation:
    """Return the operation that sends one HTTP chunk."""
    return {"chunk_b64": base64.b64encode(data.encode() if isinstance(data, str) else data).decode()}


def head(status: int = 200, *headers: tuple[str, str]) -> Operation:
    """Return the operation that sends a response head."""
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers), "", ""]
    return send("\r\n".join(lines).encode("latin-1"))


def reply(body: Any, status: int = 200, *headers: tuple[str, str]) -> list[Operation]:
    """Return the script of a whole plain answer: bytes as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    framing = [("content-type", "application/json"), ("content-length", str(len(data)))]
    given = {name.lower() for name, _ in headers}
    kept = [pair for pair in framing if pair[0] not in given]
    return [head(status, *kept, *headers), send(data)]


def stream_head(*headers: tuple[str, str]) -> Operation:
    """Return the operation that sends the head of an event stream."""
    return head(200, ("content-type", "text/event-stream"), ("transfer-encoding", "chunked"), *headers)


def stream(*events: str, gap: float = 0.0) -> list[Operation]:
    """Return the script of a whole event stream, one chunk an event."""
    return [stream_head(), *({**chunk(event), "gap": gap} for event in events), {"end": True}]


def cut_stream(*events: str, how: str = "fin") -> list[Operation]:
    """Return the script of a stream that ends after `events` with `how` instead of a last chunk."""
    return [stream_head(), *(chunk(event) for event in events), {"sleep": 0.05}, {how: True}]


def silence(seconds: float = 30.0) -> Operation:
    """Return the operation that says nothing until the peer leaves."""
    return {"await_close": seconds}


class Gate:
    """A place in a script where it waits for the test, instead of sleeping."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    def open(self) -> None:
        """Let the script go on.  Called from the test's thread."""
        BACKSTAGE.loop.call_soon_threadsafe(self.opened.set)


# What was seen


@dataclass
class Connection:
    """One connection that was made to the upstream."""

    number: int
    opened_at: float
    closed_at: float | None = None  # when the peer's FIN or reset was seen
    how: str | None = None  # "fin" or "rst": how the peer closed; "self" if the script did
    requests: int = 0
    sent: int = 0  # bytes written, of which the kernel may still hold some


@dataclass
class Request:
    """One request that arrived, its body as far as it has been read."""

    head: bytes
    connection: Connection
    at: float
    ordinal: int  # which request of its connection it is, from 1
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    @property
    def method(self) -> str:
        return self.head.split(b" ", 2)[0].decode()

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode("latin-1")

    @property
    def headers(self) -> list[tuple[str, str]]:
        lines = self.head[:-4].split(b"\r\n")[1:]
        pairs = [line.decode("latin-1").partition(":") for line in lines]
        return [(name.strip().lower(), value.strip()) for name, _, value in pairs]

    @property
    def is_probe(self) -> bool:
        """True for what a gateway asks for itself."""
        return PROBE.match(self.head) is not None

    def values(self, name: str) -> list[str]:
        """Return every value of the header `name`, in order."""
        return [value for seen, value in self.headers if seen == name.lower()]

    def header(self, name: str) -> str | None:
        """Return the first value of the header `name`."""
        return next(iter(self.values(name)), None)

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(bytes(self.body))


class _Protocol(asyncio.StreamReaderProtocol):
    """Notes the moment the peer leaves, whatever the script is doing at that moment."""

    def __init__(self, reader: asyncio.StreamReader, handler: Any, connection: Connection) -> None:
        super().__init__(reader, handler)
        self._connection = connection

    def eof_received(self) -> bool | None:
        self._note("fin")
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._note("rst" if exc else "self")
        super().connection_lost(exc)

    def _note(self, how: str) -> None:
        if self._connection.closed_at is None:
            self._connection.closed_at = time.monotonic()
            self._connection.how = how


class Upstream:
    """A server on a port of its own that plays scripts."""

    host = "127.0.0.1"

    def __init__(
        self,
        *scripts: Script,
        tls: ssl.SSLContext | None = None,
        models: Sequence[str] = ("m",),
        port: int = 0,
        listening: bool = True,
    ) -> None:
        self.requests: list[Request] = []
        self.probes: list[Request] = []
        self.connections: list[Connection] = []
        self.models = models
        self._tls = tls
        self._choose: Callable[[Request], Script] = lambda request: reply({})
        self._chooses_by_body = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._socket = bound(port)
        self.port: int = self._socket.getsockname()[1]
        if scripts:
            self.play(*scripts)
        if listening:
            self.listen()

    # Where it is

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.name}"

    # What it does

    def play(self, *scripts: Script) -> None:
        """Answer the next requests with these scripts in turn; the last answers all that follow."""
        left = list(scripts)
        self._choose = lambda request: left.pop(0) if len(left) > 1 else left[0]
        self._chooses_by_body = False

    def play_by(self, choose: Callable[[Request], Script]) -> None:
        """Answer every request with the script that `choose` returns for it, body and all."""
        self._choose = choose
        self._chooses_by_body = True

    def forget(self) -> None:
        """Forget the requests and connections seen so far (open connections stay open)."""
        self.requests.clear()
        self.connections.clear()

    # Its life

    def listen(self) -> None:
        """Accept connections, again after `refuse` or `kill`."""
        BACKSTAGE.run(self._listen())

    def refuse(self) -> None:
        """Refuse new connections; open ones go on.  The port stays taken."""
        BACKSTAGE.run(self._refuse())

    def kill(self) -> None:
        """Refuse new connections and reset the open ones, as a process that is killed does."""
        BACKSTAGE.run(self._kill())

    def close(self) -> None:
        """End everything and give the port back."""
        BACKSTAGE.run(self._kill())
        self._socket.close()

    def __enter__(self) -> Upstream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def _listen(self) -> None:
        if self._server is not None:
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._protocol, sock=self._socket, ssl=self._tls, backlog=1024
        )

    async def _refuse(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self._socket.close()
        self._socket = bound(self.port)

    async def _kill(self) -> None:
        await self._refuse()
        for writer in self._writers:
            _reset(writer)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _protocol(self) -> _Protocol:
        connection = Connection(len(self.connections) + 1, time.monotonic())
        self.connections.append(connection)
        reader = asyncio.StreamReader(limit=STREAM_LIMIT)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            self._writers.add(writer)
            try:
                await _Serving(self, connection, reader, writer).run()
            finally:
                self._tasks.discard(task)
                self._writers.discard(writer)

        return _Protocol(reader, serve, connection)

    def note(self, request: Request) -> None:
        """Take note of a request whose head has come."""
        (self.probes if request.is_probe else self.requests).append(request)

    def script_for(self, request: Request) -> Script | None:
        """Return the script that answers a request; None if its body is needed to tell."""
        if request.is_probe:
            return reply(self._probe_answer())
        if self._chooses_by_body and not request.is_whole:
            return None
        return self._choose(request)

    def _probe_answer(self) -> dict[str, Any]:
        models = [{"id": name, "object": "model", "created": 1, "owned_by": "test"} for name in self.models]
        return {"object": "list", "data": models}


class _Serving:
    """One connection being served: reads requests, plays their scripts."""

    def __init__(
        self,
        upstream: Upstream,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.upstream, self.connection, self.reader, self.writer = upstream, connection, reader, writer
        self.request: Request | None = None

    async def run(self) -> None:
        try:
            while await self._serve_one():
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            with contextlib.suppress(Exception):
                self.writer.close()

    async def _serve_one(self) -> bool:
        """Serve one request; return whether the connection is still open."""
        data = await self.reader.readuntil(b"\r\n\r\n")
        self.connection.requests += 1
        self.request = request = Request(data, self.connection, time.monotonic(), self.connection.requests)
        self.upstream.note(request)
        script = self.upstream.script_for(request)
        if not (script and script[0].get("read") == "head"):
            await self._read_body()
        for operation in script or self.upstream.script_for(request) or ():
            for _ in range(operation.get("repeat", 1)):
                if not await self._play(operation):
                    return False
        return True

    async def _play(self, operation: Operation) -> bool:
        """Do one operation; return whether the connection is still open."""
        if data := _bytes_of(operation):
            self.writer.write(data)
            self.connection.sent += len(data)
        elif "sleep" in operation:
            await asyncio.sleep(operation["sleep"])
        elif "gate" in operation:
            await operation["gate"].opened.wait()
        elif operation.get("read") == "body":
            await self._read_body()
        elif operation.get("read") == "nothing":
            self.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(PAUSE_LIMIT_S)
        elif "await_close" in operation:
            await self._await_close(operation["await_close"])
            return False
        elif "rst" in operation:
            _reset(self.writer)
            return False
        elif "fin" in operation:
            return False
        await asyncio.sleep(operation.get("gap", 0))
        await self.writer.drain()
        return True

    async def _await_close(self, seconds: float) -> None:
        """Wait until the peer has left; what it still sends meanwhile means nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self.reader.read(1 << 16):
                    pass

    async def _read_body(self) -> None:
        assert self.request is not None
        coding, length = self.request.header("transfer-encoding"), self.request.header("content-length")
        if coding:
            await self._read_chunks()
        elif length:
            await self._read_bytes(int(length))
        self.request.is_whole = True

    async def _read_chunks(self) -> None:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            await self._read_bytes(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def _read_bytes(self, size: int) -> None:
        assert self.request is not None
        while size:
            data = await self.reader.read(min(size, 1 << 16))
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            self.request.body += data
            size -= len(data)


def _bytes_of(operation: Operation) -> bytes:
    """Return what an operation puts on the wire; nothing for those that do something else."""
    if "send" in operation:
        return bytes(operation["send"].encode())
    if "send_b64" in operation:
        return base64.b64decode(operation["send_b64"])
    if "end" in operation:
        return b"0\r\n\r\n"
    if data := content_of(operation):
        return b"%x\r\n%b\r\n" % (len(data), data)
    return b""


def content_of(operation: Operation) -> bytes:
    """Return the content of a `chunk` operation, without its framing; nothing for others."""
    if "chunk" in operation:
        return bytes(operation["chunk"].encode())
    if "chunk_b64" in operation:
        return base64.b64decode(operation["chunk_b64"])
    return b"".join(text.encode() * times for text, times in operation.get("chunk_parts", ()))


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def bound(port: int = 0) -> socket.socket:
    """Return a socket that holds a port without listening: connects to it are refused.

    Another socket can be bound to the same port and listen there (SO_REUSEADDR), so this reserves a port
    for a server that is to come.
    """
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that say they are TCP.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((Upstream.host, port))
    sock.setblocking(False)
    return sock
