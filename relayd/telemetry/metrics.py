"""The metrics, and how they are written out for Prometheus.

Counting happens in plain dicts and `_fast/meters`, on the loop's thread, and everything is written out when
somebody scrapes.  Families with a row a worker are prometheus_client's business.  It takes some 40 us a line,
and the loop waits; so those with rows by model are written here (1,000 pairs: 3.3 s with it, 0.13 s here).

Labels are bounded.  Route names, faults and reasons come from tables, workers from the settings, models from
what is configured or workers list; any other model is `_other`.  Since a client cannot choose them but a
worker can list a million, there are at most PAIRS_AT_MOST pairs of a model and a worker, and ROWS_AT_MOST
kinds of ended requests; what comes later is counted under `_other`.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
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
PAIRS_AT_MOST = 1000
ROWS_AT_MOST = 10_000
REASONS_AT_MOST = 64

# How an exchange can end, for whoever asks how it went: each ends in exactly one of these ways.
OUTCOMES = ("ok", "refused", "client_closed", "upstream_error", "upstream_timeout", "stream_error")

Row = tuple[str, str, str, int, str]  # route, model, worker, code (0: too many kinds), outcome


class Metrics:
    """What one gateway has counted.

    `jwks_age_s` and `dropped_lines` are asked at each scrape; whoever knows sets them.
    """

    def __init__(self, workers: Sequence[Worker], is_open: Callable[[Worker], bool]) -> None:
        self.workers = workers
        self.is_open = is_open
        self.in_flight = 0
        self.pairs: dict[tuple[str, str], Meters] = {}
        self.requests: dict[Row, int] = {}
        self.decision = Histogram(FINE_BUCKETS)
        self.bookkeeping = Histogram(FINE_BUCKETS)
        self.disconnects: Counter[str] = Counter()
        self.limited: Counter[str] = Counter()  # requests over a limit of relayd's own, by the fault's code
        self.unauthorized: dict[str, int] = {}  # credentials that were refused, by why
        self.retries = 0
        self.reload_failed = False  # the last time that settings were read again
        self.connections = 0
        self.jwks_age_s: Callable[[], float | None] = lambda: None
        self.dropped_lines: Callable[[], Mapping[str, int]] = dict
        self._registry = CollectorRegistry()
        self._registry.register(_Exposition(self))
        ProcessCollector(registry=self._registry)

    def meters_for(self, model: str, worker: str, known: Container[str]) -> Meters:
        """Return the meters of a model on a worker, under labels that are bounded: see `pairs`.

        Only what is in `known` is called by its name.  Whoever finds the pair in `pairs` need not ask.
        """
        label = model if not model or model in known else OTHER
        found = self.pairs.get((label, worker))
        if found is not None:
            return found
        if len(self.pairs) >= PAIRS_AT_MOST:
            label = OTHER
            worker = worker if (OTHER, worker) in self.pairs else OTHER
        return self.pairs.get((label, worker)) or self._add_pair(label, worker)

    def _add_pair(self, model: str, worker: str) -> Meters:
        meters = self.pairs[model, worker] = Meters(
            model,
            worker,
            Histogram(TTFT_BUCKETS),
            Histogram(TPOT_BUCKETS),
            Histogram(DURATION_BUCKETS),
            Histogram(FINE_BUCKETS),
        )
        return meters

    def count_kind(self, row: Row) -> None:
        """Count an ended request of a kind that has not been seen yet."""
        if len(self.requests) >= ROWS_AT_MOST:
            row = (row[0], OTHER, OTHER, 0, row[4])
        self.requests[row] = self.requests.get(row, 0) + 1

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        by_model = "".join([*_requests(self.requests), *_times(self.pairs), *_tokens(self.pairs)])
        return generate_latest(self._registry) + by_model.encode("utf-8", "backslashreplace")


def bump(counts: Counter[str], reason: str) -> None:
    """Add one to `counts`, which may not grow beyond what tables of reasons need."""
    if reason not in counts and len(counts) >= REASONS_AT_MOST:
        reason = OTHER
    counts[reason] += 1


class _Exposition(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._workers()
        yield from self._refusals()
        for name, text, histogram in (
            ("decision", "Time that choosing a worker took", self.metrics.decision),
            ("bookkeeping", "Time that accounting for a request took", self.metrics.bookkeeping),
        ):
            family = HistogramMetricFamily(f"relayd_{name}_seconds", text)
            family.add_metric([], histogram.buckets(), histogram.sum_s)
            yield family
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
        metrics = self.metrics
        yield counter(
            "relayd_legs",
            "Attempts on workers, by how they ended",
            ("worker", "outcome"),
            legs(metrics.workers),
        )
        yield by_reason(
            "relayd_client_disconnects", "Clients that left before their answer was complete", "phase",
            metrics.disconnects,
        )  # fmt: skip
        yield counter(
            "relayd_retries", "Requests that were moved to another worker", (), {(): metrics.retries}
        )
        yield counter(
            "relayd_stale_connection_retries", "Requests repeated: a kept connection had died", ("worker",),
            {(worker.name,): worker.pool.stale_retries for worker in metrics.workers},
        )  # fmt: skip
        yield gauge("relayd_in_flight", "Requests being served", (), {(): metrics.in_flight})
        yield gauge("relayd_client_connections", "Open client connections", (), {(): metrics.connections})

    def _refusals(self) -> Iterator[Metric]:
        metrics = self.metrics
        refused = sum(meters.refused_usages for meters in metrics.pairs.values())
        yield counter("relayd_usage_refused", "Answers with a usage that was not believed", (), {(): refused})
        yield by_reason(
            "relayd_ratelimit_rejections", "Requests over a limit of relayd's own", "code", metrics.limited
        )
        yield by_reason(
            "relayd_auth_refusals", "Requests whose credential was refused", "reason", metrics.unauthorized
        )
        yield by_reason(
            "relayd_log_lines_dropped", "Log lines that could not be written", "sink", metrics.dropped_lines()
        )
        yield gauge(
            "relayd_config_reload_success", "0 after a reload whose settings could not be used", (),
            {(): int(not metrics.reload_failed)},
        )  # fmt: skip
        age_s = metrics.jwks_age_s()
        if age_s is not None:
            yield GaugeMetricFamily(
                "relayd_jwks_age_seconds", "Since the keys that tokens are checked with were fetched", age_s
            )

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


def by_reason(name: str, meaning: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    """Return a counter family with one label."""
    return counter(name, meaning, (label,), {(reason,): count for reason, count in counts.items()})


def gauge(name: str, meaning: str, labels: Sequence[str], rows: Mapping[Any, int]) -> GaugeMetricFamily:
    """Return a gauge family with a row per label tuple."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in rows.items():
        family.add_metric(values, value)
    return family


