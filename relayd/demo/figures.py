"""What the requests of a run add up to.

Percentiles of what clients saw are exact (nearest rank).  Those of relayd's own times come from the
histograms it exports, interpolated within a bucket as Prometheus does: good to the width of the bucket.
Times of a request count from the moment it was due, so a client that is late is not forgiven.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

from relayd.demo.act import Act
from relayd.demo.client import NEVER, Call, Ending
from relayd.demo.fleet import PLACES, VICTIM

Share = dict[str, float]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Quantiles:
    """The middle, and what all but one in a hundred stay below; seconds, None if there is nothing."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True)
class Figures:
    """One run in numbers.  Times in seconds."""

    policy: str
    sent: int
    answered: int
    failed_before_first_token: int
    cut: int
    cut_by_error_event: int
    cut_silently: int
    unfinished: int
    open_on_killed_worker: int
    moved: int
    killed_at_s: float
    kill_to_next_success_s: float | None
    ttft: Quantiles
    latency: Quantiles
    overhead: Quantiles
    decision: Quantiles
    send_lag: Quantiles
    share_before: Share
    share_after: Share


def figures_of(act: Act) -> Figures:
    """Add up one run."""
    calls = act.calls
    return Figures(
        policy=act.policy,
        sent=len(calls),
        answered=act.count(Ending.ANSWERED),
        failed_before_first_token=act.count(Ending.FAILED),
        cut=act.count(Ending.CUT),
        cut_by_error_event=sum(call.told_by_event for call in calls if call.ending is Ending.CUT),
        cut_silently=act.count(Ending.SILENT),
        unfinished=act.count(Ending.UNFINISHED),
        open_on_killed_worker=sum(call.ask.streamed and was_on_victim(call, act) for call in calls),
        moved=round(counted(act, "relayd_retries_total")),
        killed_at_s=act.killed_at - act.began_at,
        kill_to_next_success_s=next_success_s(act),
        ttft=quantiles([call.first_at - call.due_at for call in calls if call.first_at < NEVER]),
        latency=quantiles([c.ended_at - c.due_at for c in calls if c.ending is Ending.ANSWERED]),
        overhead=histogram_quantiles(act, "relayd_overhead_seconds"),
        decision=histogram_quantiles(act, "relayd_decision_seconds"),
        send_lag=quantiles([call.sent_at - call.due_at for call in calls if call.sent_at < NEVER]),
        share_before=shares(call for call in calls if call.sent_at <= act.killed_at),
        share_after=shares(call for call in calls if call.sent_at > act.killed_at),
    )


def was_on_victim(call: Call, act: Act) -> bool:
    """True if the killed worker was writing this answer when it died."""
    return call.worker == VICTIM and call.sent_at <= act.killed_at < call.ended_at


def next_success_s(act: Act) -> float | None:
    """Return how long after the kill a request sent after it had its first token, or a whole plain answer."""
    moments = [
        min(call.first_at, call.ended_at)
        for call in act.calls
        if call.sent_at > act.killed_at and call.ending is Ending.ANSWERED
    ]
    return min(moments) - act.killed_at if moments else None


def shares(calls: Iterable[Call]) -> Share:
    """Return which share of these requests each worker answered."""
    workers = [call.worker for call in calls if call.worker]
    return {place.name: workers.count(place.name) / max(1, len(workers)) for place in PLACES}


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return P50 and P99 by nearest rank."""
    ordered = sorted(values)
    if not ordered:
        return Quantiles(None, None)
    return Quantiles(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99)))


# -- what relayd counted between the two scrapes of a run


@lru_cache(8)
def samples(text: str) -> Samples:
    """Return every sample of a scrape by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counted(act: Act, name: str, **labels: str) -> float:
    """Return by how much the counters with that name and these labels grew, all together."""
    wanted = labels.items()

    def total(text: str) -> float:
        return sum(value for (found, has), value in samples(text).items() if found == name and wanted <= has)

    return total(act.metrics_after) - total(act.metrics_before)


def histogram_quantiles(act: Act, name: str) -> Quantiles:
    """Return P50 and P99 of what a histogram counted during the run."""
    before, after = samples(act.metrics_before), samples(act.metrics_after)
    buckets = sorted(
        (float(dict(labels)["le"]), count - before.get((found, labels), 0.0))
        for (found, labels), count in after.items()
        if found == f"{name}_bucket"
    )
    return Quantiles(interpolated(buckets, 0.5), interpolated(buckets, 0.99))


def interpolated(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a quantile of cumulative (bound, count) buckets, as Prometheus' histogram_quantile does."""
    if not buckets or not buckets[-1][1]:
        return None
    wanted = share * buckets[-1][1]
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low
