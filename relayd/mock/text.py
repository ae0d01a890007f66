"""What the simulated model says.

A server makes one long ring of tokens from its seed; an answer is a slice of it that
begins where a sentence does.  So an answer costs nothing to make, the whole of it is known
as soon as it begins, and the same seed says the same things.  Some tokens are not ASCII,
since readers that cut text at the wrong byte should be found out.
"""

from __future__ import annotations

import random
from functools import lru_cache

import orjson

RING_TOKENS = 4096

_SUBJECTS = (
    "The relay", "A worker", "The queue", "Every client", "The scheduler", "One batch", "The cache",
    "A stream", "The second server", "This answer", "The gateway", "Its neighbour",
)  # fmt: skip
_VERBS = (
    "waits for", "follows", "forgets", "holds", "finds", "passes on", "counts", "drops", "measures", "shares",
    "repeats", "outlives",
)  # fmt: skip
_OBJECTS = (
    "the next token", "a longer prompt", "two small requests", "the last event", "an empty slot",
    "some memory", "its own limits", "the café in 東京", "a naïve retry", "the other half →",
    "a quiet night 🙂", "nothing at all",
)  # fmt: skip
_ENDS = (".", ".", ".", ", and so it goes on.", " again.", "; nobody is surprised.")


class Ring:
    """An endless text, as tokens.

    `escaped[i]` is token i as it stands inside a JSON string; `RING_TOKENS` of them,
    after which the text begins anew.
    """

    def __init__(self, rng: random.Random) -> None:
        tokens, starts = _write(rng)
        self.tokens = tokens
        self.starts = starts
        self.escaped = [escape(token) for token in tokens]
        self._text = "".join(tokens)
        self._offsets = [0]
        for token in tokens:
            self._offsets.append(self._offsets[-1] + len(token))

    @staticmethod
    @lru_cache(8)
    def of(seed: str) -> Ring:
        """Return the ring that `seed` makes; several servers in one process share it."""
        return Ring(random.Random(seed))

    def start(self, rng: random.Random) -> int:
        """Choose where an answer begins."""
        return self.starts[int(rng.random() * len(self.starts))]

    def text(self, start: int, count: int) -> str:
        """Return `count` tokens from `start` on as text."""
        parts = []
        while count > 0:
            take = min(count, RING_TOKENS - start)
            parts.append(self._text[self._offsets[start] : self._offsets[start + take]])
            count -= take
            start = 0
        return "".join(parts)

    def slice(self, start: int, first: int, last: int) -> list[bytes]:
        """Return tokens `first` to `last` (exclusive) of the answer from `start`, escaped."""
        begin = (start + first) % RING_TOKENS
        end = begin + last - first
        if end <= RING_TOKENS:
            return self.escaped[begin:end]
        escaped = self.escaped
        return [escaped[(begin + i) % RING_TOKENS] for i in range(last - first)]


def escape(text: str) -> bytes:
    """Return `text` as it stands between the quotes of a JSON string."""
    return orjson.dumps(text)[1:-1]


def _write(rng: random.Random) -> tuple[list[str], list[int]]:
    tokens: list[str] = []
    starts: list[int] = []
    while len(tokens) < RING_TOKENS:
        starts.append(len(tokens))
        sentence = f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}{rng.choice(_ENDS)}"
        tokens.extend(word + " " for word in sentence.split())
    return tokens[:RING_TOKENS], starts


def arguments_for(schema: object, rng: random.Random) -> object:
    """Return a value that fits a JSON schema, for the arguments of a tool call."""
    if not isinstance(schema, dict):
        return {}
    if isinstance(choices := schema.get("enum"), list) and choices:
        return choices[0]
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0] if kind else "null"
    if not isinstance(kind, str):
        return None
    if kind == "object":
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return {}
        return {name: arguments_for(value, rng) for name, value in properties.items()}
    if kind == "array":
        return [arguments_for(schema.get("items"), rng)] if "items" in schema else []
    simple: dict[str, object] = {
        "string": rng.choice(_OBJECTS),
        "integer": rng.randrange(100),
        "number": rng.randrange(1000) / 10,
        "boolean": True,
    }
    return simple.get(kind)


def pieces_of(text: str, size: int = 6) -> list[str]:
    """Cut `text` the way a model would write it, a few characters at a time."""
    return [text[i : i + size] for i in range(0, len(text), size)] or [""]
