"""What is asked, and when.

Requests arrive at random and do not wait for each other (a Poisson process, "open loop"): a fleet that falls
behind gets no mercy, as with real users.  Everything follows from the seed, so two fleets can be given the
very same traffic.

The bytes are those of the official OpenAI client for Python, version 3: its headers in its order, its JSON
without spaces.  What the answer says follows from the request's `seed` alone, whichever worker writes it, so
answers can be compared word for word.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

MODEL = "mock"
ANSWER_AT_MOST = 128  # tokens, as a client that sets a limit would
STREAMED = 0.7  # of all requests
WARM_UP = 6  # requests
BYTES_PER_TOKEN = 4  # as the simulated workers count

# share of requests, and how long their prompts are in tokens
PROMPTS = (
    (0.60, 20, 100),  # a question
    (0.30, 150, 400),  # a conversation that has gone on for a while
    (0.10, 500, 1000),  # a question about a document
)

HEAD = """\
POST /v1/chat/completions HTTP/1.1\r
Host: {host}\r
Accept-Encoding: gzip, deflate\r
Connection: keep-alive\r
authorization: Bearer sk-demo\r
accept: application/json\r
content-type: application/json\r
user-agent: AsyncOpenAI/Python 3.57.0\r
x-stainless-lang: python\r
x-stainless-package-version: 3.57.0\r
x-stainless-os: Linux\r
x-stainless-arch: x64\r
x-stainless-runtime: CPython\r
x-stainless-runtime-version: 3.11.7\r
x-stainless-async: async:asyncio\r
x-stainless-retry-count: 0\r
x-stainless-read-timeout: 600\r
Content-Length: {length}\r
\r
"""

WORDS = (
    "the", "a", "queue", "worker", "token", "answer", "please", "read", "these", "notes", "and", "tell", "me",
    "what", "they", "say", "about", "waiting", "because", "my", "colleagues", "would", "like", "to", "know",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when it is due, counted from the start, and its body."""

    number: int
    due_s: float
    streamed: bool
    body: bytes


def make_plan(seconds: float, rate: float, seed: int) -> list[Ask]:
    """Return the requests of `seconds` at `rate` a second, in the order of their times."""
    rng = random.Random(f"plan {seed}")
    plan: list[Ask] = []
    due_s = rng.expovariate(rate)
    while due_s < seconds:
        plan.append(make_ask(rng, len(plan), due_s, seed))
        due_s += rng.expovariate(rate)
    return plan


def make_warm_up(seed: int) -> list[Ask]:
    """Return a few requests that nobody counts: a process is slow the first time it does a thing."""
    rng = random.Random(f"warm-up {seed}")
    return [make_ask(rng, -number, 0.0, seed) for number in range(1, WARM_UP + 1)]


def make_ask(rng: random.Random, number: int, due_s: float, seed: int) -> Ask:
    """Return one request, of whatever kind the dice say."""
    streamed = rng.random() < STREAMED
    (_, least, most) = rng.choices(PROMPTS, [share for share, _, _ in PROMPTS])[0]
    # Each prompt begins in its own way: a worker that had read it before would not have to read it again.
    prompt = f"Question {number} of run {seed}: " + prose(rng, rng.randint(least, most) * BYTES_PER_TOKEN)
    body = {
        "model": MODEL,
        **({"stream": True} if streamed else {}),
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_AT_MOST,
        "seed": seed * 1_000_003 + number,
        "temperature": 0.7,
    }
    return Ask(number, due_s, streamed, json.dumps(body, separators=(",", ":")).encode())


def prose(rng: random.Random, length: int) -> str:
    """Return about `length` bytes of words."""
    words: list[str] = rng.choices(WORDS, k=length // 4)
    return " ".join(words)[:length]


def on_the_wire(ask: Ask, host: str) -> bytes:
    """Return the bytes of the request; `host` is HOST:PORT."""
    return HEAD.format(host=host, length=len(ask.body)).encode() + ask.body
