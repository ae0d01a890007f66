"""Answers of /v1/embeddings: numbers that depend on the text and nothing else.

The Python SDK asks for base64 when its user asks for nothing, so both encodings matter.
"""

from __future__ import annotations

import base64
import math
import random
import struct
import zlib

from relayd.mock.writers import Json, Writer

DIMENSIONS = 256  # unless the request says


class Embeddings(Writer):
    def body(self) -> Json:
        body = self.ask.body
        rows = []
        for index, text in enumerate(self.ask.texts):
            vector: list[float] | str = embed(text.encode(), body.dimensions or DIMENSIONS)
            if body.encoding_format == "base64":
                vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
            rows.append({"object": "embedding", "index": index, "embedding": vector})
        tokens = self.sequence.prompt_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer: Json = {"object": "list", "data": rows, "model": self.model, "usage": usage}
        if self.engine == "vllm":
            answer = {"id": f"embd-{self.key}", "created": self.created, **answer}
        return answer


def embed(text: bytes, dimensions: int) -> list[float]:
    """Return a vector of length 1."""
    rng = random.Random(zlib.crc32(text))
    numbers = [rng.uniform(-1, 1) for _ in range(dimensions)]
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [number / length for number in numbers]