# --- families with rows by model ----------------------------------------------------------------------

TIMES = (
    ("relayd_ttft_seconds", "From a request's arrival to the first content of its stream", "ttft"),
    ("relayd_tpot_seconds", "Time per output token after the first, of streams", "tpot"),
    ("relayd_request_duration_seconds", "From a request's head to the end of its answer", "duration"),
    ("relayd_overhead_seconds", "Time that relayd itself added to a request", "overhead"),
)
REPORTED = ("input", "output", "cached_input", "cache_write", "reasoning")
ESTIMATED = ("input", "output")


def _requests(rows: Mapping[Row, int]) -> Iterator[str]:
    name = "relayd_requests_total"
    yield heading(name, "counter", "Requests that have ended")
    for (route, model, worker, code, outcome), count in rows.items():
        labels = f'route="{route}",{pair_labels(model, worker)},code="{code or OTHER}",outcome="{outcome}"'
        yield f"{name}{{{labels}}} {count}\n"


def _times(pairs: Mapping[tuple[str, str], Meters]) -> Iterator[str]:
    for name, meaning, attribute in TIMES:
        yield heading(name, "histogram", meaning)
        for pair, meters in pairs.items():
            source: Histogram = getattr(meters, attribute)
            if source.count:
                yield source.exposed(name, pair_labels(*pair))


def _tokens(pairs: Mapping[tuple[str, str], Meters]) -> Iterator[str]:
    for name, meaning, kinds, prefix in (
        ("relayd_tokens_total", "Tokens as workers reported them", REPORTED, ""),
        (
            "relayd_tokens_estimated_total",
            "Tokens that no worker reported, estimated",
            ESTIMATED,
            "estimated_",
        ),
    ):
        yield heading(name, "counter", meaning)
        for pair, meters in pairs.items():
            for kind in kinds:
                count = getattr(meters, f"{prefix}{kind}_tokens")
                if count:
                    yield f'{name}{{{pair_labels(*pair)},type="{kind}"}} {count}\n'


def heading(name: str, kind: str, meaning: str) -> str:
    """Return the lines that begin a family."""
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


@lru_cache(4 * PAIRS_AT_MOST)
def pair_labels(model: str, worker: str) -> str:
    """Return the labels of a pair, as Prometheus wants them written."""
    return f'model="{escaped(model)}",worker="{escaped(worker)}"'


def escaped(text: str) -> str:
    """Return a label's value as it stands between quotes."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
