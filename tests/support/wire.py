"""A raw client: it sends exactly the bytes it is told to and is strict about those that come back.

HTTP libraries forgive.  Here a response with a doubled length, a stray byte between chunks or an
end that never came is an error (`WireError`) or a fact the test can see (`Answer.ending`), never
something to be smoothed over.  A gateway makes all framing anew, so chunk extensions and trailers
from it are errors as well.

    client = Client.to(gateway)
    client.send(request("POST", "/v1/chat/completions", body=b"{}"))
    answer = client.read()
    assert answer.ending == COMPLETE
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import time
from collections.abc import Generator, Iterator
from typing import Any

COMPLETE = "complete"  # the framing says that everything is here
CLOSED = "closed"  # FIN: the whole body if it is delimited by the close, else a cut
RESET = "reset"  # RST
SILENT = "silent"  # nothing more came for as long as the reader would wait
WAITING = "waiting"  # the client stopped reading by its own choice

TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9]\d\d)(?: ([^\r\n]*))?")
READ_SIZE = 1 << 16


class WireError(AssertionError):
    """The other side sent something that is not clean HTTP/1.1."""


def every_way(data: bytes) -> Iterator[list[bytes]]:
    """Yield `data` whole, byte by byte, and cut in two at every place."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    for cut in range(1, len(data)):
        yield [data[:cut], data[cut:]]


