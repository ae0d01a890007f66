"""The order of a run: rows one after another, and in each row rounds that take every gateway in turn.

Machines drift -- neighbours, heat, the kernel's mood -- so gateways are compared within a round, and the figure is
the median over rounds.  Latencies are "added" against the direct measurement of the same round.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench import gateways
from bench.faults import Unavailable
from bench.figures import FIGURES, Figure
from bench.gateways import Gateway
from bench.machine import Bystanders, Cores
from bench.measure import NEED_FRESH, ROW_FUNCTIONS, Bench, Result, Spoiled

MEMORY_ROUNDS = 3
BUSY_SHARE = 0.05       # of a core: more than this spent by others is worth a remark
SATURATED_SHARE = 0.97  # of the gateway's core

DIRECT = "direct"
Starter = Callable[[], Gateway]


@dataclass
class Outcome:
    """What a run found.  `rounds[row][column]` are the results in order, None where one was spoiled."""

    columns: list[str]
    missing: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, dict[str, list[Result | None]]] = field(default_factory=dict)
    spoiled: list[str] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)

    def samples(self, figure: Figure, column: str) -> list[float]:
        """The figure of each round: for an `added` one, minus the direct measurement of its round."""
        by_column = self.rounds.get(figure.row, {})
        own = by_column.get(column, [])
        if not figure.added or column == DIRECT or DIRECT not in self.columns:
            return [result[figure.key] for result in own if result and figure.key in result]
        pairs = zip(own, by_column.get(DIRECT, []), strict=False)
        return [through[figure.key] - direct[figure.key] for through, direct in pairs if through and direct]

    def value(self, figure: Figure, column: str) -> float | None:
        """The median, or None when there is none or any round was spoiled."""
        if self.is_spoiled(figure.row, column):
            return None
        samples = self.samples(figure, column)
        return statistics.median(samples) if samples else None

    def is_spoiled(self, row: str, column: str) -> bool:
        return None in self.rounds.get(row, {}).get(column, [])

    def ratio(self, figure: Figure, column: str) -> float | None:
        """The figure relative to nginx's."""
        own, nginx = self.value(figure, column), self.value(figure, "nginx")
        return own / nginx if figure.has_ratio and own is not None and nginx and nginx > 0 else None

    def notes(self) -> list[str]:
        """What a reader must know before believing the table."""
        notes = [f"{column} was not measured: {why}" for column, why in self.missing.items()]
        notes += self.spoiled
        notes += self._saturated()
        busy = statistics.median(self.foreign) if self.foreign else 0.0
        if busy > BUSY_SHARE:
            notes.append(f"other processes used {busy:.2f} of the two measured cores: latencies are not to be trusted")
        return notes

    def _saturated(self) -> list[str]:
        notes = []
        for column, results in self.rounds.get("streams", {}).items():
            shares = [result["cores_used"] for result in results if result and "cores_used" in result]
            if shares and statistics.median(shares) > SATURATED_SHARE:
                notes.append(f"{column} had no processor time left in the streams row: its latencies are of a queue")
        return notes


class Session:
    """One run.  `starters` says how each column's gateway comes to be; those that cannot are left out."""

    def __init__(self, bench: Bench, cores: Cores, starters: dict[str, Starter], upstream_pids: list[int]) -> None:
        self._bench = bench
        self._cores = cores
        self._starters = starters
        self._upstream_pids = upstream_pids
        self.outcome = Outcome(list(starters))

    def run(self, rows: tuple[str, ...], rounds: int) -> Outcome:
        for row in rows:
            self._run_row(row, min(rounds, MEMORY_ROUNDS) if row in NEED_FRESH else rounds)
        return self.outcome

    def _run_row(self, row: str, rounds: int) -> None:
        results: dict[str, list[Result | None]] = defaultdict(list)
        self.outcome.rounds[row] = results
        for number in range(rounds):
            with ExitStack() as stack:
                for column in self._in_turn(number):
                    self._say(f"{row}, round {number + 1} of {rounds}: {column}")
                    self._measure(row, column, stack, results)

    def _in_turn(self, number: int) -> list[str]:
        """The columns that take part, another one first each round."""
        taking_part = [column for column in self._starters if column not in self.outcome.missing]
        turn = number % max(1, len(taking_part))
        return taking_part[turn:] + taking_part[:turn]

    def _measure(self, row: str, column: str, stack: ExitStack, results: dict[str, list[Result | None]]) -> None:
        if row in NEED_FRESH and column == DIRECT:
            return
        if None in results[column]:
            return      # one spoiled round spoils the figure: do not repeat the wait
        try:
            gateway = self._starters[column]()
        except Unavailable as fault:
            self.outcome.missing[column] = str(fault)
            return
        try:
            if row in NEED_FRESH and not gateway.pid:
                return
            bystanders = Bystanders(self._cores, gateway.pids() + self._upstream_pids)
            results[column].append(ROW_FUNCTIONS[row](self._bench, gateway))
            self.outcome.foreign.append(bystanders.share())
        except Spoiled as why:
            results[column].append(None)
            self.outcome.spoiled.append(f"{row}: {column} FAILED: {why}")
        finally:
            gateway.stop()

    def _say(self, text: str) -> None:
        print(f"\rbench: {text}\033[K", end="", file=sys.stderr, flush=True) if sys.stderr.isatty() else None
