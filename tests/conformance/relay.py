"""Runs the `auto` lines of relay_cases.jsonl: a request, an upstream that plays a script, what must hold.

The upstream is the suite's own (`tests/support/upstream.py`), so every operation means the same
in a case and in a test.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
import urllib.request
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.cases import RelayCase
from tests.conformance.verdict import Verdict
from tests.support.upstream import Request, Upstream, content_of
from tests.support.wire import CLOSED, RESET, SILENT, Answer, WireError

PATIENCE_S = 12.0
CLOSE_LIMIT_S = 3.0
METRICS_LIMIT_S = 2.0  # counters are settled when the exchange ends, a moment after the client has it all
READ_SIZE = 1 << 16


@dataclass
class Outcome:
    """What the client got, and when."""

    answer: Answer = field(default_factory=Answer)
    asked_at: float = 0.0
    left_at: float = 0.0
    sent_body: bytes = b""
    broken: str | None = None  # what was not clean HTTP/1.1

    @property
    def received_any(self) -> bool:
        return bool(self.answer.at)

    def first_at(self) -> float:
        """Return how long the first byte took, in seconds."""
        return self.answer.at[0][0] - self.asked_at

    def first_body_at(self) -> float | None:
        """Return how long the first byte of the body took, in seconds."""
        late = [at for at, received in self.answer.at if received > self.answer.head_size]
        return late[0] - self.asked_at if late else None

    def longest_gap(self) -> float:
        """Return the longest time between two reads, in seconds."""
        times = [at for at, _ in self.answer.at]
        return max((later - sooner for sooner, later in pairwise(times)), default=9.0)


class RelayRunner:
    """Runs cases one after the other against one gateway, with `upstream` as its worker."""

    def __init__(self, host: str, port: int, upstream: Upstream, admin: str | None = None) -> None:
        self.host, self.port, self.upstream, self.admin = host, port, upstream, admin

    async def run(self, case: RelayCase) -> Verdict:
        """Run one case."""
        self.upstream.forget()
        self.upstream.play(case.script)
        before = await self._metrics(case)
        try:
            outcome = await self._ask(case)
        except OSError as error:
            return Verdict(case.name, case.level, [f"cannot connect: {error}"])
        problems = await self._judge_leaving(case, outcome) if case.leaves else self._judge(case, outcome)
        problems += await self._judge_metrics(case, before)
        seen = f"{case.kind}, {outcome.answer.status}, {outcome.answer.ending}"
        return Verdict(case.name, case.level, problems, seen)

    async def _ask(self, case: RelayCase) -> Outcome:
        outcome = Outcome(sent_body=body_of(case.request))
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(_head(case.request, len(outcome.sent_body)) + outcome.sent_body)
        outcome.asked_at = time.monotonic()
        try:
            async with asyncio.timeout(case.leaves.get("abort_after_s", PATIENCE_S)):
                await _read(reader, outcome.answer, case.leaves.get("abort_after_bytes"))
        except TimeoutError:
            outcome.answer.feed_end(SILENT)
        except WireError as error:
            outcome.broken = str(error)
        outcome.left_at = time.monotonic()
        writer.close()
        return outcome

    def _judge(self, case: RelayCase, outcome: Outcome) -> list[str]:
        if outcome.broken:
            return [f"not clean HTTP: {outcome.broken}"]
        if not outcome.received_any:
            return ["no response"]
        problems = judge_answer(case.expect, outcome.answer, content_sent(case.script))
        problems += judge_timing(case.expect, outcome)
        if self.upstream.requests:
            return problems + judge_forwarded(case.expect, self.upstream.requests[0], outcome.sent_body)
        return [*problems, "the upstream saw nothing"] if outcome.answer.status == 200 else problems

    async def _judge_leaving(self, case: RelayCase, outcome: Outcome) -> list[str]:
        limit = case.expect.get("upstream_sees_close_within_s")
        if limit is None:
            return []
        closed_at = await self._wait_closed()
        if closed_at is None:
            return [f"the upstream saw no close within {CLOSE_LIMIT_S} s"]
        took = closed_at - outcome.left_at
        return [] if took <= limit else [f"the upstream saw the close after {took:.2f} s"]

    async def _wait_closed(self) -> float | None:
        deadline = time.monotonic() + CLOSE_LIMIT_S
        while time.monotonic() < deadline:
            for request in self.upstream.requests:
                if request.connection.closed_at is not None:
                    return request.connection.closed_at
            await asyncio.sleep(0.01)
        return None

    async def _metrics(self, case: RelayCase) -> dict[str, float]:
        """Return what the case's metrics stand at now."""
        names = case.expect.get("metrics", {})
        if not (names and self.admin):
            return {}
        text = await asyncio.to_thread(_fetch, self.admin + "/metrics")
        return {name: sample_total(text, name) for name in names}

    async def _judge_metrics(self, case: RelayCase, before: dict[str, float]) -> list[str]:
        if not before:
            return []
        expected = case.expect["metrics"]
        deadline = time.monotonic() + METRICS_LIMIT_S
        while True:
            now = await self._metrics(case)
            grown = {name: now[name] - before[name] for name in expected}
            if grown == expected or time.monotonic() > deadline:
                return [
                    f"{name} grew by {grown[name]:g}, not {value}"
                    for name, value in expected.items()
                    if grown[name] != value
                ]
            await asyncio.sleep(0.02)


# Asking


def expand(text: str) -> str:
    """Return `text` with `@@A*N@@` written out as N times A."""
    return re.sub(r"@@(.)\*(\d+)@@", lambda match: match[1] * int(match[2]), text)


