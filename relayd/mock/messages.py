"""Answers of /v1/messages, Anthropic's dialect.

Anthropic says `message_start` before anything is read, pings once the block begins and
whenever it has been silent for a while, and tells the usage in two parts: what was read
at the start, what was written at the end.  vLLM and SGLang translate their own chat
stream, so that nothing comes before the first token, there are no pings, and input tokens
include the cached ones.
"""

from __future__ import annotations

import orjson

from relayd.mock import errors
from relayd.mock.writers import MARK, Json, Writer, cut_at_mark, named

PING: Json = {"type": "ping"}


class Messages(Writer):
    """One content block: text, or the use of a tool."""

    @property
    def is_anthropic(self) -> bool:
        return self.engine in ("anthropic", "openai")

    def on_accept(self) -> list[bytes] | None:
        if self.is_anthropic:
            return [self._start()]
        return super().on_accept()

    def on_first(self) -> list[bytes]:
        block = {**self._block(), "input": {}} if self.ask.tool else {"type": "text", "text": ""}
        events = [named({"type": "content_block_start", "index": 0, "content_block": block})]
        if self.is_anthropic:
            events.append(named(PING))
        else:
            events.insert(0, self._start())
        kind = {"type": "input_json_delta", "partial_json": MARK} if self.ask.tool else None
        delta = kind or {"type": "text_delta", "text": MARK}
        self._token = cut_at_mark(named({"type": "content_block_delta", "index": 0, "delta": delta}))
        return events

    def tokens(self, first: int, last: int) -> list[bytes]:
        front, back = self._token
        return [front + piece + back for piece in self.reply.pieces(0, first, last)]

    def closing(self) -> list[bytes]:
        usage = self._usage(self.reply.count)
        usage.pop("service_tier", None)
        delta = {"stop_reason": self.stop_reason, "stop_sequence": self.reply.stop}
        return [
            named({"type": "content_block_stop", "index": 0}),
            named({"type": "message_delta", "delta": delta, "usage": usage}),
            named({"type": "message_stop"}),
        ]

    def error(self, status: int, message: str) -> list[bytes]:
        return [named(errors.in_messages(self.engine, status, message, self.request_id))]

    def ping(self) -> bytes | None:
        return named(PING) if self.is_anthropic else None

    @property
    def request_id(self) -> str:
        return f"req_01{self.key[:22]}"

    @property
    def stop_reason(self) -> str:
        if self.reply.stop is not None:
            return "stop_sequence"
        return {"stop": "end_turn", "length": "max_tokens", "tool": "tool_use"}[self.reply.finish]

    def body(self) -> Json:
        if self.ask.tool:
            block = {**self._block(), "input": orjson.loads(self.reply.arguments)}
        else:
            block = {"type": "text", "text": self.reply.text()}
        message = self._message([block], self.reply.count)
        return {**message, "stop_reason": self.stop_reason, "stop_sequence": self.reply.stop}

    def _block(self) -> Json:
        assert self.ask.tool is not None
        return {"type": "tool_use", "id": f"toolu_01{self.key[:22]}", "name": self.ask.tool.name}

    def _start(self) -> bytes:
        return named({"type": "message_start", "message": self._message([], 1 if self.is_anthropic else 0)})

    def _message(self, content: list[Json], written: int) -> Json:
        return {
            "id": f"msg_01{self.key[:22]}" if self.is_anthropic else f"chatcmpl-{self.key}",
            "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": None, "stop_sequence": None, "usage": self._usage(written),
        }  # fmt: skip

    def _usage(self, written: int) -> Json:
        sequence = self.sequence
        if not self.is_anthropic:
            return {"input_tokens": sequence.prompt_tokens, "output_tokens": written}
        return {
            "input_tokens": sequence.prompt_tokens - sequence.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": sequence.cached_tokens,
            "output_tokens": written,
            "service_tier": "standard",
        }
