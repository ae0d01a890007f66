"""The words of OpenAI's API, which vLLM, SGLang and most others speak too.

The error shape and its four keys are what the official SDKs read (`error.message`, `.type`, `.param`,
`.code`); in a stream an event whose data has an `error` object makes them raise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from relayd._fast.leg import EventKind
from relayd.faults import Fault
from relayd.registry import register

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Error(msgspec.Struct):
    code: Any = None
    type: Any = None
    status: Any = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: _Error | str | None = None
    type: Any = None
    code: Any = None


_decode = msgspec.json.Decoder(_Event).decode

# By which an error inside a stream says that it is the client's own: a 4xx other than 408 and 429, as a
# number or as text, or one of the names that servers give it.
CLIENT_STATUSES = [status for status in range(400, 500) if status not in (408, 429)]
CLIENT_ERRORS = frozenset(
    (
        *CLIENT_STATUSES,
        *map(str, CLIENT_STATUSES),
        "invalid_request_error",
        "BadRequestError",
        "not_found_error",
        "NotFoundError",
        "context_length_exceeded",
        "invalid_prompt",
        "content_filter",
    )
)

# As plain numbers: an enum's members are slow, and judging is part of every stream.
PREAMBLE, CONTENT = int(EventKind.EVENT_PREAMBLE), int(EventKind.EVENT_CONTENT)
CLIENT_ERROR, WORKER_ERROR = int(EventKind.EVENT_CLIENT_ERROR), int(EventKind.EVENT_WORKER_ERROR)

# How a delta with text begins in nearly all streams, when the text is not empty.  No text can contain it:
# inside a JSON string quotes are escaped.
TEXT = b'"delta":{"content":"'

# Responses API events that come before anything is said.
PREAMBLES = frozenset(
    (
        "response.created",
        "response.in_progress",
        "response.queued",
        "response.output_item.added",
        "response.content_part.added",
        "keepalive",
    )
)


def data_of(event: bytes) -> bytes | None:
    """Return the data of a whole event, lines joined; None if it has none (a comment)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2:
        return event[6:-2]  # as nearly all are; CR inside JSON is only space
    lines = [
        line[5:].removeprefix(b" ")
        for line in event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


@register("dialects", "openai")
class OpenAI:
    """Chat, completions, responses and everything else under /v1 but messages."""

    name = "openai"
    keepalive = b": keep-alive\n\n"

    def error_body(self, fault: Fault, request_id: str) -> bytes:
        """Return the JSON body of an error answer."""
        kind = TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "server_error")
        return msgspec.json.encode(
            {
                "error": {
                    "message": f"{fault.message} (request id {request_id})",
                    "type": kind,
                    "param": fault.param,
                    "code": fault.code,
                }
            }
        )

    def error_event(self, fault: Fault, request_id: str) -> bytes:
        """Return the event that tells a stream's reader of an error."""
        return b"data: " + self.error_body(fault, request_id) + b"\n\n"

    def judge(self, event: bytes) -> int:
        """Return the EventKind of a whole event, for the commit point."""
        at = event.find(TEXT)
        if at >= 0 and not event.startswith(b'"', at + len(TEXT)) and b'"error"' not in event:
            return CONTENT
        data = data_of(event)
        if data is None:
            return PREAMBLE  # a comment
        try:
            said = _decode(data)
        except (msgspec.MsgspecError, RecursionError):
            return CONTENT  # not ours to understand
        if said.error is not None:
            return judge_error(said.error)
        if isinstance(said.type, str):
            if said.type == "error":
                return judge_error(_Error(said.code))
            if said.type == "response.failed":
                return WORKER_ERROR
            return PREAMBLE if said.type in PREAMBLES else CONTENT
        if said.choices is None:
            return CONTENT
        if any(has_content(choice) for choice in said.choices):
            return CONTENT
        return PREAMBLE


def judge_error(error: _Error | str) -> int:
    """Return whose fault an error event says it is: a 4xx other than 429 is the client's."""
    if isinstance(error, str):
        return WORKER_ERROR
    told = [word for word in (error.code, error.status, error.type) if isinstance(word, int | str)]
    if any(word in CLIENT_ERRORS for word in told):
        return CLIENT_ERROR
    return WORKER_ERROR


def has_content(choice: _Choice) -> bool:
    """True if a choice says anything beyond its role."""
    if choice.finish_reason or choice.text:
        return True
    delta = choice.delta
    return delta is not None and bool(
        delta.content
        or delta.reasoning_content
        or delta.reasoning
        or delta.refusal
        or delta.tool_calls
        or delta.function_call
        or delta.audio
    )
