"""Answers of /v1/chat/completions.

All three shapes begin with a delta that has only a role.  After that:

* vLLM tells nothing it was not asked for: no `usage` until the end, `token_ids` null.  An
  answer that ran into its limit ends on its last token, one that stopped by itself on an
  empty delta.
* SGLang repeats `reasoning_content: null` in every delta, and ends with a delta that has
  nothing else.
* OpenAI has `service_tier`, a fingerprint, `obfuscation` and, when usage was asked for,
  `usage: null` in every event but the last.  Anthropic's endpoint for OpenAI clients is
  given the same shape.
"""

from __future__ import annotations

from relayd.mock.writers import DONE, MARK, OBFUSCATION, Json, Writer, cut_at_mark, data


class Chat(Writer):
    """What the three have in common."""

    def chunk(self, index: int, delta: Json, finish: str | None = None) -> Json:
        """Return one event's object."""
        raise AssertionError("every engine has a chunk")

    def on_first(self) -> list[bytes]:
        events = [data(self.with_usage(self.chunk(i, self.role_delta()), 0)) for i in range(self.ask.choices)]
        if self.ask.tool:
            events.extend(data(self.chunk(i, self.tool_delta(i))) for i in range(self.ask.choices))
        self._token = [cut_at_mark(data(self.token_chunk(i))) for i in range(self.ask.choices)]
        return events

    def role_delta(self) -> Json:
        return {"role": "assistant", "content": ""}

    def tool_delta(self, index: int) -> Json:
        """Return the delta that begins the call."""
        assert self.ask.tool is not None
        function = {"name": self.ask.tool.name, "arguments": ""}
        call = {"index": 0, "id": self.call_id(index), "type": "function", "function": function}
        return {"tool_calls": [call]}

    def call_id(self, index: int) -> str:
        return f"call_{self.key[: 23 - len(str(index))]}{index}"

    def token_chunk(self, index: int) -> Json:
        """Return the event of one token, with the mark in its place."""
        if self.ask.tool:
            return self.chunk(index, {"tool_calls": [{"index": 0, "function": {"arguments": MARK}}]})
        return self.chunk(index, {"content": MARK})

    def tokens(self, first: int, last: int) -> list[bytes]:
        if self.ask.continuous and self.engine != "openai":
            return self._tokens_with_usage(first, last)
        columns = []
        for choice, (front, back) in enumerate(self._token):
            columns.append([front + piece + back for piece in self.reply.pieces(choice, first, last)])
        if len(columns) == 1:
            return columns[0]
        return [event for row in zip(*columns, strict=True) for event in row]

    def _tokens_with_usage(self, first: int, last: int) -> list[bytes]:
        events = []
        for choice in range(self.ask.choices):
            for at, piece in enumerate(self.reply.pieces(choice, first, last), first + 1):
                front, back = cut_at_mark(data(self.with_usage(self.token_chunk(choice), at)))
                events.append(front + piece + back)
        return events

    def with_usage(self, event: Json, done: int) -> Json:
        """Add what `continuous_usage_stats` asks for."""
        if self.ask.continuous and self.engine != "openai":
            event["usage"] = self.usage(done)
        return event

    def closing(self) -> list[bytes]:
        events = [data(self.finish_chunk(i)) for i in range(self.ask.choices)]
        if self.ask.usage:
            events.append(data(self.usage_chunk()))
        events.append(DONE)
        return events

    def finish_chunk(self, index: int) -> Json:
        return self.with_usage(self.chunk(index, {}, self.openai_finish), self.reply.count)

    def usage_chunk(self) -> Json:
        """Return the event with usage and no choices."""
        return {**self.envelope("chat.completion.chunk"), "choices": [], "usage": self.usage()}

    def envelope(self, kind: str) -> Json:
        return {"id": self.answer_id(), "object": kind, "created": self.created, "model": self.model}

    def answer_id(self) -> str:
        return f"chatcmpl-{self.key}"

    def message(self, index: int) -> Json:
        """Return the message of an answer that is not streamed."""
        if not self.ask.tool:
            return {"role": "assistant", "content": self.reply.text(index)}
        function = {"name": self.ask.tool.name, "arguments": self.reply.arguments}
        call = {"id": self.call_id(index), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


class VllmChat(Chat):
    def chunk(self, index: int, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        if finish is not None:
            choice["stop_reason"] = self.reply.stop
        choice["token_ids"] = None
        return {**self.envelope("chat.completion.chunk"), "choices": [choice]}

    def call_id(self, index: int) -> str:
        return f"chatcmpl-tool-{self.key[:15]}{index}"

    def tokens(self, first: int, last: int) -> list[bytes]:
        if last < self.reply.count or self.reply.finish != "length":
            return super().tokens(first, last)
        return super().tokens(first, last - 1) + [self._last(i) for i in range(self.ask.choices)]

    def _last(self, index: int) -> bytes:
        event = self.with_usage(self.chunk(index, {"content": MARK}, "length"), self.reply.count)
        front, back = cut_at_mark(data(event))
        return front + self.reply.pieces(index, self.reply.count - 1, self.reply.count)[0] + back

    def closing(self) -> list[bytes]:
        events = super().closing()
        return events[self.ask.choices :] if self.reply.finish == "length" else events

    def finish_chunk(self, index: int) -> Json:
        return self.with_usage(self.chunk(index, {"content": ""}, self.openai_finish), self.reply.count)

    def body(self) -> Json:
        choices = []
        for index in range(self.ask.choices):
            message = {
                "refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": [],
                "reasoning": None, **self.message(index),
            }  # fmt: skip
            choices.append({
                "index": index, "message": message, "logprobs": None, "finish_reason": self.openai_finish,
                "stop_reason": self.reply.stop, "token_ids": None,
            })  # fmt: skip
        return {
            **self.envelope("chat.completion"), "choices": choices, "service_tier": None,
            "system_fingerprint": None, "usage": self.usage(), "prompt_logprobs": None,
            "prompt_token_ids": None, "kv_transfer_params": None,
        }  # fmt: skip


class SglangChat(Chat):
    def answer_id(self) -> str:
        return self.key

    def chunk(self, index: int, delta: Json, finish: str | None = None) -> Json:
        choice = {
            "index": index, "delta": {"reasoning_content": None, **delta}, "logprobs": None,
            "finish_reason": finish, "matched_stop": self.reply.stop if finish else None,
        }  # fmt: skip
        return {**self.envelope("chat.completion.chunk"), "choices": [choice]}

    def body(self) -> Json:
        choices = []
        for index in range(self.ask.choices):
            message = {"reasoning_content": None, "tool_calls": None, **self.message(index)}
            choices.append({
                "index": index, "message": message, "logprobs": None, "finish_reason": self.openai_finish,
                "matched_stop": self.reply.stop,
            })  # fmt: skip
        metadata = {"weight_version": "default"}
        return {
            **self.envelope("chat.completion"),
            "choices": choices,
            "usage": self.usage(),
            "metadata": metadata,
        }


class OpenaiChat(Chat):
    def answer_id(self) -> str:
        return f"chatcmpl-{self.key[:29]}"

    def role_delta(self) -> Json:
        return {"role": "assistant", "content": None if self.ask.tool else "", "refusal": None}

    def envelope(self, kind: str) -> Json:
        return {
            **super().envelope(kind),
            "service_tier": "default",
            "system_fingerprint": "fp_0000000000",
        }

    def chunk(self, index: int, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        event: Json = {**self.envelope("chat.completion.chunk"), "choices": [choice]}
        if self.ask.usage:
            event["usage"] = None
        if self.ask.obfuscation:
            event["obfuscation"] = OBFUSCATION
        return event

    def body(self) -> Json:
        choices = []
        for index in range(self.ask.choices):
            message = {**self.message(index), "refusal": None, "annotations": []}
            choices.append(
                {"index": index, "message": message, "logprobs": None, "finish_reason": self.openai_finish}
            )
        return {**self.envelope("chat.completion"), "choices": choices, "usage": self.usage()}


BY_ENGINE = {"vllm": VllmChat, "sglang": SglangChat, "openai": OpenaiChat, "anthropic": OpenaiChat}
