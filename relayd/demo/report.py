"""The figures of both runs side by side, for people; and the same for machines.

What the keys of the JSON mean is in docs/demo.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from relayd.demo.figures import Figures
from relayd.demo.fleet import PLACES, VICTIM

WIDTH = 92
LABEL, COLUMN = 42, 15
BUSY_LAG_S = 0.05  # a client this late says more of the machine than of relayd


@dataclass(frozen=True)
class Result:
    """A whole demo."""

    seconds: float
    rate: float
    seed: int
    runs: tuple[Figures, Figures]  # relayd's own policy, and round robin
    compared: int  # answers, word for word
    broken: list[str]


def as_json(result: Result) -> dict[str, Any]:
    """Return the result for machines."""
    return {
        "seconds": result.seconds,
        "rate": result.rate,
        "seed": result.seed,
        "workers": [place._asdict() for place in PLACES],
        "killed": VICTIM,
        "runs": {figures.policy: asdict(figures) for figures in result.runs},
        "texts_compared": result.compared,
        "held": not result.broken,
        "broken": result.broken,
    }


def as_text(result: Result) -> str:
    """Return the result for people."""
    return "\n".join([*intro(result), *table(result), "", *meaning(result), "", *verdict(result)])


def intro(result: Result) -> list[str]:
    """Say what was done."""
    ours = result.runs[0]
    return wrapped(
        f"Three simulated workers ({', '.join(f'{place.name}, {place.speed}' for place in PLACES)}) behind one "
        f"relayd. {ours.sent} chat requests in {result.seconds:g} s, as the OpenAI client sends them. "
        f"After {ours.killed_at_s:.1f} s {VICTIM} was killed (kill -9). Then the same again, worker by worker in turn."
    ) + [""]


# -- the table


def table(result: Result) -> Iterator[str]:
    """Yield the lines of the table."""
    runs = result.runs
    yield row("", *(figures.policy for figures in runs))
    yield "-" * (LABEL + 2 * COLUMN)
    yield row("requests sent", *(str(figures.sent) for figures in runs))
    yield row("  answered in full", *(str(figures.answered) for figures in runs))
    yield row("  failed before their first token", *(str(f.failed_before_first_token) for f in runs))
    yield row("  cut: their client saw an answer break off", *(str(figures.cut) for figures in runs))
    yield row("  cut without their client being told", *(str(figures.cut_silently) for figures in runs))
    if any(figures.unfinished for figures in runs):
        yield row("  not finished", *(str(figures.unfinished) for figures in runs))
    yield row(f"streams open on {VICTIM} when it died", *(str(f.open_on_killed_worker) for f in runs))
    yield row("requests that relayd moved to another", *(str(figures.moved) for figures in runs))
    yield row("from the kill to the next success", *(shown(f.kill_to_next_success_s) for f in runs))
    yield ""
    yield row("time to the first token, P50", *(shown(figures.ttft.p50) for figures in runs))
    yield row("time to the first token, P99", *(shown(figures.ttft.p99) for figures in runs))
    yield row("time to the whole answer, P50", *(shown(figures.latency.p50) for figures in runs))
    yield row("time to the whole answer, P99", *(shown(figures.latency.p99) for figures in runs))
    yield ""
    yield row("relayd's own time per request, P50", *(shown(figures.overhead.p50) for figures in runs))
    yield row("relayd's own time per request, P99", *(shown(figures.overhead.p99) for figures in runs))
    yield row("  of it, choosing a worker, P50", *(shown(figures.decision.p50) for figures in runs))
    yield row("  of it, choosing a worker, P99", *(shown(figures.decision.p99) for figures in runs))
    yield ""
    yield row("share of requests, before > after the kill")
    for place in PLACES:
        killed = ", killed" if place.name == VICTIM else ""
        cells = (f"{f.share_before[place.name]:.0%} > {f.share_after[place.name]:.0%}" for f in runs)
        yield row(f"  {place.name} ({place.speed}{killed})", *cells)


def row(label: str, *cells: str) -> str:
    """Return one line of the table."""
    return f"{label:{LABEL}}{''.join(f'{cell:>{COLUMN}}' for cell in cells)}".rstrip()


def shown(seconds: float | None) -> str:
    """Return a time in the unit that suits it, to three digits."""
    if seconds is None:
        return "-"
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            value = seconds * factor
            return f"{value:.{max(0, 2 - len(str(int(value))) + 1) if value < 100 else 0}f} {unit}"
    return f"{seconds:.2f} s"


# -- in words


def meaning(result: Result) -> Iterator[str]:
    """Yield what the figures mean, as paragraphs."""
    ours, theirs = result.runs
    yield "What this means"
    for paragraph in (
        on_failures(ours, theirs), on_cuts(ours, theirs), on_waiting(ours, theirs), on_overhead(ours, theirs),
        on_texts(result), on_machine(ours, theirs),
    ):  # fmt: skip
        if paragraph:
            yield from wrapped(paragraph, first="* ", rest="  ")


def on_failures(*runs: Figures) -> str:
    """Say what became of requests that were waiting."""
    moved = sum(figures.moved for figures in runs)
    failed = sum(figures.failed_before_first_token for figures in runs)
    if failed:
        return f"{failed} requests failed before their first token. That must not be."
    return (
        f"Nobody was turned away. {moved} times in the two runs, a request that waited on the dead worker, or was "
        "still sent to it, was given to another before its client had seen anything. The clients never retry."
    )


def on_cuts(*runs: Figures) -> str:
    """Say what became of answers that were being written."""
    cut = sum(figures.cut for figures in runs)
    by_event = sum(figures.cut_by_error_event for figures in runs)
    if not cut:
        return f"No answer was cut: no client had read a token of one that {VICTIM} was still writing."
    return (
        f"An answer that has begun cannot be moved: its client has read part of it. {cut} streams were being "
        f"written by {VICTIM} when it died, and were cut. Each client was told: {by_event} by an error event in the "
        f"stream, {cut - by_event} by a connection that broke; the OpenAI client raises an error on both."
    )


def on_waiting(ours: Figures, theirs: Figures) -> str:
    """Compare the waits."""
    if not ours.ttft.p99 or not theirs.ttft.p99:
        return ""
    ratio = theirs.ttft.p99 / ours.ttft.p99
    slow = [place.name for place in PLACES if place.speed == "slow"]
    share = sum(theirs.share_after[name] for name in slow)
    verdict = f"{ratio:.1f} times as long" if ratio >= 1.05 else "no longer, this time,"
    return (
        f"With round robin the slowest 1 % of streams waited {verdict} for their first token. It sends the "
        f"slow worker its turn ({share:.0%} of everything after the kill), however much is waiting there; "
        f"{ours.policy} sends each request where the fewest tokens are still to be worked on."
    )


def on_overhead(ours: Figures, theirs: Figures) -> str:
    """Say what relayd costs."""
    if not ours.overhead.p50 or not ours.latency.p50:
        return ""
    return (
        f"relayd itself took about {shown(ours.overhead.p50)} of a request's {shown(ours.latency.p50)}. It is what "
        "relayd measures of itself, connections to workers not included, on a machine that runs everything here."
    )


def on_texts(result: Result) -> str:
    """Say what comparing the texts showed."""
    return (
        f"{result.compared} answers were compared between the two runs, word for word, whichever worker wrote "
        "them: a stream that was cut has to be the beginning of the other run's."
    )


def on_machine(*runs: Figures) -> str:
    """Warn if this machine was too busy to be believed."""
    lag_s = max(figures.send_lag.p99 or 0.0 for figures in runs)
    if lag_s < BUSY_LAG_S:
        return ""
    return (
        f"This machine was busy: 1 % of the requests were sent {shown(lag_s)} late or more. Times are worse than "
        "they would be; what was cut or failed is not affected."
    )


def verdict(result: Result) -> Iterator[str]:
    """Yield whether everything held."""
    if not result.broken:
        yield "Everything relayd promises held."
        return
    yield "What did not hold"
    for sentence in result.broken:
        yield from wrapped(sentence, first="* ", rest="  ")


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Return a paragraph as lines."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
