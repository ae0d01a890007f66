"""The words of Anthropic's Messages API.

Error types by status are those of the official SDK; a stream's reader knows only named events, so an
error is `event: error` and a sign of life is a `ping` event, never a comment.
"""

from __future__ import annotations

from typing import Any

import msgspec

from relayd._fast.leg import EventKind
from relayd.dialects.openai import data_of
from relayd.faults import Fault
from relayd.registry import register

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

# Errors inside a stream that are the client's own; the rest another worker might not make.
CLIENT_TYPES = frozenset(
    (
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
    )
)

PREAMBLE, CONTENT = int(EventKind.EVENT_PREAMBLE), int(EventKind.EVENT_CONTENT)
CLIENT_ERROR, WORKER_ERROR = int(EventKind.EVENT_CLIENT_ERROR), int(EventKind.EVENT_WORKER_ERROR)

PREAMBLES = frozenset(("message_start", "ping"))


class _Error(msgspec.Struct):
    type: Any = None


class _Block(msgspec.Struct):
    type: Any = None
    text: Any = None


class _Event(msgspec.Struct):
    type: Any = None
    error: _Error | None = None
    content_block: _Block | None = None


_decode = msgspec.json.Decoder(_Event).decode


@register("dialects", "anthropic")
class Anthropic:
    """/v1/messages and what belongs to it."""

    name = "anthropic"
    keepalive = b'event: ping\ndata: {"type": "ping"}\n\n'

    def error_body(self, fault: Fault, request_id: str) -> bytes:
        """Return the JSON body of an error answer."""
        kind = TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
        return msgspec.json.encode(
            {
                "type": "error",
                "error": {"type": kind, "message": fault.message, "code": fault.code},
                "request_id": request_id,
            }
        )

    def error_event(self, fault: Fault, request_id: str) -> bytes:
        """Return the event that tells a stream's reader of an error."""
        return b"event: error\ndata: " + self.error_body(fault, request_id) + b"\n\n"

    def judge(self, event: bytes) -> int:
        """Return the EventKind of a whole event, for the commit point."""
        data = data_of(event)
        if data is None:
            return PREAMBLE
        try:
            said = _decode(data)
        except (msgspec.MsgspecError, RecursionError):
            return CONTENT
        if said.type == "error":
            kind = said.error.type if said.error is not None else None
            client = isinstance(kind, str) and kind in CLIENT_TYPES
            return CLIENT_ERROR if client else WORKER_ERROR
        if isinstance(said.type, str) and said.type in PREAMBLES:
            return PREAMBLE
        if said.type == "content_block_start" and said.content_block is not None:
            empty_text = said.content_block.type == "text" and not said.content_block.text
            return PREAMBLE if empty_text else CONTENT
        return CONTENT
