"""Answers of /v1/completions: text without a preamble.

vLLM and SGLang end on the event of the last token; OpenAI on an empty one.
"""

from __future__ import annotations

from relayd.mock.writers import DONE, MARK, Json, Writer, cut_at_mark, data


class Completion(Writer):
    """One writer for all engines: they differ in a few fields."""

    def on_first(self) -> list[bytes]:
        self._token = [cut_at_mark(data(self.chunk(i, MARK))) for i in range(self.ask.choices)]
        return []

    def chunk(self, index: int, text: str, finish: str | None = None, done: int = 0) -> Json:
        event: Json = {**self.envelope(), "choices": [self.choice(index, text, finish)]}
        if self.engine == "openai" and self.ask.usage:
            event["usage"] = None
        elif self.ask.continuous and self.engine != "openai":
            event["usage"] = self.usage(done)
        return event

    def choice(self, index: int, text: str, finish: str | None) -> Json:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        if self.engine == "vllm":
            stop = self.reply.stop if finish else None
            choice |= {"stop_reason": stop, "prompt_token_ids": None, "token_ids": None}
        elif self.engine == "sglang":
            choice |= {"matched_stop": self.reply.stop if finish else None, "hidden_states": None}
        return choice

    def envelope(self) -> Json:
        identity = self.key if self.engine == "sglang" else f"cmpl-{self.key}"
        return {"id": identity, "object": "text_completion", "created": self.created, "model": self.model}

    def tokens(self, first: int, last: int) -> list[bytes]:
        events = []
        pieces = [self.reply.pieces(choice, first, last) for choice in range(self.ask.choices)]
        for at in range(first, last):
            finish = self.reply.finish if at + 1 == self.reply.count and self.ends_on_token else None
            for choice in range(self.ask.choices):
                front, back = self._token[choice]
                if finish or self.ask.continuous:
                    front, back = cut_at_mark(data(self.chunk(choice, MARK, finish, at + 1)))
                events.append(front + pieces[choice][at - first] + back)
        return events

    @property
    def ends_on_token(self) -> bool:
        return self.engine in ("vllm", "sglang")

    def closing(self) -> list[bytes]:
        events: list[bytes] = []
        if not self.ends_on_token:
            events.extend(data(self.chunk(i, "", self.reply.finish)) for i in range(self.ask.choices))
        if self.ask.usage:
            events.append(data({**self.envelope(), "choices": [], "usage": self.usage()}))
        events.append(DONE)
        return events

    def body(self) -> Json:
        choices = [self.choice(i, self.reply.text(i), self.reply.finish) for i in range(self.ask.choices)]
        return {**self.envelope(), "choices": choices, "usage": self.usage()}
