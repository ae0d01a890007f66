"""Runs http_responses.jsonl: an upstream answers raw bytes, a client sees what the gateway makes of them.

After each case a second request must get its own healthy answer: a gateway that put a connection with
leftover bytes back into its pool would hand somebody another one's response.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import time
from dataclasses import dataclass

from tests.conformance.cases import ResponseCase
from tests.conformance.verdict import Verdict

IDLE_S = 6.0  # longer than the gateway's patience with a silent upstream
TOTAL_S = 25.0
STALL_S = 30.0
STREAM_LIMIT = 1 << 22
HEALTHY = b"GOOD"


@dataclass
class Hit:
    """One request that reached the upstream."""

    was_scripted: bool
    on_dirty_connection: bool  # one that a case had left in a state nobody may reuse


class CaseUpstream:
    """Answers the next request with the case's bytes, all others with a healthy answer."""

    def __init__(self) -> None:
        self.case: ResponseCase | None = None
        self.hits: list[Hit] = []
        self.is_armed = False

    def arm(self, case: ResponseCase) -> None:
        """Answer the next request with `case`."""
        self.case, self.hits, self.is_armed = case, [], True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.suppress(
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.CancelledError,
            ConnectionError,
            ValueError,
        ):
            is_dirty = False
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                case = self._take(head)
                if not (case and case.is_early):
                    await _skip_body(reader, head)
                self.hits.append(Hit(case is not None, is_dirty))
                if case is None:
                    await _write(writer, _healthy(head))
                    continue
                is_dirty = not case.may_reuse
                if not await _play(case, writer):
                    break
        writer.close()

    def _take(self, head: bytes) -> ResponseCase | None:
        """Return the case if this request is the one it is meant for; a gateway's probes are not."""
        if not self.is_armed or b" /echo " not in head.split(b"\r\n", 1)[0]:
            return None
        self.is_armed = False
        return self.case


async def _skip_body(reader: asyncio.StreamReader, head: bytes) -> None:
    length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
    if length:
        await reader.readexactly(int(length[1]))
    elif b"transfer-encoding: chunked" in head.lower():
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)


def _healthy(head: bytes) -> bytes:
    body = b"" if head.startswith(b"HEAD ") else HEALTHY
    return b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + body


async def _play(case: ResponseCase, writer: asyncio.StreamWriter) -> bool:
    """Send the case's bytes; return whether the connection goes on."""
    for delay, data in case.segments:
        await asyncio.sleep(delay)
        await _write(writer, data)
    if case.end == "rst":
        await asyncio.sleep(0.1)  # a reset overtakes what the peer has not read yet
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    elif case.end == "stall":
        await asyncio.sleep(STALL_S)
    return case.end == "keep"


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@dataclass
class Seen:
    """What the client saw: the first final response, and what came behind it."""

    status: int | None = None
    body: bytes = b""
    is_complete: bool = False
    is_closed: bool = False
    raw: bytes = b""
    extra: bytes = b""

    @property
    def is_healthy(self) -> bool:
        return self.status == 200 and self.body == HEALTHY