def body_of(request: dict[str, Any]) -> bytes:
    """Return the bytes of a request's body."""
    if "json" in request:
        return expand(json.dumps(request["json"])).encode()
    if "body_b64" in request:
        return base64.b64decode(request["body_b64"])
    return str(request.get("body", "")).encode()


def _head(request: dict[str, Any], length: int) -> bytes:
    lines = [f"{request['method']} {request['path']} HTTP/1.1", "host: x"]
    lines += [f"{name}: {value}" for name, value in request["headers"].items()]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


async def _read(reader: asyncio.StreamReader, answer: Answer, leave_after: int | None) -> None:
    received = 0
    while not answer.is_complete:
        try:
            data = await reader.read(READ_SIZE)
        except ConnectionError:
            return answer.feed_end(RESET)
        if not data:
            return answer.feed_end(CLOSED)
        answer.feed(data)
        received += len(data)
        if leave_after is not None and received > leave_after:
            return None
    return None


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as page:
        return str(page.read().decode())


def sample_total(text: str, name: str) -> float:
    """Return the sum of all samples that match `name` or `name{label="value",...}`."""
    bare, _, labels = name.partition("{")
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels)).items()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == bare and wanted <= sample.labels.items()
    )


def content_sent(script: list[dict[str, Any]]) -> bytes:
    """Return the body that a script sends, without framing."""
    content = b""
    for operation in script:
        content += _content(operation) * operation.get("repeat", 1)
    return content


def _content(operation: dict[str, Any]) -> bytes:
    if "send" in operation or "send_b64" in operation:
        raw = operation["send"].encode() if "send" in operation else base64.b64decode(operation["send_b64"])
        return raw.partition(b"\r\n\r\n")[2] if raw.startswith(b"HTTP/") else raw
    return content_of(operation)


# Judging


def judge_answer(expect: dict[str, Any], answer: Answer, sent: bytes) -> list[str]:
    """Return what is wrong with the answer."""
    problems = []
    if answer.status not in expect.get("status_in", [expect.get("status", answer.status)]):
        problems.append(f"status {answer.status}")
    if expect.get("body_identical"):
        problems += _judge_identical(answer, sent)
    if expect.get("abnormal_end_or_error_event"):
        is_silent_lie = answer.is_complete and answer.status == 200 and b"error" not in answer.body
        problems += ["a cut answer ends cleanly"] if is_silent_lie else []
    return [*problems, *_judge_body(expect, bytes(answer.body)), *_judge_headers(expect, answer)]


def _judge_identical(answer: Answer, sent: bytes) -> list[str]:
    if answer.body != sent:
        return [f"body differs ({len(answer.body)} bytes of {len(sent)})"]
    return [] if answer.is_complete or answer.ending == CLOSED else ["no clean end"]


def _judge_body(expect: dict[str, Any], body: bytes) -> list[str]:
    problems = [f"lacks {text!r}" for text in expect.get("body_contains", []) if text.encode() not in body]
    problems += [f"has {text!r}" for text in expect.get("body_not_contains", []) if text.encode() in body]
    if not body.endswith(expect.get("body_ends_with", "").encode()):
        problems.append(f"does not end with {expect['body_ends_with']!r}")
    return problems


def _judge_headers(expect: dict[str, Any], answer: Answer) -> list[str]:
    problems = [
        f"{name}: {answer.header(name)!r}, not {value!r}"
        for name, value in expect.get("header_equals", {}).items()
        if answer.header(name) != value
    ]
    problems += [f"no {name}" for name in expect.get("header_present", []) if not answer.values(name)]
    problems += [f"has {name}" for name in expect.get("header_absent", []) if answer.values(name)]
    return problems + [
        f"{len(answer.values(name))} times {name}"
        for name, times in expect.get("header_count", {}).items()
        if len(answer.values(name)) != times
    ]


def judge_timing(expect: dict[str, Any], outcome: Outcome) -> list[str]:
    """Return what came too late."""
    problems = []
    first_body = outcome.first_body_at()
    limit = expect.get("first_body_byte_within_s")
    if limit is not None and (first_body is None or first_body > limit):
        problems.append(f"first byte of the body after {first_body} s")
    if outcome.first_at() > expect.get("head_within_s", PATIENCE_S):
        problems.append(f"head after {outcome.first_at():.2f} s")
    if outcome.longest_gap() > expect.get("max_gap_s", PATIENCE_S):
        problems.append(f"a gap of {outcome.longest_gap():.2f} s")
    return problems


def judge_forwarded(expect: dict[str, Any], request: Request, sent_body: bytes) -> list[str]:
    """Return what is wrong with the request that reached the upstream."""
    problems = []
    if expect.get("upstream_body_identical") and request.body != sent_body:
        problems.append("the request's body differs upstream")
    if request.target != expect.get("upstream_path_equals", request.target):
        problems.append(f"path upstream {request.target}")
    for name, value in expect.get("upstream_header_equals", {}).items():
        problems += [] if request.header(name) == value else [f"upstream {name}: {request.header(name)!r}"]
    for name, value in expect.get("upstream_header_contains", {}).items():
        problems += [] if value in (request.header(name) or "") else [f"upstream {name} lacks {value!r}"]
    for name in expect.get("upstream_header_present", []):
        problems += [] if request.values(name) else [f"upstream has no {name}"]
    for name in expect.get("upstream_header_absent", []):
        problems += [f"upstream has {name}"] if request.values(name) else []
    return problems
