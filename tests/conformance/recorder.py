"""The strict upstream of the request cases: answers what it can frame, and lints every byte.

Whatever a client sends, what leaves a gateway has to be clean HTTP/1.1 (RFC 9112): one framing, one Host,
tokens for names, no control bytes, no hop-by-hop fields of the client's connection.  `lint` collects
what was not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass

TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(;.*)?\r\n")
HOP_BY_HOP = (b"proxy-connection", b"proxy-authorization", b"http2-settings", b"keep-alive")
STREAM_LIMIT = 1 << 22

Fields = dict[bytes, list[bytes]]


class FramingError(ConnectionError):
    """The request cannot be read to its end."""


@dataclass
class Recorded:
    """One request that reached the upstream: its head (and trailers), its body."""

    head: bytes
    body: bytes = b""


class Recorder:
    """The upstream; `serve` is its connection handler."""

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self.lint: list[str] = []

    def clear(self) -> None:
        """Forget what was seen."""
        self.requests, self.lint = [], []

    @property
    def heads(self) -> bytes:
        return b"\n".join(request.head for request in self.requests)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.suppress(
            asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, asyncio.CancelledError
        ):
            while await self._serve_one(reader, writer):
                pass
        writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether the connection stays open."""
        head = await self._read_head(reader)
        request = Recorded(head)
        self.requests.append(request)
        lines = head[:-4].split(b"\r\n")
        self.lint += lint_head(lines)
        fields = _fields(lines)
        if fields[b"expect"][:1] and fields[b"expect"][0].lower() == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self._read_body(reader, request, fields)
        writer.write(_answer(lines[0], request.body))
        await writer.drain()
        return b"close" not in b",".join(fields[b"connection"]).lower()

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.lint.append(f"partial head: {error.partial[:60]!r}")
            raise
        except asyncio.LimitOverrunError:
            self.lint.append("head too big")
            raise

    async def _read_body(self, reader: asyncio.StreamReader, request: Recorded, fields: Fields) -> None:
        if fields[b"transfer-encoding"]:
            while await self._read_chunk(reader, request):
                pass
        elif fields[b"content-length"]:
            length = fields[b"content-length"][0]
            if not re.fullmatch(rb"\d{1,18}", length):
                self._give_up(f"bad length: {length[:30]!r}")
            request.body = await reader.readexactly(int(length))

    async def _read_chunk(self, reader: asyncio.StreamReader, request: Recorded) -> bool:
        """Read one chunk; return whether another follows."""
        line = await reader.readuntil(b"\r\n")
        match = CHUNK_LINE.fullmatch(line)
        if not match:
            self._give_up(f"bad chunk line: {line[:40]!r}")
            return False
        if match[2]:
            self.lint.append("chunk extension forwarded")
        size = int(match[1], 16)
        if not size:
            await self._read_trailers(reader, request)
            return False
        request.body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            self._give_up("bad chunk end")
        return True

    async def _read_trailers(self, reader: asyncio.StreamReader, request: Recorded) -> None:
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            request.head += b"TRAILER " + line

    def _give_up(self, why: str) -> None:
        self.lint.append(why)
        raise FramingError(why)


def lint_head(lines: list[bytes]) -> list[str]:
    """Return what is wrong with a request head."""
    return [*_lint_request_line(lines[0]), *_lint_fields(lines[1:])]


def _lint_request_line(line: bytes) -> list[str]:
    parts = line.split(b" ")
    problems = []
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not TOKEN.fullmatch(parts[0]):
        problems.append(f"bad request line: {line[:60]!r}")
    elif not parts[1].startswith(b"/") and parts[1] != b"*":
        problems.append(f"form of the target: {parts[1][:40]!r}")
    if len(parts) > 1 and re.search(rb"[\x00-\x20\x7f]", parts[1]):
        problems.append("control byte in the target")
    return problems


def _lint_fields(lines: list[bytes]) -> list[str]:
    problems = []
    for line in lines:
        if re.search(rb"[\x00\r\n]", line):
            problems.append(f"NUL, CR or LF in a field: {line[:40]!r}")
        if line[:1] in (b" ", b"\t"):
            problems.append("folded line")
        elif b":" not in line:
            problems.append(f"no colon: {line[:40]!r}")
        elif not TOKEN.fullmatch(line.partition(b":")[0]):
            problems.append(f"bad name: {line.partition(b':')[0][:40]!r}")
    return problems + _lint_framing(_fields([b"", *lines]))


def _lint_framing(fields: Fields) -> list[str]:
    codings, lengths, hosts = fields[b"transfer-encoding"], fields[b"content-length"], fields[b"host"]
    problems = []
    if codings and lengths:
        problems.append("length and coding")
    if lengths and (len(lengths) > 1 or not re.fullmatch(rb"\d+", lengths[0])):
        problems.append(f"lengths: {lengths[:3]!r}")
    if codings and [coding.lower() for coding in codings] != [b"chunked"]:
        problems.append(f"codings: {codings[:3]!r}")
    if len(hosts) != 1:
        problems.append(f"{len(hosts)} Host fields")
    return problems + [f"hop-by-hop forwarded: {name.decode()}" for name in HOP_BY_HOP if fields.get(name)]


def _fields(lines: list[bytes]) -> Fields:
    fields: Fields = defaultdict(list)
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()].append(value.strip(b" \t"))
    return fields


def _answer(request_line: bytes, body: bytes) -> bytes:
    seen = json.dumps({"line": request_line.decode("latin-1")[:200], "body": len(body)}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(seen)
    return head if request_line.startswith(b"HEAD ") else head + seen
