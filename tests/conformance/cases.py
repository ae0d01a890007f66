"""The cases, as the runners want them: decoded, and each with what it expects.

The lines themselves are data; nothing here knows how a case is run.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

Segments = list[tuple[float, bytes]]  # seconds to wait before, bytes


@dataclass(frozen=True)
class RequestCase:
    """Bytes a client sends."""

    name: str
    level: str
    expect: str
    statuses: frozenset[int]
    also_rfc: frozenset[int]
    responses: int
    never_forward: list[bytes]
    segments: Segments
    half_closes: bool
    is_slow: bool
    auth_at: int | None

    def authorised(self, token: str | None) -> Segments:
        """Return the segments with an Authorization line where the case has room for one."""
        if not token or self.auth_at is None:
            return self.segments
        whole = b"".join(data for _, data in self.segments)
        line = b"Authorization: Bearer " + token.encode() + b"\r\n"
        return [(0.0, whole[: self.auth_at] + line + whole[self.auth_at :])]

    @property
    def first_method(self) -> bytes:
        whole = b"".join(data for _, data in self.segments)
        return whole.split(b"\r\n", 1)[0].split(b" ", 1)[0]


@dataclass(frozen=True)
class ResponseCase:
    """Bytes an upstream answers."""

    name: str
    level: str
    expect: str
    statuses: frozenset[int]
    also_rfc: frozenset[int]
    method: str
    segments: Segments
    end: str
    body: bytes | None
    may_reuse: bool
    may_retry: bool
    never_client: list[bytes]
    is_early: bool


@dataclass(frozen=True)
class RelayCase:
    """A request, the upstream's script, and what must hold."""

    name: str
    level: str
    kind: str
    request: dict[str, Any]
    script: list[dict[str, Any]]
    expect: dict[str, Any]
    leaves: dict[str, float] = field(default_factory=dict)  # how the client leaves early


def request_cases() -> list[RequestCase]:
    """Return the cases of http_requests.jsonl."""
    return [_request_case(line) for line in _lines("http_requests.jsonl")]


def response_cases() -> list[ResponseCase]:
    """Return the cases of http_responses.jsonl."""
    return [_response_case(line) for line in _lines("http_responses.jsonl")]


def relay_cases() -> list[RelayCase]:
    """Return the cases of relay_cases.jsonl that run against any gateway."""
    lines = _lines("relay_cases.jsonl")
    return [_relay_case(line) for line in lines if line["auto"] and "script" in line["upstream"]]


def _lines(file: str) -> Iterator[dict[str, Any]]:
    with (HERE / file).open() as lines:
        yield from map(json.loads, lines)


def _segments(line: dict[str, Any]) -> Segments:
    segments = line["options"].get("segments") or [[0.0, line["raw"]]]
    return [(delay, base64.b64decode(data)) for delay, data in segments]


def _request_case(line: dict[str, Any]) -> RequestCase:
    return RequestCase(
        name=line["name"],
        level=line["level"],
        expect=line["expect"],
        statuses=frozenset(line["statuses"]),
        also_rfc=frozenset(line["rfc_also"]),
        responses=line["responses"],
        never_forward=[text.encode("latin-1", "replace") for text in line["never_forward"]],
        segments=_segments(line),
        half_closes=bool(line["options"].get("fin")),
        is_slow=bool(line["options"].get("slow")),
        auth_at=line["auth_at"],
    )


def _response_case(line: dict[str, Any]) -> ResponseCase:
    return ResponseCase(
        name=line["name"],
        level=line["level"],
        expect=line["expect"],
        statuses=frozenset(line["statuses"]),
        also_rfc=frozenset(line["rfc_also"]),
        method=line["method"],
        segments=_segments(line),
        end=line["end"],
        body=None if line["body"] is None else base64.b64decode(line["body"]),
        may_reuse=line["reuse_ok"],
        may_retry=line["retry_ok"],
        never_client=[text.encode("latin-1") for text in line["never_client"]],
        is_early=bool(line["options"].get("early")),
    )


def _relay_case(line: dict[str, Any]) -> RelayCase:
    return RelayCase(
        name=line["id"],
        level="MUST",
        kind=line["kind"],
        request=line["request"],
        script=line["upstream"]["script"],
        expect=line["expect"],
        leaves=line["request"].get("client", {}),
    )