class ResponseRunner:
    """Runs cases one after the other against one gateway, being its upstream."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self.host, self.port, self.token = host, port, token
        self.upstream = CaseUpstream()
        self.serve = self.upstream.serve

    async def run(self, case: ResponseCase) -> Verdict:
        """Run one case."""
        self.upstream.arm(case)
        try:
            seen = await self._fetch(case.method, case.is_early)
        except OSError as error:
            return Verdict(case.name, case.level, [f"cannot connect: {error}"])
        self.upstream.is_armed = False
        hits = len(self.upstream.hits)
        following = await self._fetch("GET")
        return judge(case, seen, following, self.upstream.hits, hits)

    async def _fetch(self, method: str, sends_part: bool = False) -> Seen:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=STREAM_LIMIT)
        try:
            body = b"x" * 10 if method == "POST" else b""
            writer.write(self._head(method, len(body)) + (body[:3] if sends_part else body))
            return await _read(reader, method)
        finally:
            writer.close()

    def _head(self, method: str, length: int) -> bytes:
        lines = [f"{method} /echo HTTP/1.1", "Host: relay.test"]
        lines += [f"Authorization: Bearer {self.token}"] if self.token else []
        lines += [f"Content-Length: {length}"] if length else []
        return "\r\n".join([*lines, "", ""]).encode()


async def _read(reader: asyncio.StreamReader, method: str) -> Seen:
    data = b""
    is_closed = False
    deadline = time.monotonic() + TOTAL_S
    while True:
        seen = first_final(data, method, is_closed)
        if seen.is_complete or is_closed or time.monotonic() > deadline:
            return seen
        try:
            piece = await asyncio.wait_for(reader.read(1 << 16), IDLE_S)
        except TimeoutError:
            return seen
        except OSError:
            piece = b""
        is_closed = not piece
        data += piece


def first_final(data: bytes, method: str, is_closed: bool) -> Seen:
    """Return the first response in `data` that is not an interim one, as far as it is there."""
    if not data:
        return Seen(status=0 if is_closed else None, is_closed=is_closed)
    at = 0
    while True:
        match = re.match(rb"HTTP/\d\.\d (\d+)", data[at : at + 14])
        if not match:
            return Seen(-1 if data[at:] else None, is_closed=is_closed, raw=data)
        status = int(match[1])
        head_end = data.find(b"\r\n\r\n", at)
        if head_end < 0:
            return Seen(status, is_closed=is_closed, raw=data)
        head, at = data[at:head_end].lower(), head_end + 4
        if not 100 <= status < 200 or status == 101:
            break
    is_bodiless = method == "HEAD" or status in (101, 204, 304)
    body, is_complete, end = (b"", True, at) if is_bodiless else _body(data, head, at, is_closed)
    return Seen(status, body, is_complete, is_closed, data, data[end:] if is_complete else b"")


def _body(data: bytes, head: bytes, at: int, is_closed: bool) -> tuple[bytes, bool, int]:
    """Return the body, whether it is all there, and where it ends."""
    if b"transfer-encoding: chunked" in head:
        return _chunks(data, at)
    length = re.search(rb"\r\ncontent-length: *(\d+)", head)
    if length:
        end = at + int(length[1])
        return data[at:end], len(data) >= end, end
    return data[at:], is_closed, len(data)


def _chunks(data: bytes, at: int) -> tuple[bytes, bool, int]:
    body = b""
    while (line_end := data.find(b"\r\n", at)) >= 0:
        try:
            size = int(data[at:line_end].split(b";")[0], 16)
        except ValueError:
            break
        if not size:
            end = data.find(b"\r\n\r\n", line_end)  # behind the trailers
            return (body, True, end + 4) if end >= 0 else (body, False, len(data))
        start, at = line_end + 2, line_end + 2 + size + 2
        body += data[start : start + size]
        if len(data) < at:
            break
    return body, False, len(data)


def judge(case: ResponseCase, seen: Seen, following: Seen, hits: list[Hit], hits_before: int) -> Verdict:
    """Return the verdict on the case's response, and on the one after it."""
    was_retried = any(not hit.was_scripted for hit in hits[:hits_before])
    judged = {"502": _judge_refused, "abort": _judge_aborted}.get(case.expect, _judge_relayed)
    problems = [*judged(case, seen, was_retried), *_leaks(case, seen)]
    if not following.is_healthy:
        problems.append(f"the next request got {following.status} {following.body[:20]!r}")
    if not case.may_reuse and any(hit.on_dirty_connection for hit in hits):
        problems.append("a dirty connection was used again")
    excused = seen.status in case.also_rfc and all(problem.startswith("status") for problem in problems)
    shown = f"{seen.status}, {hits_before} hits"
    return Verdict(case.name, case.level, problems, shown, bool(problems) and excused)


def _judge_refused(case: ResponseCase, seen: Seen, was_retried: bool) -> list[str]:
    problems = []
    was_saved = was_retried and case.may_retry and seen.body == HEALTHY
    if seen.status not in case.statuses and not was_saved:
        problems.append(f"status {seen.status}, not one of {sorted(case.statuses)}")
    if was_retried and not case.may_retry and case.method == "POST":
        problems.append("a POST was sent twice")
    return problems


def _judge_aborted(case: ResponseCase, seen: Seen, was_retried: bool) -> list[str]:
    was_saved = was_retried and seen.body == HEALTHY
    if seen.status == 200 and seen.is_complete and not was_saved:
        return [f"a broken answer ends cleanly: {seen.body[:12]!r}"]
    if seen.status not in case.statuses and seen.status != 0:
        return [f"status {seen.status}, not one of {sorted(case.statuses)}"]
    if not seen.is_closed and not seen.is_complete:
        return ["no end and no close"]
    return []


def _judge_relayed(case: ResponseCase, seen: Seen, was_retried: bool) -> list[str]:
    if seen.status not in case.statuses:
        return [f"status {seen.status}, not one of {sorted(case.statuses)}"]
    if seen.status in (502, 504):
        return []
    problems = [] if seen.is_complete else ["not complete"]
    if case.body is not None and seen.body != case.body:
        problems.append(f"body {seen.body[:20]!r}")
    return problems


def _leaks(case: ResponseCase, seen: Seen) -> list[str]:
    shown = seen.raw if case.expect == "502" else seen.raw.split(b"\r\n\r\n")[0]
    text = shown.lower() + seen.extra.lower()
    return [f"leaked {secret!r}" for secret in case.never_client if secret.lower() in text]
