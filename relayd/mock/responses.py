"""Answers of /v1/responses: numbered, named events around one output item.

An answer that ran into `max_output_tokens` ends with `response.incomplete` at OpenAI,
and with `response.completed` that says "incomplete" inside at vLLM and SGLang.
"""

from __future__ import annotations

from typing import Any

from relayd.mock import errors
from relayd.mock.writers import MARK, OBFUSCATION, Json, Writer, cut_at_mark, data, named

_NUMBER = "\x01"  # stands for the sequence number in a shape, quotes and all
_NUMBER_JSON = b'"\\u0001"'


class Responses(Writer):
    """One item: a message, or a function call."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._number = 0
        self.response_id = f"resp_{self.key}"
        self.item_id = ("fc_" if self.ask.tool else "msg_") + self.key

    def on_accept(self) -> list[bytes] | None:
        if self.engine == "sglang":
            return None
        return self._begin()

    def _begin(self) -> list[bytes]:
        response = self.response("in_progress", [])
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def on_first(self) -> list[bytes]:
        events = self._begin() if self.engine == "sglang" else []
        events.append(
            self._event("response.output_item.added", output_index=0, item=self.item("in_progress"))
        )
        if not self.ask.tool:
            part = self._part("")
            events.append(self._event("response.content_part.added", **self._place(), part=part))
        self._token = self._template()
        return events

    def _template(self) -> tuple[bytes, bytes, bytes]:
        """Return a token's event in three pieces: up to its number, up to the token, the rest."""
        if self.ask.tool:
            kind, fields = (
                "response.function_call_arguments.delta",
                {"item_id": self.item_id, "output_index": 0},
            )
        else:
            kind, fields = "response.output_text.delta", self._place()
        shape: Json = {"type": kind, "sequence_number": _NUMBER, **fields, "delta": MARK}
        if not self.ask.tool:
            shape["logprobs"] = []
        if self.engine in ("openai", "anthropic") and self.ask.obfuscation:
            shape["obfuscation"] = OBFUSCATION
        front, back = cut_at_mark(named(shape))
        start, _, middle = front.partition(_NUMBER_JSON)
        return start, middle, back

    def tokens(self, first: int, last: int) -> list[bytes]:
        start, middle, back = self._token
        events = []
        for piece in self.reply.pieces(0, first, last):
            events.append(b"%b%d%b%b%b" % (start, self._number, middle, piece, back))
            self._number += 1
        return events

    def closing(self) -> list[bytes]:
        events = self._call_done() if self.ask.tool else self._text_done()
        item = self.item(self.status)
        events.append(self._event("response.output_item.done", output_index=0, item=item))
        kind = "response.completed"
        if self.status == "incomplete" and self.engine in ("openai", "anthropic"):
            kind = "response.incomplete"
        events.append(self._event(kind, response=self.response(self.status, [item])))
        return events

    def _call_done(self) -> list[bytes]:
        kind = "response.function_call_arguments.done"
        return [self._event(kind, item_id=self.item_id, output_index=0, arguments=self.reply.arguments)]

    def _text_done(self) -> list[bytes]:
        text = self.reply.text()
        return [
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place(), part=self._part(text)),
        ]

    def error(self, status: int, message: str) -> list[bytes]:
        if self.engine in ("vllm", "sglang"):
            return [data(errors.in_stream(self.engine, status, message))]
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        return [self._event("error", code=code, message=message, param=None)]

    @property
    def status(self) -> str:
        """How it ended."""
        return "incomplete" if self.reply.finish == "length" else "completed"

    def body(self) -> Json:
        return self.response(self.status, [self.item(self.status)])

    def item(self, status: str) -> Json:
        """Return the one output item, empty while in progress."""
        ended = status != "in_progress"
        if self.ask.tool:
            return {
                "id": self.item_id, "type": "function_call", "status": status,
                "call_id": f"call_{self.key[:24]}", "name": self.ask.tool.name,
                "arguments": self.reply.arguments if ended else "",
            }  # fmt: skip
        content = [self._part(self.reply.text())] if ended else []
        return {
            "id": self.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def response(self, status: str, output: list[Json]) -> Json:
        """Return the response object, which repeats what was asked."""
        body = self.ask.body
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.response_id, "object": "response", "created_at": self.created, "status": status,
            "background": False, "error": None, "incomplete_details": details,
            "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
            "model": self.model, "output": output, "parallel_tool_calls": True,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None}, "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}}, "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [], "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled", "usage": self._usage() if status != "in_progress" else None,
            "user": None, "metadata": body.metadata or {},
        }  # fmt: skip

    def _usage(self) -> Json:
        sequence = self.sequence
        return {
            "input_tokens": sequence.prompt_tokens,
            "input_tokens_details": {"cached_tokens": sequence.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.reply.count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sequence.prompt_tokens + self.reply.count,
        }

    def _place(self) -> Json:
        return {"item_id": self.item_id, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return named({"type": kind, "sequence_number": number, **fields})
