"""What the answer will be, decided before its first token.

A reply is a number of tokens and where they come from: a stretch of the ring of text,
or the pieces of a tool call's arguments.  Several answers to one request (`n`) are as long
as each other and begin at different places.
"""

from __future__ import annotations

import random
from bisect import bisect_right

import orjson

from relayd.mock.asks import Ask
from relayd.mock.text import RING_TOKENS, Ring, arguments_for, escape, pieces_of

_APART = 611  # tokens between where two answers to one request begin; any odd number will do


class Reply:
    """One answer, or several of one length, to one request."""

    __slots__ = ("arguments", "count", "finish", "ring", "start", "stop", "tool_pieces")

    def __init__(self, ring: Ring, start: int, count: int, finish: str) -> None:
        self.ring = ring
        self.start = start
        self.count = count  # tokens
        self.finish = finish  # stop, length, tool
        self.stop: str | None = None  # the stop string that ended it
        self.arguments = ""  # of the tool call, as JSON text
        self.tool_pieces: list[bytes] = []

    def text(self, choice: int = 0, tokens: int | None = None) -> str:
        """Return the whole answer, or so many tokens of it."""
        return self.ring.text(self._begin(choice), self.count if tokens is None else tokens)

    def pieces(self, choice: int, first: int, last: int) -> list[bytes]:
        """Return tokens `first` to `last` (exclusive), escaped for a JSON string."""
        if self.tool_pieces:
            return self.tool_pieces[first:last]
        return self.ring.slice(self._begin(choice), first, last)

    def _begin(self, choice: int) -> int:
        return (self.start + choice * _APART) % RING_TOKENS


def plan(ask: Ask, ring: Ring, rng: random.Random, lengths: tuple[int, int], room: int) -> Reply:
    """Decide the answer to `ask`; `room` is what the model's context leaves for it, in tokens."""
    if ask.seed is not None:
        rng = random.Random(ask.seed)
    start = ring.start(rng)
    if ask.tool:
        return _tool_reply(ask, ring, rng, start)
    least, most = lengths
    wanted = max(least if least == most else rng.randint(least, most), ask.at_least)
    limit = room if ask.limit is None else min(ask.limit, room)
    if ask.ignore_eos and ask.limit is not None:
        wanted = limit
    reply = Reply(ring, start, min(wanted, limit), "stop" if wanted < limit else "length")
    if ask.stops:
        _stop_at(reply, ask)
    return reply


def _tool_reply(ask: Ask, ring: Ring, rng: random.Random, start: int) -> Reply:
    assert ask.tool is not None
    arguments = orjson.dumps(arguments_for(ask.tool.schema, rng)).decode()
    pieces = [escape(piece) for piece in pieces_of(arguments)]
    reply = Reply(ring, start, len(pieces), "tool")
    reply.arguments = arguments
    reply.tool_pieces = pieces
    return reply


def _stop_at(reply: Reply, ask: Ask) -> None:
    """Shorten `reply` to the tokens before the first stop string, of whichever answer meets one first."""
    for choice in range(ask.choices):
        _stop_answer(reply, ask.stops, choice)


def _stop_answer(reply: Reply, stops: list[str], choice: int) -> None:
    text = reply.text(choice)
    for stop in stops:
        at = text.find(stop)
        if at < 0:
            continue
        text = text[:at]
        # The tokens that end before it; an answer has one at least.
        whole = bisect_right(
            range(1, reply.count + 1), at, key=lambda tokens: len(reply.text(choice, tokens))
        )
        reply.count = max(1, whole)
        reply.finish, reply.stop = "stop", stop
