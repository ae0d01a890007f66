"""Continuous batching on one virtual GPU.

Requests wait in one queue, first in, first out.  A request is admitted when there is a
free sequence slot for each answer it wants and room in the KV cache for its prompt and
its whole answer; its prompt is read; from then on every step writes one token for each
admitted sequence until its answer is finished, which frees slots and memory at once.

Nothing here reads a clock or a socket.  The caller says what time it is:

    simulation.submit(sequence, now)
    for sequence, tokens in simulation.advance(now): ...
    simulation.cancel(sequence, now)
    simulation.next_at()      # when advance() has something to do, or None

Two subclasses differ in how time passes:

* `BatchSimulation` runs the whole batch in lockstep, as engines do: the step's length
  follows from what is in it (`profiles.py`), and prompts are read in pieces of at most
  `PREFILL_BUDGET` tokens a step.
* `PacedSimulation` gives each sequence a beat of its own: a first token after `ttft`, then
  one each `itl`.  It is what `--ttft` and `--itl` ask for: figures known beforehand,
  and streams that are not all written in the same instant.

Two simplifications: the memory for an answer is set aside at admission, so nothing
is ever preempted; and the n answers of one request move together.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Protocol

from relayd.mock.meters import Meters
from relayd.mock.prefix import BLOCK_TOKENS, PrefixCache
from relayd.mock.profiles import Profile

PREFILL_BUDGET = 2048  # tokens a step; vLLM's max_num_batched_tokens for a server, by default

WAITING, PREFILL, DECODE, DONE = range(4)


class Owner(Protocol):
    """Whoever wants to know that tokens were written."""

    def tokens_written(self, count: int) -> None: ...


class Sequence:
    """One request in the engine: what it needs, and how far it is."""

    __slots__ = (
        "admitted_at", "blocks", "cached_tokens", "finish", "first_at", "generates", "kv_tokens", "last_at",
        "output_tokens", "owner", "prefill_left", "produced", "prompt_tokens", "state", "submitted_at",
        "width",
    )  # fmt: skip

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        width: int = 1,
        blocks: list[int] | None = None,
        finish: str = "stop",
        generates: bool = True,
        owner: Owner | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens  # of each of the `width` answers
        self.width = width
        self.blocks = blocks or []
        self.finish = finish
        self.generates = generates  # False: an embedding, which is a prompt and no answer
        self.owner = owner
        self.kv_tokens = prompt_tokens + output_tokens * width  # what it holds at its end
        self.state = WAITING
        self.cached_tokens = 0
        self.prefill_left = 0
        self.produced = 0
        self.submitted_at = self.admitted_at = self.first_at = self.last_at = 0.0


Written = list[tuple[Sequence, int]]


class Simulation(ABC):
    """The queue, the slots and the memory; how time passes is a subclass's business."""

    def __init__(self, profile: Profile, max_num_seqs: int | None = None) -> None:
        self.profile = profile
        self.max_num_seqs = max_num_seqs or profile.max_num_seqs
        self.meters = Meters()
        self.prefix = PrefixCache(profile.kv_tokens // BLOCK_TOKENS)
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()
        self.running: dict[Sequence, None] = {}
        self.slots_used = 0
        self.kv_reserved = 0
        self.kv_used = 0  # what has really been read and written, never more than kv_reserved

    # --- what a caller does

    def can_hold(self, sequence: Sequence) -> bool:
        """Tell whether an empty engine could serve it; if not it would wait for ever."""
        return sequence.width <= self.max_num_seqs and sequence.kv_tokens <= self.profile.kv_tokens

    def submit(self, sequence: Sequence, now: float) -> None:
        """Put it at the end of the queue, and into the batch if there is room."""
        sequence.submitted_at = now
        sequence.cached_tokens = self._cached(sequence)  # as it looks now; decided at admission
        self.waiting[sequence] = None
        self._wake(now)

    def cancel(self, sequence: Sequence, now: float) -> None:
        """Take it out wherever it is, and free what it holds now.  Twice does nothing."""
        if sequence.state == DONE:
            return
        if sequence.state == WAITING:
            del self.waiting[sequence]
        else:
            self._release(sequence)
        sequence.state = DONE
        self.meters.finished["abort"] += 1
        self._wake(now)

    @abstractmethod
    def advance(self, now: float) -> Written:
        """Let time pass until `now`; return who wrote how many tokens (of each answer)."""

    @abstractmethod
    def next_at(self) -> float | None:
        """Return the time of the next token or step, or None when nothing is going on."""

    # --- what engines report

    @property
    def kv_usage(self) -> float:
        """The share of the KV cache in use, 0 to 1."""
        return self.kv_used / self.profile.kv_tokens

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self.waiting)

    # --- for subclasses

    def _wake(self, now: float) -> None:
        """Something arrived or left at `now`."""
        self._admit(now)

    def _start(self, sequence: Sequence, now: float) -> None:  # noqa: B027 - most need nothing here
        """`sequence` was just admitted."""

    def _admit(self, now: float) -> None:
        while self.waiting:
            sequence = next(iter(self.waiting))
            if not self._has_room(sequence):
                return
            del self.waiting[sequence]
            self._take(sequence, now)
            self._start(sequence, now)

    def _has_room(self, sequence: Sequence) -> bool:
        return (
            self.slots_used + sequence.width <= self.max_num_seqs
            and self.kv_reserved + sequence.kv_tokens <= self.profile.kv_tokens
        )

    def _take(self, sequence: Sequence, now: float) -> None:
        sequence.state = PREFILL
        sequence.admitted_at = now
        sequence.cached_tokens = self._cached(sequence)
        sequence.prefill_left = sequence.prompt_tokens - sequence.cached_tokens
        self.running[sequence] = None
        self.slots_used += sequence.width
        self.kv_reserved += sequence.kv_tokens
        self.kv_used += sequence.prompt_tokens
        meters = self.meters
        meters.queue_s.observe(now - sequence.submitted_at)
        meters.prefix_queries += sequence.prompt_tokens
        meters.prefix_hits += sequence.cached_tokens

    def _cached(self, sequence: Sequence) -> int:
        # The last token of a prompt is always read: its result is the first token written.
        if not sequence.blocks:
            return 0
        return min(self.prefix.match(sequence.blocks), sequence.prompt_tokens - 1)

    def _release(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self.slots_used -= sequence.width
        self.kv_reserved -= sequence.kv_tokens
        self.kv_used -= sequence.prompt_tokens + sequence.produced * sequence.width

    def _first_token(self, sequence: Sequence, now: float) -> None:
        sequence.state = DECODE
        sequence.first_at = sequence.last_at = now
        sequence.prefill_left = 0
        if sequence.blocks:
            self.prefix.insert(sequence.blocks)
        meters = self.meters
        meters.prompt_tokens += sequence.prompt_tokens
        meters.ttft_s.observe(now - sequence.submitted_at)
        meters.prefill_s.observe(now - sequence.admitted_at)

    def _produce(self, sequence: Sequence, count: int, now: float) -> None:
        """`count` more tokens of each answer exist; the last may finish it."""
        sequence.produced += count
        tokens = count * sequence.width
        self.kv_used += tokens
        if sequence.generates:
            self.meters.generation_tokens += tokens
        if sequence.produced >= sequence.output_tokens:
            self._finish(sequence, now)

    def _finish(self, sequence: Sequence, now: float) -> None:
        self._release(sequence)
        sequence.state = DONE
        meters = self.meters
        meters.finished[sequence.finish] += 1
        meters.e2e_s.observe(now - sequence.submitted_at)
        meters.decode_s.observe(now - sequence.first_at)


class BatchSimulation(Simulation):
    """All sequences move in lockstep; a step takes as long as what is in it."""

    def __init__(self, profile: Profile, max_num_seqs: int | None = None) -> None:
        super().__init__(profile, max_num_seqs)
        self._step_ends_at: float | None = None
        self._step_began_at = 0.0
        self._reads: list[tuple[Sequence, int]] = []  # prompt pieces in the step under way
        self._writes: list[Sequence] = []  # sequences that write a token in it

    def next_at(self) -> float | None:
        return self._step_ends_at

    def advance(self, now: float) -> Written:
        written: Written = []
        while self._step_ends_at is not None and self._step_ends_at <= now:
            self._end_step(self._step_ends_at, written)
        return written

    def _wake(self, now: float) -> None:
        if self._step_ends_at is None:
            self._begin_step(now)

    def _begin_step(self, now: float) -> None:
        self._admit(now)
        self._writes = [sequence for sequence in self.running if sequence.state == DECODE]
        self._reads = self._share_prefill()
        if not self._writes and not self._reads:
            self._step_ends_at = None
            return
        context = sum(s.prompt_tokens + s.produced * s.width for s in self._writes)
        self._step_began_at = now
        self._step_ends_at = now + self.profile.step_s(
            sum(tokens for _, tokens in self._reads), sum(s.width for s in self._writes), context
        )

    def _share_prefill(self) -> list[tuple[Sequence, int]]:
        reads = []
        budget = PREFILL_BUDGET
        for sequence in self.running:
            if sequence.state != PREFILL:
                continue
            tokens = min(budget, sequence.prefill_left)
            reads.append((sequence, tokens))
            budget -= tokens
            if budget == 0:
                break
        return reads

    def _end_step(self, now: float, written: Written) -> None:
        writers = [sequence for sequence in self._writes if sequence.state == DECODE]  # less the cancelled
        if writers:
            gap_s = now - self._step_began_at
            self.meters.inter_token_s.observe(gap_s, sum(s.width for s in writers))
        for sequence in writers:
            sequence.last_at = now
            self._produce(sequence, 1, now)
            written.append((sequence, 1))
        for sequence, tokens in self._reads:
            if sequence.state == PREFILL:
                self._read(sequence, tokens, now, written)
        self._begin_step(now)

    def _read(self, sequence: Sequence, tokens: int, now: float, written: Written) -> None:
        sequence.prefill_left -= tokens
        if sequence.prefill_left == 0:
            self._first_token(sequence, now)
            self._produce(sequence, 1, now)
            written.append((sequence, 1))


class PacedSimulation(Simulation):
    """Each sequence has a beat of its own; either interval may be left to the profile."""

    def __init__(
        self, profile: Profile, max_num_seqs: int | None = None, *, ttft_s: float | None, itl_s: float | None
    ) -> None:
        super().__init__(profile, max_num_seqs)
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._due: list[tuple[float, int, Sequence]] = []  # a heap; cancelled ones stay until they come up
        self._order = 0

    def next_at(self) -> float | None:
        while self._due and self._due[0][2].state == DONE:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def advance(self, now: float) -> Written:
        written: Written = []
        due = self._due
        while due and due[0][0] <= now:
            at, _, sequence = heapq.heappop(due)
            if sequence.state != DONE:
                self._beat(sequence, at, written)
        return written

    def _start(self, sequence: Sequence, now: float) -> None:
        wait_s = self._ttft_s
        if wait_s is None:
            wait_s = self.profile.step_s(sequence.prefill_left, 0, 0)
        self._push(sequence, now + wait_s)

    def _push(self, sequence: Sequence, at: float) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, sequence))

    def _beat(self, sequence: Sequence, now: float, written: Written) -> None:
        count = 1
        if sequence.state == PREFILL:
            self._first_token(sequence, now)
        else:
            self.meters.inter_token_s.observe(now - sequence.last_at, sequence.width)
            sequence.last_at = now
        gap_s = self._gap_s()
        if gap_s == 0:  # no time between tokens: the rest is there at once
            count = sequence.output_tokens - sequence.produced
            if count > 1:
                self.meters.inter_token_s.observe(0.0, (count - 1) * sequence.width)
        self._produce(sequence, count, now)
        written.append((sequence, count))
        if sequence.state == DONE:
            self._admit(now)
        else:
            self._push(sequence, now + gap_s)

    def _gap_s(self) -> float:
        if self._itl_s is not None:
            return self._itl_s
        return self.profile.step_s(0, self.slots_used, self.kv_used)
