"""The figures of both runs side by side, for people; and the same for machines.

What the keys of the JSON mean is in docs/demo.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from relayd.demo.figures import Figures
from relayd.demo.fleet import PLACES, VICTIM

WIDTH = 92
LABEL, COLUMN = 50, 15
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
        "held": not result.broken,
        "broken": result.broken,
        "seconds": result.seconds,
        "rate": result.rate,
        "seed": result.seed,
        "workers": [place._asdict() for place in PLACES],
        "killed": VICTIM,
        "texts_compared": result.compared,
        "runs": {figures.policy: asdict(figures) for figures in result.runs},
    }


def as_text(result: Result) -> str:
    """Return the result for people."""
    return "\n".join([*intro(result), "", *table(result), "", *meaning(result), "", *verdict(result)])


def intro(result: Result) -> list[str]:
    """Say what was done."""
    ours, theirs = result.runs
    fast, slow = workers("fast"), workers("slow")
    return wrapped(
        f"Three simulated workers, two fast ({fast}) and one slow ({slow}), behind one relayd. "
        f"{ours.sent} chat requests in {result.seconds:g} s, as the OpenAI client sends them; half way "
        f"through, kill -9 of {VICTIM}. First relayd chose the workers as it does by default "
        f"({ours.policy}), then, for the same requests, in turn ({theirs.policy})."
    )


def workers(speed: str) -> str:
    """Return the names of the workers of that speed."""
    return ", ".join(place.name for place in PLACES if place.speed == speed)


# -- the table

Cell = Callable[[Figures], str]

COUNTS: tuple[tuple[str, Cell], ...] = (
    ("requests sent", lambda run: str(run.sent)),
    ("  answered in full", lambda run: str(run.answered)),
    ("  failed before their first token", lambda run: str(run.failed_before_first_token)),
    ("  cut in mid-answer, and their client was told", lambda run: str(run.cut)),
    ("  cut in mid-answer, and nobody was told", lambda run: str(run.cut_silently)),
    (f"{VICTIM} was killed after", lambda run: shown(run.killed_at_s)),
    ("  streams open on it at that moment", lambda run: str(run.open_on_killed_worker)),
    ("  times a request was moved to another worker", lambda run: str(run.moved)),
    ("  from the kill to the next success", lambda run: shown(run.kill_to_next_success_s)),
)
TIMES: tuple[tuple[str, Cell], ...] = (
    ("time to the first token, P50", lambda run: shown(run.ttft.p50)),
    ("                         P99", lambda run: shown(run.ttft.p99)),
    ("time to the whole answer, P50", lambda run: shown(run.latency.p50)),
    ("                          P99", lambda run: shown(run.latency.p99)),
)
OVERHEAD: tuple[tuple[str, Cell], ...] = (
    ("relayd's own time in a request, P50", lambda run: shown(run.overhead.p50)),
    ("                                P99", lambda run: shown(run.overhead.p99)),
    ("  of it, choosing a worker, P50", lambda run: shown(run.decision.p50)),
    ("                            P99", lambda run: shown(run.decision.p99)),
)


def table(result: Result) -> Iterator[str]:
    """Yield the lines of the table."""
    runs = result.runs
    yield row("", *(run.policy for run in runs))
    yield "-" * (LABEL + 2 * COLUMN)
    for rows in (COUNTS, TIMES, OVERHEAD):
        for label, cell in rows:
            yield row(label, *(cell(run) for run in runs))
        yield ""
    yield row("share of the requests, before and after the kill")
    for place in PLACES:
        killed = ", killed" if place.name == VICTIM else ""
        cells = (f"{run.share_before[place.name]:.0%} -> {run.share_after[place.name]:.0%}" for run in runs)
        yield row(f"  {place.name} ({place.speed}{killed})", *cells)


def row(label: str, *cells: str) -> str:
    """Return one line of the table."""
    return f"{label:{LABEL}}{''.join(f'{cell:>{COLUMN}}' for cell in cells)}".rstrip()


def shown(seconds: float | None) -> str:
    """Return a time in the unit that suits it."""
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.{1 if seconds < 0.01 else 0}f} ms"
    return f"{seconds:.1f} s"


# -- in words


def meaning(result: Result) -> Iterator[str]:
    """Yield what the figures mean, as paragraphs."""
    yield "What this means"
    for paragraph in (on_failures, on_cuts, on_texts, on_waiting, on_overhead, on_machine):
        text = paragraph(result)
        if text:
            yield from wrapped(text, first="* ", rest="  ")


def on_failures(result: Result) -> str:
    """Say what became of requests that were waiting."""
    if any(run.failed_before_first_token for run in result.runs):
        return ""  # the verdict says it
    moved = sum(run.moved for run in result.runs)
    times = "Once" if moved == 1 else f"{moved} times"
    return (
        "Nobody was turned away, although the clients never try again. "
        f"{times} in the two runs, a request that the dead worker had not begun to answer, or that was still "
        "sent to it, was given to another worker before its client had seen anything."
    )


def on_cuts(result: Result) -> str:
    """Say what became of answers that were being written."""
    cut = sum(run.cut for run in result.runs)
    by_event = sum(run.cut_by_error_event for run in result.runs)
    if not cut:
        return f"No answer was cut: no client was in the middle of one that {VICTIM} was writing."
    how = {cut: "by an error event in the stream", 0: "by a connection that broke"}.get(
        by_event, f"{by_event} by an error event in the stream, {cut - by_event} by a connection that broke"
    )
    return (
        f"An answer that has begun cannot be moved, since its client has read a part of it: {cut} in the two "
        f"runs were cut. Each of their clients was told ({how}), on which the OpenAI client raises an error."
    )


def on_texts(result: Result) -> str:
    """Say what was compared."""
    if result.broken:
        return ""
    return (
        f"Nothing was lost or repeated on the way: {result.compared} answers are the same in both runs, word "
        "for word, whichever worker wrote them; what was cut is how the same answer begins in the other run."
    )


def on_waiting(result: Result) -> str:
    """Compare the waits."""
    ours, theirs = result.runs
    if not ours.ttft.p99 or not theirs.ttft.p99:
        return ""
    ratio = theirs.ttft.p99 / ours.ttft.p99
    waited = f"{ratio:.1f} times as long" if ratio >= 1.05 else "no longer, this time,"
    share = sum(theirs.share_after[place.name] for place in PLACES if place.speed == "slow")
    return (
        f"With round robin the unluckiest 1 % of streams waited {waited} for their first token. It gives the "
        f"slow worker its turn ({share:.0%} of everything after the kill), however much is waiting there; "
        f"{ours.policy} looks for the worker that has the fewest tokens left to read and write."
    )


def on_overhead(result: Result) -> str:
    """Say what relayd costs."""
    ours = result.runs[0]
    if not ours.overhead.p50 or not ours.latency.p50:
        return ""
    return (
        f"Of a typical answer's {shown(ours.latency.p50)}, relayd took about {shown(ours.overhead.p50)} "
        "(from its own histograms, on a machine that is busy with the workers and the clients as well)."
    )


def on_machine(result: Result) -> str:
    """Warn if this machine was too busy to be believed."""
    lag_s = max(run.send_lag.p99 or 0.0 for run in result.runs)
    if lag_s < BUSY_LAG_S:
        return ""
    return (
        f"This machine was very busy: 1 % of the requests were sent {shown(lag_s)} late or later. Times are "
        "worse than they would be; what failed or was cut is not affected."
    )


def verdict(result: Result) -> Iterator[str]:
    """Yield whether everything held."""
    if not result.broken:
        yield "Everything that relayd promises held."
        return
    yield "What did not hold"
    for sentence in result.broken:
        yield from wrapped(sentence, first="* ", rest="  ")


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Return a paragraph as lines."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
