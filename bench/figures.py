"""Every figure of the table: its title, the row of measurements it comes from, what relayd is allowed.

Declared once; the measurements fill them by key, the report prints them in this order.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    `added` ones are what a gateway adds to the direct measurement of the same round.  `ceiling` is relayd's,
    in the figure's own unit or, with `ceiling_is_ratio`, relative to nginx; `guarded_ceiling` is that of a
    relayd with tokens, keys, limits and a log.
    """

    key: str
    row: str
    title: str
    digits: int = 1
    added: bool = False
    has_ratio: bool = True
    ceiling: float | None = None
    ceiling_is_ratio: bool = False
    guarded_ceiling: float | None = None


ROWS = ("cpu", "latency", "streams", "memory", "idle")

FIGURES = (
    Figure(
        "cpu_us_request",
        "cpu",
        "CPU us/request, {connections} connections",
        ceiling=2.8,
        ceiling_is_ratio=True,
        guarded_ceiling=3.2,
    ),
    Figure("decision_us", "cpu", "  of it, choosing a worker", 2, has_ratio=False),
    Figure("bookkeeping_us", "cpu", "  of it, metrics, limits and the log", 2, has_ratio=False),
    Figure("requests_s", "cpu", "requests/s, {connections} connections", 0, has_ratio=False),
    Figure("latency_p50_us", "latency", "added latency P50 us, 1 connection", 0, added=True),
    Figure("latency_p99_us", "latency", "added latency P99 us, 1 connection", 0, added=True),
    Figure("cpu_us_chunk", "streams", "CPU us/chunk, {streams} streams", ceiling=1.4, ceiling_is_ratio=True),
    Figure("transit_p50_us", "streams", "chunk transit P50 us, {streams} streams", 0),
    Figure("transit_p99_us", "streams", "chunk transit P99 us, {streams} streams", 0),
    Figure("first_p50_us", "streams", "added first content P50 us, {streams} streams", 0, added=True),
    Figure("first_p99_us", "streams", "added first content P99 us, {streams} streams", 0, added=True),
    Figure("stream_kib", "memory", "KiB/open stream, {held} streams", ceiling=25.0),
    Figure("idle_kib", "idle", "KiB/idle connection, {held} connections"),
    Figure("base_mib", "idle", "MiB before them", has_ratio=False),
)


def figures_of(rows: tuple[str, ...]) -> list[Figure]:
    return [figure for figure in FIGURES if figure.row in rows]
