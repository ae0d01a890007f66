"""What every answer writer does; the dialects are in `chat`, `completions`, `responses`, `messages`.

A writer turns the progress of one request into server-sent events or into one body.  It
is asked in this order: `on_accept` (the request is in the queue), `on_first` (its first
token exists), `tokens` (again and again), `closing`; or `body`, once, when the answer is
not streamed; or `error`, at any point, when a fault is due.

Nearly all of a stream is token events that differ in one string.  So the shape of an
event is written once, as a dictionary, and `cut_at_mark` makes two pieces of bytes of it,
between which the token goes.
"""

from __future__ import annotations

from typing import Any

import orjson

from relayd.mock import errors
from relayd.mock.asks import Ask
from relayd.mock.replies import Reply
from relayd.mock.simulation import Sequence

MARK = "\x00"  # stands for the token in a shape; as JSON it is \u0000, which no shape has
_MARK_JSON = b"\\u0000"
DONE = b"data: [DONE]\n\n"
OBFUSCATION = "kTq8vZ2mXs4BnL7c"  # filler with which OpenAI hides how long a token is

Json = dict[str, Any]


def data(event: Json) -> bytes:
    """Return an event that has no name."""
    return b"data: " + orjson.dumps(event) + b"\n\n"


def named(event: Json) -> bytes:
    """Return an event whose name is its `type`."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


def cut_at_mark(event: bytes) -> tuple[bytes, bytes]:
    """Return what stands before and after the mark."""
    before, _, after = event.partition(_MARK_JSON)
    return before, after


class Writer:
    """The answer to one request, in one dialect of one engine."""

    def __init__(
        self, engine: str, model: str, ask: Ask, reply: Reply, sequence: Sequence, key: str, now: int
    ) -> None:
        self.engine = engine
        self.model = model
        self.ask = ask
        self.reply = reply
        self.sequence = sequence
        self.key = key  # 32 hexadecimal digits that no other answer has
        self.created = now  # seconds since 1970

    def on_accept(self) -> list[bytes] | None:
        """Return what is sent before the engine has done anything; None holds back the head too."""
        return [] if self.engine == "vllm" else None

    def on_first(self) -> list[bytes]:
        """Return what goes before the first token."""
        return []

    def tokens(self, first: int, last: int) -> list[bytes]:
        """Return the events of tokens `first` to `last` (exclusive), of every answer."""
        raise AssertionError("every dialect has tokens")

    def closing(self) -> list[bytes]:
        """Return what goes after the last token."""
        return [DONE]

    def error(self, status: int, message: str) -> list[bytes]:
        """Return what a failure looks like inside a stream, and what this engine sends after it."""
        event = data(errors.in_stream(self.engine, status, message))
        return [event, DONE] if self.engine in ("vllm", "sglang") else [event]

    def body(self) -> Json:
        """Return the whole answer as one object."""
        raise AssertionError("every dialect has a body")

    def ping(self) -> bytes | None:
        """Return what keeps a silent stream alive, if this engine sends such a thing."""
        return None

    # --- counts

    def usage(self, done: int | None = None) -> Json:
        """Return the usage object of the OpenAI routes after `done` tokens of each answer."""
        sequence = self.sequence
        prompt = sequence.prompt_tokens
        written = (self.reply.count if done is None else done) * sequence.width
        if self.engine == "vllm":
            usage: Json = {
                "prompt_tokens": prompt, "total_tokens": prompt + written, "completion_tokens": written,
            }  # fmt: skip
            if done is None:
                usage["prompt_tokens_details"] = {"cached_tokens": sequence.cached_tokens}
            return usage
        if self.engine == "sglang":
            cached = {"cached_tokens": sequence.cached_tokens} if sequence.cached_tokens else None
            return {
                "prompt_tokens": prompt, "total_tokens": prompt + written, "completion_tokens": written,
                "prompt_tokens_details": cached, "reasoning_tokens": 0,
            }  # fmt: skip
        return {
            "prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0, "audio_tokens": 0,
                "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        }  # fmt: skip

    @property
    def openai_finish(self) -> str:
        """The finish_reason of chat: a call the client named ends with "stop", as at OpenAI."""
        if self.reply.finish != "tool":
            return self.reply.finish
        assert self.ask.tool is not None
        return "stop" if self.ask.tool.named else "tool_calls"
