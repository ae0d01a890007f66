"""Runs http_requests.jsonl: a client sends raw bytes, a strict upstream records what gets through."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass

from tests.conformance.cases import RequestCase
from tests.conformance.recorder import STREAM_LIMIT, Recorder
from tests.conformance.verdict import Verdict

# How long nothing may come before the client looks at what it has.  An answered request on a
# connection that stays open costs this much, as an unexpected second answer might still follow.
IDLE_S = 1.0
TOTAL_S = 20.0
CLOSED_UNANSWERED = 0


@dataclass
class Received:
    """What the client got."""

    data: bytes = b""
    is_closed: bool = False


class RequestRunner:
    """Runs cases one after the other against one gateway, being its upstream."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self.host, self.port, self.token = host, port, token
        self.recorder = Recorder()
        self.serve = self.recorder.serve

    async def run(self, case: RequestCase) -> Verdict:
        """Run one case."""
        self.recorder.clear()
        try:
            received = await self._exchange(case)
        except OSError as error:
            return Verdict(case.name, case.level, [f"cannot connect: {error}"])
        await asyncio.sleep(0.02)  # what is still on its way to the recorder
        return judge(case, received, self.recorder)

    async def _exchange(self, case: RequestCase) -> Received:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=STREAM_LIMIT)
        sending = asyncio.create_task(_send(case, writer, self.token))
        try:
            return await _receive(reader)
        finally:
            sending.cancel()
            writer.close()


async def _send(case: RequestCase, writer: asyncio.StreamWriter, token: str | None) -> None:
    with contextlib.suppress(OSError):
        for delay, data in case.authorised(token):
            await asyncio.sleep(delay)
            writer.write(data)
            await writer.drain()
        if case.half_closes:
            writer.write_eof()


async def _receive(reader: asyncio.StreamReader) -> Received:
    received = Received()
    deadline = time.monotonic() + TOTAL_S
    while time.monotonic() < deadline:
        try:
            data = await asyncio.wait_for(reader.read(1 << 16), IDLE_S)
        except TimeoutError:
            break
        except OSError:
            data = b""
        if not data:
            received.is_closed = True
            break
        received.data += data
    return received


def judge(case: RequestCase, received: Received, recorder: Recorder) -> Verdict:
    """Return the verdict on what came back and what got through."""
    statuses = split_statuses(received.data, case.first_method)
    final = [status for status in statuses if status >= 200 or status == -1]
    first = _first(case, statuses, final, received.is_closed)
    problems = [*_forwarded(case, recorder), *_wrong_answers(case, first, final, received.is_closed)]
    excused = first in case.also_rfc and all(p.startswith(("status", "too many")) for p in problems)
    seen = f"{first}, {len(recorder.requests)} forwarded, {'closed' if received.is_closed else 'open'}"
    return Verdict(case.name, case.level, problems, seen, bool(problems) and excused)


def _first(case: RequestCase, statuses: list[int], final: list[int], is_closed: bool) -> int | None:
    """Return the first status that counts; CLOSED_UNANSWERED, or None for neither."""
    if statuses and 100 in case.statuses:
        return statuses[0]
    if final:
        return final[0]
    return CLOSED_UNANSWERED if is_closed else None


def _forwarded(case: RequestCase, recorder: Recorder) -> list[str]:
    heads = recorder.heads.lower()
    problems = [f"forwarded {text!r}" for text in case.never_forward if text.lower() in heads]
    if recorder.lint:
        problems.append("unclean upstream: " + ", ".join(sorted(set(recorder.lint)))[:160])
    return problems


def _wrong_answers(case: RequestCase, first: int | None, final: list[int], is_closed: bool) -> list[str]:
    problems = []
    if first is None and not case.is_slow:
        problems.append("no answer and no close")
    if first is not None and first not in case.statuses:
        problems.append(f"status {first}, not one of {sorted(case.statuses)}")
    if len(final) > max(1, case.responses):
        problems.append(f"too many answers: {len(final)}")
    if case.expect == "accept" and first == 200 and len(final) < case.responses:
        problems.append(f"{len(final)} of {case.responses} answers")
    if _should_have_closed(case, first) and not is_closed:
        problems.append("stayed open after a refusal")
    return problems


def _should_have_closed(case: RequestCase, first: int | None) -> bool:
    """After a refusal nobody knows where the next request begins."""
    refuses = case.expect in ("reject-400", "close") and case.responses <= 1 and not case.is_slow
    return refuses and first in (400, 413, 414, 431)


def split_statuses(data: bytes, first_method: bytes) -> list[int]:
    """Return the statuses of a row of responses; -1 for bytes that are none."""
    statuses: list[int] = []
    at = 0
    while at < len(data):
        match = re.match(rb"HTTP/1\.[01] (\d{3})", data[at : at + 12])
        if not match:
            return [*statuses, -1]
        statuses.append(int(match[1]))
        head_end = data.find(b"\r\n\r\n", at)
        if head_end < 0:
            return statuses
        is_first = sum(status >= 200 for status in statuses) == 1
        is_bodiless = _never_has_body(statuses[-1]) or (is_first and first_method == b"HEAD")
        at = head_end + 4 if is_bodiless else _end_of_body(data, data[at:head_end].lower(), head_end + 4)
    return statuses


def _never_has_body(status: int) -> bool:
    return status < 200 or status in (204, 304)


def _end_of_body(data: bytes, head: bytes, at: int) -> int:
    """Return where the body that starts at `at` ends."""
    if b"transfer-encoding: chunked" in head:
        return _end_of_chunks(data, at)
    length = re.search(rb"\r\ncontent-length: *(\d+)", head)
    return at + int(length[1]) if length else len(data)


def _end_of_chunks(data: bytes, at: int) -> int:
    while (line_end := data.find(b"\r\n", at)) >= 0:
        try:
            size = int(data[at:line_end].split(b";")[0], 16)
        except ValueError:
            break
        at = line_end + 2 + size + 2
        if not size:
            return at
    return len(data)
