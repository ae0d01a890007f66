"""The order of a run: rows one after another, and in each row rounds that take every gateway in turn.

Machines drift -- neighbours, heat, the kernel's mood -- so gateways are compared within a round, and the
figure is the median over rounds.  Latencies are "added" against the direct measurement of the same round.
Every measurement starts its gateway anew: no other one is there to disturb it, no earlier load has left
memory to be reused, and the median is over process starts too, whose layouts differ by a per cent or two.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.faults import Unavailable
from bench.figures import Figure
from bench.gateways import Gateway
from bench.machine import Bystanders, Cores, distance_ns
from bench.measure import MEMORY_ROWS, ROW_FUNCTIONS, Bench, Result, Spoiled

MEMORY_ROUNDS = 3
BUSY_SHARE = 0.05  # of a core: when others spend more, a measurement is repeated
ATTEMPTS = 3
PAUSE_S = 0.5
FAR_NS = 300.0  # between 140, the most seen within a socket, and 600, the least seen across
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
    distances_ns: list[float] = field(default_factory=list)

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
        """The figure relative to nginx's: the median over rounds of the ratio in each."""
        if (
            not figure.has_ratio
            or self.is_spoiled(figure.row, column)
            or self.is_spoiled(figure.row, "nginx")
        ):
            return None
        pairs = zip(self.samples(figure, column), self.samples(figure, "nginx"), strict=False)
        ratios = [own / nginx for own, nginx in pairs if nginx > 0]
        return statistics.median(ratios) if ratios else None

    def notes(self) -> list[str]:
        """What a reader must know before believing the table."""
        notes = [f"{column} was not measured: {why}" for column, why in self.missing.items()]
        notes += self.spoiled
        notes += self._saturated() + self._disturbed() + self._far_apart()
        return notes

    def _saturated(self) -> list[str]:
        notes = []
        for column, results in self.rounds.get("streams", {}).items():
            shares = [result["cores_used"] for result in results if result and "cores_used" in result]
            if shares and statistics.median(shares) > SATURATED_SHARE:
                notes.append(
                    f"{column} had no processor time left in the streams row: its latencies are of a queue"
                )
        return notes

    def _disturbed(self) -> list[str]:
        disturbed = [share for share in self.foreign if share > BUSY_SHARE]
        if not disturbed:
            return []
        return [
            f"other processes used the two cores in {len(disturbed)} of {len(self.foreign)} measurements, "
            f"repeats included, up to {max(disturbed):.0%} of a core: run this on a quiet machine"
        ]

    def _far_apart(self) -> list[str]:
        far = [distance for distance in self.distances_ns if distance > FAR_NS]
        if not far:
            return []
        return [
            f"the two cores were far apart ({statistics.median(far):.0f} ns there and back) in {len(far)} of "
            f"{len(self.distances_ns)} measurements: the host has moved them, which costs every gateway the "
            "same few us and so brings ratios nearer to 1"
        ]


class Session:
    """One run.  `starters` says how each column's gateway comes to be; those that cannot are left out."""

    def __init__(
        self, bench: Bench, cores: Cores, starters: dict[str, Starter], upstream_pids: list[int]
    ) -> None:
        self._bench = bench
        self._cores = cores
        self._starters = starters
        self._upstream_pids = upstream_pids
        self.outcome = Outcome(list(starters))

    def run(self, rows: tuple[str, ...], rounds: int) -> Outcome:
        for row in rows:
            self._run_row(row, min(rounds, MEMORY_ROUNDS) if row in MEMORY_ROWS else rounds)
        return self.outcome

    def _run_row(self, row: str, rounds: int) -> None:
        results: dict[str, list[Result | None]] = defaultdict(list)
        self.outcome.rounds[row] = results
        for number in range(rounds):
            for column in self._in_turn(number):
                self._say(f"{row}, round {number + 1} of {rounds}: {column}")
                self._measure(row, column, results)
        self._say("")

    def _in_turn(self, number: int) -> list[str]:
        """The columns that take part, another one first each round."""
        taking_part = [column for column in self._starters if column not in self.outcome.missing]
        turn = number % max(1, len(taking_part))
        return taking_part[turn:] + taking_part[:turn]

    def _measure(self, row: str, column: str, results: dict[str, list[Result | None]]) -> None:
        if row in MEMORY_ROWS and column == DIRECT:
            return
        if None in results[column]:
            return  # one spoiled round spoils the figure: do not repeat the wait
        try:
            gateway = self._starters[column]()
        except Unavailable as fault:
            self.outcome.missing[column] = str(fault)
            if results[column]:
                results[column].append(
                    None
                )  # it came up in earlier rounds: a median of those would hide that
            return
        try:
            self._measure_gateway(row, gateway, results[column])
        finally:
            gateway.stop()

    def _measure_gateway(self, row: str, gateway: Gateway, results: list[Result | None]) -> None:
        if row in MEMORY_ROWS and not gateway.pid:
            return
        try:
            share, distance, result = min(self._attempts(row, gateway), key=lambda attempt: attempt[0])
        except Spoiled as why:
            results.append(None)
            self.outcome.spoiled.append(f"{row}: {gateway.name} FAILED: {why}")
        else:
            results.append(result)
            self.outcome.foreign.append(share)
            self.outcome.distances_ns.append(distance)

    def _attempts(self, row: str, gateway: Gateway) -> Iterator[tuple[float, float, Result]]:
        """Measures until nobody else used the cores meanwhile, a few times at most.

        Which attempt counts is decided by what others did, never by what came out.
        """
        for _ in range(ATTEMPTS):
            distance = distance_ns(self._cores)
            bystanders = Bystanders(self._cores, gateway.pids() + self._upstream_pids)
            result = ROW_FUNCTIONS[row](self._bench, gateway)
            share = bystanders.share()
            yield share, distance, result
            if share <= BUSY_SHARE or row in MEMORY_ROWS:
                return
            time.sleep(PAUSE_S)

    def _say(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text and 'bench: '}{text}\033[K", end="", file=sys.stderr, flush=True)