def request(
    method: str,
    path: str,
    *headers: tuple[str, str],
    body: bytes | None = None,
    version: str = "1.1",
    host: str = "relay.test",
) -> bytes:
    """Return the bytes of a request; a body gets a Content-Length unless the headers frame it."""
    lines = [f"{method} {path} HTTP/{version}", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    framed = {name.lower() for name, _ in headers} & {"content-length", "transfer-encoding"}
    if body is not None and not framed:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def chunked(*pieces: bytes, last: bool = True) -> bytes:
    """Return `pieces` as HTTP chunks, with the last chunk unless told otherwise."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n" * last


class Answer:
    """One response as it arrives.

    Fed with bytes it becomes complete, or stays as it was when the other side stopped: `ending`
    says which.  `rest` holds bytes behind a complete response.
    """

    def __init__(self, method: str = "GET") -> None:
        self.method = method
        self.version = self.reason = ""
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.interim: list[int] = []
        self.body = bytearray()
        self.is_chunked = False
        self.head_size = 0
        self.has_head = False
        self.ending = WAITING
        self.at: list[tuple[float, int]] = []  # when how many bytes had come
        self._buffer = bytearray()
        self._received = 0
        self._until_close = False
        self._parser = self._parse()
        next(self._parser)

    # What a test asks

    @property
    def is_complete(self) -> bool:
        return self.ending == COMPLETE

    @property
    def rest(self) -> bytes:
        return bytes(self._buffer)

    def values(self, name: str) -> list[str]:
        """Return every value of the header `name`, in order."""
        return [value for field, value in self.headers if field.lower() == name.lower()]

    def header(self, name: str, default: str | None = None) -> str | None:
        """Return the first value of the header `name`."""
        return next(iter(self.values(name)), default)

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(bytes(self.body))

    def __repr__(self) -> str:
        return f"<{self.status} {self.headers} {bytes(self.body[:500])!r} {self.ending}>"

    # What a reader does

    def feed(self, data: bytes) -> None:
        """Take bytes off the wire.  Raises WireError at the first that should not be there."""
        self._received += len(data)
        self.at.append((time.monotonic(), self._received))
        self._buffer += data
        self._advance()

    def feed_end(self, how: str) -> None:
        """Take note that nothing more comes: CLOSED, RESET or SILENT."""
        if self.ending != WAITING:
            return
        is_whole = how == CLOSED and self._until_close
        self.ending = COMPLETE if is_whole else how

    def _advance(self) -> None:
        with contextlib.suppress(StopIteration):
            next(self._parser)

    def _parse(self) -> Generator[None, None, None]:
        yield
        yield from self._read_head()
        while self.status < 200 and self.status != 101:
            self.interim.append(self.status)
            self.headers.clear()
            yield from self._read_head()
        self.has_head = True
        yield from self._read_body()
        self.ending = COMPLETE

    def _read_head(self) -> Generator[None, None, None]:
        line = yield from self._line()
        match = STATUS_LINE.fullmatch(line)
        if not match:
            raise WireError(f"not a status line: {line[:80]!r}")
        self.version, self.status = match[1].decode(), int(match[2])
        self.reason = (match[3] or b"").decode("latin-1")
        self.head_size += len(line) + 2
        while line := (yield from self._line()):
            self.head_size += len(line) + 2
            self.headers.append(_field(line))
        self.head_size += 2

    def _read_body(self) -> Generator[None, None, None]:
        lengths, codings = self.values("content-length"), self.values("transfer-encoding")
        if len(lengths) + len(codings) > 1:
            raise WireError(f"more than one framing: {lengths} {codings}")
        if self.method == "HEAD" or self.status in (101, 204, 304):
            return
        if codings:
            yield from self._read_chunks(codings[0])
        elif lengths:
            yield from self._read_length(lengths[0])
        else:
            self._until_close = True
            yield from self._read_forever()

    def _read_chunks(self, coding: str) -> Generator[None, None, None]:
        if coding.lower() != "chunked" or self.version == "1.0":
            raise WireError(f"transfer-encoding {coding!r} in HTTP/{self.version}")
        self.is_chunked = True
        while True:
            line = yield from self._line()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,16}", line):
                raise WireError(f"not a chunk size: {line[:80]!r}")
            size = int(line, 16)
            if size:
                yield from self._take(size)
            if (yield from self._line()):
                raise WireError("bytes behind a chunk, or a trailer")
            if not size:
                return

    def _read_length(self, length: str) -> Generator[None, None, None]:
        if not re.fullmatch(r"\d{1,18}", length):
            raise WireError(f"content-length: {length!r}")
        yield from self._take(int(length))

    def _read_forever(self) -> Generator[None, None, None]:
        yield from self._take(1 << 62)

    def _take(self, size: int) -> Generator[None, None, None]:
        """Move `size` bytes to the body as they come, so that a cut body can be looked at."""
        while size:
            while not self._buffer:
                yield
            piece = self._buffer[:size]
            del self._buffer[:size]
            self.body += piece
            size -= len(piece)

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._buffer.find(b"\r\n")) < 0:
            yield
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _field(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon or not TOKEN.fullmatch(name):
        raise WireError(f"not a header field: {line[:80]!r}")
    if re.search(rb"[\x00\r\n]", value):
        raise WireError(f"NUL, CR or LF in a value: {line[:80]!r}")
    return name.decode(), value.strip(b" \t").decode("latin-1")


class Client:
    """A blocking connection to a gateway, or to anything else that speaks HTTP/1.1."""

    def __init__(self, host: str, port: int, receive_buffer: int = 0, wait_s: float = 15.0) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(wait_s)
        self.sock.connect((host, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    @classmethod
    def to(cls, address: Any, **options: Any) -> Client:
        """Connect to whatever has a `host` and a `port`: a gateway, an upstream."""
        return cls(address.host, address.port, **options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, *segments: bytes, gap_s: float = 0.0) -> None:
        """Send each segment by itself, `gap_s` seconds apart."""
        for number, segment in enumerate(segments):
            if number and gap_s:
                time.sleep(gap_s)
            self.sock.sendall(segment)

    def read(self, method: str = "GET", enough: int | bytes | None = None) -> Answer:
        """Read one response: to its end, or until its body has `enough` bytes, or those bytes."""
        answer = Answer(method)
        data, self._rest = self._rest, b""
        if data:
            answer.feed(data)
        self.read_on(answer, enough)
        return answer

    def read_on(self, answer: Answer, enough: int | bytes | None = None) -> Answer:
        """Go on with a response that was left before its end."""
        while answer.ending == WAITING and not _has(answer, enough):
            try:
                data = self.sock.recv(READ_SIZE)
            except TimeoutError:
                answer.feed_end(SILENT)
                break
            except ConnectionError:
                answer.feed_end(RESET)
                break
            if data:
                answer.feed(data)
            else:
                answer.feed_end(CLOSED)
        if answer.is_complete:
            self._rest = answer.rest
        return answer

    def ask(self, data: bytes) -> Answer:
        """Send a request and read its response to the end."""
        self.send(data)
        return self.read(data.split(b" ", 1)[0].decode())

    def wait_closed(self, within_s: float = 15.0) -> str:
        """Throw away what comes until the other side ends the connection; return how it did."""
        self.sock.settimeout(within_s)
        try:
            while self.sock.recv(READ_SIZE):
                pass
        except TimeoutError:
            return SILENT
        except ConnectionError:
            return RESET
        return CLOSED

    def send_until_held_back(self, data: bytes, at_most: int) -> int:
        """Send `data` again and again until nothing is taken any more; return how many bytes were."""
        taken = 0
        while taken < at_most:
            try:
                taken += self.sock.send(data)
            except (TimeoutError, ConnectionError):
                break
        return taken

    def close(self) -> float:
        """Close (FIN, if nothing unread is waiting); return when."""
        at = time.monotonic()
        self.sock.close()
        return at

    def reset(self) -> float:
        """Close with a reset; return when."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return self.close()

    def half_close(self) -> float:
        """Send FIN but stay to read; return when."""
        at = time.monotonic()
        self.sock.shutdown(socket.SHUT_WR)
        return at


def _has(answer: Answer, enough: int | bytes | None) -> bool:
    if enough is None:
        return False
    if isinstance(enough, int):
        return answer.has_head and len(answer.body) >= enough
    return enough in answer.body


def ask(address: Any, data: bytes, **options: Any) -> Answer:
    """Send one request on a connection of its own; return the response."""
    with Client.to(address, **options) as client:
        return client.ask(data)


def post_json(path: str, body: Any, *headers: tuple[str, str], **options: Any) -> bytes:
    """Return the bytes of a POST whose body is `body` as JSON."""
    data = json.dumps(body).encode()
    return request("POST", path, ("Content-Type", "application/json"), *headers, body=data, **options)
