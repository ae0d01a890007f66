"""What inference servers say: events and answers in each dialect, as short as they may be.

`openai` is the chat dialect of vLLM, SGLang and OpenAI; `anthropic` is Messages; `responses` is OpenAI's
newer one.  Each has a preamble (which commits nothing), text, an error, a terminator and a plain answer, so
that a scenario can be written once and run in each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def data_event(body: Any, name: str | None = None) -> str:
    """Return one server-sent event with a JSON body."""
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(body)}\n\n"


@dataclass(frozen=True)
class Dialect:
    """One dialect: where it is asked, with what, and what its servers send."""

    name: str
    path: str
    question: dict[str, Any]
    headers: tuple[tuple[str, str], ...]
    preamble: str
    text: Callable[[str], str]
    terminator: str
    error: Callable[[int, str], str]
    whole: Callable[[str], dict[str, Any]]

    def ask(self, stream: bool = False, **more: Any) -> dict[str, Any]:
        """Return the body of a question."""
        return {**self.question, **({"stream": True} if stream else {}), **more}

    def events(self, *words: str) -> list[str]:
        """Return the events of a whole answer."""
        return [self.preamble, *(self.text(word) for word in words), self.terminator]


# OpenAI chat


def _chat_chunk(*choices: dict[str, Any], **more: Any) -> str:
    same = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return data_event({**same, "choices": list(choices), **more})


def _choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def chat_usage(prompt: int, completion: int, cached: int | None = None) -> str:
    """Return the event that reports usage behind the last choice."""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return _chat_chunk(usage=usage)


def _chat_error(status: int, message: str) -> str:
    return data_event({"error": {"message": message, "type": "server_error", "param": None, "code": status}})


def _chat_whole(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }


CHAT_STOP = _chat_chunk(_choice({}, "stop"))
DONE = "data: [DONE]\n\n"

OPENAI = Dialect(
    name="openai",
    path="/v1/chat/completions",
    question={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    headers=(("Authorization", "Bearer k"),),
    preamble=_chat_chunk(_choice({"role": "assistant", "content": ""})),
    text=lambda word: _chat_chunk(_choice({"content": word})),
    terminator=CHAT_STOP + DONE,
    error=_chat_error,
    whole=_chat_whole,
)


# Anthropic messages


def _message(**more: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
        **more,
    }


ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def _messages_error(status: int, message: str) -> str:
    kind = ANTHROPIC_ERRORS.get(status, "api_error")
    return data_event({"type": "error", "error": {"type": kind, "message": message}}, "error")


PING = data_event({"type": "ping"}, "ping")
BLOCK_START = data_event(
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    "content_block_start",
)
MESSAGE_END = (
    data_event({"type": "content_block_stop", "index": 0}, "content_block_stop")
    + data_event(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        "message_delta",
    )
    + data_event({"type": "message_stop"}, "message_stop")
)

ANTHROPIC = Dialect(
    name="anthropic",
    path="/v1/messages",
    question={"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]},
    headers=(("x-api-key", "k"), ("anthropic-version", "2023-06-01")),
    preamble=data_event({"type": "message_start", "message": _message()}, "message_start"),
    text=lambda word: data_event(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}},
        "content_block_delta",
    ),
    terminator=MESSAGE_END,
    error=_messages_error,
    whole=lambda text: _message(content=[{"type": "text", "text": text}], stop_reason="end_turn"),
)


# OpenAI responses


def _response(status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **more,
    }


def _responses_whole(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output = {"id": "i1", "type": "message", "role": "assistant", "status": "completed", "content": content}
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 16,
    }
    return _response("completed", output=[output], usage=usage)


RESPONSES = Dialect(
    name="responses",
    path="/v1/responses",
    question={"model": "m", "input": "hi"},
    headers=(("Authorization", "Bearer k"),),
    preamble=data_event(
        {"type": "response.created", "sequence_number": 0, "response": _response("in_progress")},
        "response.created",
    )
    + data_event(
        {"type": "response.in_progress", "sequence_number": 1, "response": _response("in_progress")},
        "response.in_progress",
    ),
    text=lambda word: data_event(
        {
            "type": "response.output_text.delta",
            "sequence_number": 2,
            "item_id": "i1",
            "output_index": 0,
            "content_index": 0,
            "delta": word,
            "logprobs": [],
        },
        "response.output_text.delta",
    ),
    terminator=data_event(
        {"type": "response.completed", "sequence_number": 3, "response": _responses_whole("hi")},
        "response.completed",
    ),
    error=lambda status, message: data_event(
        {"type": "error", "sequence_number": 2, "code": str(status), "message": message, "param": None},
        "error",
    ),
    whole=_responses_whole,
)

DIALECTS = (OPENAI, ANTHROPIC, RESPONSES)
