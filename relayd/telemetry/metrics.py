"""The metrics, and how they are written out for Prometheus.

Counting happens in plain dicts and `_fast/meters` histograms, on the loop's thread; prometheus_client only
does the exposition, when somebody scrapes.  Labels are bounded: route names come from a table, workers from
the command line, models from what workers listed (anything else is `_other`).
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from relayd import __version__
from relayd._fast.leg import DEBUG_BUILD
from relayd._fast.meters import Histogram, Meters
from relayd.faults import LEG_ROWS
from relayd.records import Worker

# vLLM's buckets for the time to first token (conventions 2.1), so that the two can be compared.
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
)  # fmt: skip
# OpenTelemetry's GenAI buckets: .01 * 2^n.
DURATION_BUCKETS = tuple(0.01 * 2**n for n in range(18))
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
# relayd's own work is counted in microseconds.
FINE_BUCKETS = (
    1e-06, 2e-06, 5e-06, 1e-05, 2e-05, 5e-05, 1e-04, 2e-04, 5e-04, 1e-03, 2e-03, 5e-03, 1e-02, 1e-01, 1,
)  # fmt: skip

OTHER = "_other"


class Metrics:
    """What one gateway has counted."""

    def __init__(self, workers: Sequence[Worker], is_open: Callable[[Worker], bool]) -> None:
        self.workers = workers
        self.is_open = is_open
        self.in_flight = 0
        self.requests: Counter[tuple[str, str, str, int, str]] = Counter()
        self.disconnects: Counter[str] = Counter()
        self.retries = 0
        self.dropped_log_lines = 0
        self.reload_failed = False
        self.connections = 0
        self.meters = Meters(
            Histogram(TTFT_BUCKETS),
            Histogram(TPOT_BUCKETS),
            Histogram(DURATION_BUCKETS),
            Histogram(FINE_BUCKETS),
            Histogram(FINE_BUCKETS),
        )
        self._registry = CollectorRegistry()
        self._registry.register(_Exposition(self))
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Exposition(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._workers()
        meters = self.metrics.meters
        yield histogram(
            "relayd_ttft_seconds", "From a request's arrival to the first content of its stream", meters.ttft
        )
        yield histogram(
            "relayd_tpot_seconds", "Time per output token after the first, of streams", meters.tpot
        )
        yield histogram(
            "relayd_request_duration_seconds",
            "From a request's head to the end of its answer",
            meters.duration,
        )
        yield histogram(
            "relayd_overhead_seconds", "Time that relayd itself added to a request", meters.overhead
        )
        yield histogram("relayd_decision_seconds", "Time that choosing a worker took", meters.decision)
        info = InfoMetricFamily("relayd_build", "What is running")
        info.add_metric(
            [],
            {
                "version": __version__,
                "python": platform.python_version(),
                "build": "debug" if DEBUG_BUILD else "release",
            },
        )
        yield info

    def _requests(self) -> Iterator[Metric]:
        metrics, meters = self.metrics, self.metrics.meters
        yield counter(
            "relayd_requests", "Requests that have ended", ("route", "model", "worker", "code", "outcome"),
            {(*key[:3], str(key[3]), key[4]): count for key, count in metrics.requests.items()},
        )  # fmt: skip
        yield counter(
            "relayd_legs",
            "Attempts on workers, by how they ended",
            ("worker", "outcome"),
            legs(metrics.workers),
        )
        yield counter(
            "relayd_client_disconnects", "Clients that left before their answer was complete", ("phase",),
            {(phase,): count for phase, count in metrics.disconnects.items()},
        )  # fmt: skip
        yield counter(
            "relayd_tokens", "Tokens as workers reported them", ("type",),
            {
                ("input",): meters.input_tokens,
                ("output",): meters.output_tokens,
                ("cached_input",): meters.cached_input_tokens,
            },
        )  # fmt: skip
        yield counter(
            "relayd_tokens_estimated", "Tokens of answers without usage, estimated", ("type",),
            {("input",): meters.estimated_input_tokens, ("output",): meters.estimated_output_tokens},
        )  # fmt: skip
        yield counter(
            "relayd_usage_refused",
            "Answers with a usage that was not believed",
            (),
            {(): meters.refused_usages},
        )
        yield counter(
            "relayd_retries", "Requests that were moved to another worker", (), {(): metrics.retries}
        )
        yield counter(
            "relayd_stale_connection_retries", "Requests repeated: a kept connection had died", ("worker",),
            {(worker.name,): worker.pool.stale_retries for worker in metrics.workers},
        )  # fmt: skip
        yield counter(
            "relayd_log_lines_dropped",
            "Log lines that nobody read in time",
            (),
            {(): metrics.dropped_log_lines},
        )
        yield gauge("relayd_in_flight", "Requests being served", (), {(): metrics.in_flight})
        yield gauge("relayd_client_connections", "Open client connections", (), {(): metrics.connections})

    def _workers(self) -> Iterator[Metric]:
        workers = self.metrics.workers
        yield gauge(
            "relayd_upstream_up", "1 while a worker may be asked, 0 while it rests", ("worker",),
            {(worker.name,): int(self.metrics.is_open(worker)) for worker in workers},
        )  # fmt: skip
        yield gauge(
            "relayd_upstream_in_flight", "Legs a worker is serving", ("worker",),
            {(worker.name,): worker.pool.in_flight for worker in workers},
        )  # fmt: skip
        yield gauge(
            "relayd_upstream_connections", "Open connections to a worker", ("worker", "state"),
            {
                **{(worker.name, "idle"): worker.pool.idle_count for worker in workers},
                **{(worker.name, "busy"): worker.pool.open - worker.pool.idle_count for worker in workers},
            },
        )  # fmt: skip
        yield counter(
            "relayd_upstream_dials", "Connections made to a worker", ("worker",),
            {(worker.name,): worker.pool.dials for worker in workers},
        )  # fmt: skip
        yield counter(
            "relayd_upstream_reuses", "Requests sent on a kept connection", ("worker",),
            {(worker.name,): worker.pool.reuses for worker in workers},
        )  # fmt: skip


def legs(workers: Sequence[Worker]) -> dict[tuple[str, str], int]:
    """Return how many legs ended in which way, by (worker, outcome)."""
    rows: dict[tuple[str, str], int] = {}
    for worker in workers:
        *by_outcome, failed = worker.pool.legs_ended()
        for outcome, row in enumerate(LEG_ROWS):
            if by_outcome[outcome]:
                rows[(worker.name, row.label)] = by_outcome[outcome]
        if failed:
            rows[(worker.name, "status_5xx")] = failed
    return rows


def counter(name: str, meaning: str, labels: Sequence[str], rows: Mapping[Any, int]) -> CounterMetricFamily:
    """Return a counter family with a row per label tuple."""
    family = CounterMetricFamily(name, meaning, labels=labels)
    for values, count in rows.items():
        family.add_metric(values, count)
    return family


def gauge(name: str, meaning: str, labels: Sequence[str], rows: Mapping[Any, int]) -> GaugeMetricFamily:
    """Return a gauge family with a row per label tuple."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in rows.items():
        family.add_metric(values, value)
    return family


def histogram(name: str, meaning: str, source: Histogram) -> HistogramMetricFamily:
    """Return a histogram family without labels."""
    family = HistogramMetricFamily(name, meaning)
    family.add_metric([], source.buckets(), source.sum_s)
    return family
