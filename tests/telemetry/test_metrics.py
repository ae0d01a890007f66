"""The exposition is clean, complete, and bounded."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relayd import __version__
from relayd._fast.leg import Pool
from relayd.faults import LEG_OUTCOMES
from relayd.records import Worker
from relayd.telemetry import metrics as metrics_module
from relayd.telemetry.metrics import OTHER, PAIRS_AT_MOST, Metrics
from tests.fast.stage import reply, stream
from tests.phases.test_driver import Gateway
from tests.support.dialects import OPENAI

PROMTOOL = shutil.which("promtool")

# The names and labels that dashboards and alerts are written against.
PROMISED = {
    "relayd_requests": ("counter", {"route", "model", "worker", "code", "outcome"}),
    "relayd_in_flight": ("gauge", set()),
    "relayd_ttft_seconds": ("histogram", {"le", "model", "worker"}),
    "relayd_tpot_seconds": ("histogram", {"le", "model", "worker"}),
    "relayd_overhead_seconds": ("histogram", {"le", "model", "worker"}),
    "relayd_decision_seconds": ("histogram", {"le"}),
    "relayd_bookkeeping_seconds": ("histogram", {"le"}),
    "relayd_request_duration_seconds": ("histogram", {"le", "model", "worker"}),
    "relayd_client_disconnects": ("counter", {"phase"}),
    "relayd_legs": ("counter", {"worker", "outcome"}),
    "relayd_tokens": ("counter", {"model", "worker", "type"}),
    "relayd_tokens_estimated": ("counter", {"model", "worker", "type"}),
    "relayd_usage_refused": ("counter", set()),
    "relayd_ratelimit_rejections": ("counter", {"code"}),
    "relayd_auth_refusals": ("counter", {"reason"}),
    "relayd_log_lines_dropped": ("counter", {"sink"}),
    "relayd_jwks_age_seconds": ("gauge", set()),
    "relayd_config_reload_success": ("gauge", set()),
    "relayd_upstream_up": ("gauge", {"worker"}),
    "relayd_retries": ("counter", set()),
    "relayd_build_info": ("gauge", {"version", "python", "build"}),
}


def busy_gateway() -> Gateway:
    """Return a gateway to which everything has happened that is counted."""
    gateway = Gateway(2)
    for answer in (
        reply(b"Content-Type: application/json", body=b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'),
        reply(body=b"{}", status=b"500 Oops"),
        stream("".join(OPENAI.events("a", "b", "c"))),
        b"garbage\r\n\r\n",
        stream(OPENAI.text("a")),
    ):
        gateway.ask(OPENAI, is_stream=True)
        for _ in range(3):
            flying = [stage for stage in gateway.stages if stage.pool.in_flight]
            if flying:
                flying[0].worker_says(answer)
    gateway.ask(OPENAI).leave()
    gateway.begin(body=b"nonsense")
    gateway.books.over_limit("address_rate")
    gateway.metrics.unauthorized["expired"] = 1
    gateway.metrics.dropped_lines = lambda: {"stdout": 0, "file:/var/log/relayd/access": 7}
    gateway.metrics.jwks_age_s = lambda: 12.5
    return gateway


def families(gateway: Gateway) -> dict:
    """Return what is exposed, by name."""
    return {
        family.name: family
        for family in text_string_to_metric_families(gateway.metrics.exposition().decode())
    }


@pytest.mark.parametrize("name", PROMISED)
def test_what_is_promised_is_there(name):
    kind, labels = PROMISED[name]
    family = families(busy_gateway())[name]
    assert family.type == kind
    assert family.documentation
    assert family.samples
    assert set().union(*(sample.labels for sample in family.samples)) == labels


def test_everything_is_ours_or_the_process():
    for name in families(busy_gateway()):
        assert name.startswith(("relayd_", "process_")), name


def test_nothing_has_happened_yet():
    found = families(Gateway(1))
    assert set(PROMISED) - set(found) == {"relayd_jwks_age_seconds"}, "nobody has fetched keys"
    assert [sample.value for sample in found["relayd_in_flight"].samples] == [0]
    assert [sample.value for sample in found["relayd_retries"].samples if sample.name.endswith("_total")] == [
        0
    ]


def test_histograms_are_cumulative_and_whole():
    for family in families(busy_gateway()).values():
        if family.type != "histogram":
            continue
        pairs = {(sample.labels.get("model"), sample.labels.get("worker")) for sample in family.samples}
        for pair in pairs:
            assert_whole(
                [s for s in family.samples if (s.labels.get("model"), s.labels.get("worker")) == pair]
            )


def assert_whole(samples: list) -> None:
    """Fail unless these are a histogram's."""
    buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    (count,) = [sample.value for sample in samples if sample.name.endswith("_count")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == count
    bounds = [float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == float("inf")


def test_times_and_tokens_are_told_apart_by_model_and_worker():
    gateway = Gateway(2)
    for worker in gateway.workers:
        gateway.fleet.learned(worker, ["a", "b"])
    body = b'{"usage":{"prompt_tokens":3,"completion_tokens":4,"reasoning_tokens":2,"cached_tokens":1}}'
    for model in ("a", "b", "a", "b"):
        gateway.ask(OPENAI, model=model)
        next(stage for stage in gateway.stages if stage.pool.in_flight).worker_says(reply(body=body))
    for model, worker in (("a", "w0"), ("b", "w1")):
        labels = {"model": model, "worker": worker}
        assert gateway.count("relayd_request_duration_seconds_count", **labels) == 2
        assert gateway.count("relayd_overhead_seconds_count", **labels) == 2
        for kind, tokens in {"input": 6, "output": 8, "reasoning": 4, "cached_input": 2}.items():
            assert gateway.count("relayd_tokens_total", type=kind, **labels) == tokens
    assert gateway.count("relayd_request_duration_seconds_count") == 4
    assert gateway.count("relayd_bookkeeping_seconds_count") == 4
    assert 0 < gateway.count("relayd_bookkeeping_seconds_sum") < 60


def test_a_reload_that_failed_is_told():
    gateway = Gateway(1)
    assert gateway.count("relayd_config_reload_success") == 1
    gateway.metrics.reload_failed = True
    assert gateway.count("relayd_config_reload_success") == 0


def test_the_build_is_told():
    (sample,) = families(Gateway(1))["relayd_build_info"].samples
    assert (sample.labels["version"], sample.value) == (__version__, 1)
    assert sample.labels["build"] in ("release", "debug")


def test_workers_are_up_or_not():
    workers = [Worker(name, "http://w", Pool(name, b"w", None)) for name in ("a", "b")]
    metrics = Metrics(workers, lambda worker: worker.name == "a")
    found = {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}
    assert {s.labels["worker"]: s.value for s in found["relayd_upstream_up"].samples} == {"a": 1, "b": 0}
    assert {s.labels["worker"]: s.value for s in found["relayd_upstream_in_flight"].samples} == {
        "a": 0,
        "b": 0,
    }


def test_legs_are_told_by_how_they_ended():
    gateway = busy_gateway()
    rows = {sample.labels["outcome"] for sample in families(gateway)["relayd_legs"].samples}
    assert rows <= {row.label for row in LEG_OUTCOMES.values()} | {"status_5xx"}
    assert {"complete", "rejected", "cut", "bad_answer", "cancelled"} <= rows


def test_a_failure_that_was_passed_on_is_told_apart():
    gateway = Gateway(1)
    gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(body=b"{}", status=b"500 Oops"))
    assert gateway.count("relayd_legs_total", outcome="status_5xx") == 1
    assert gateway.count("relayd_legs_total", outcome="complete") == 0


def test_labels_are_escaped():
    workers = [Worker('a"\\\n', "http://w", Pool('a"\\\n', b"w", None))]
    found = text_string_to_metric_families(Metrics(workers, lambda worker: True).exposition().decode())
    assert 'a"\\\n' in {s.labels.get("worker") for family in found for s in family.samples}


def test_bounds_of_all_histograms_rise():
    for name in ("TTFT_BUCKETS", "DURATION_BUCKETS", "TPOT_BUCKETS", "FINE_BUCKETS"):
        bounds = getattr(metrics_module, name)
        assert list(bounds) == sorted(set(bounds))
        assert len(bounds) < 40


def test_two_gateways_in_one_process_count_for_themselves():
    one, other = Gateway(1), Gateway(1)
    one.begin(body=b"nonsense")
    assert one.count("relayd_requests_total") == 1
    assert other.count("relayd_requests_total") == 0


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not on PATH")
def test_promtool_finds_nothing_to_say():
    checked = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=busy_gateway().metrics.exposition(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    said = checked.stdout.decode() + checked.stderr.decode()
    ours = [line for line in said.splitlines() if not line.startswith("process_")]
    assert not ours, said


# --- bounds -------------------------------------------------------------------------------------------


def counted(metrics: Metrics, name: str) -> float:
    """Return the sum of a metric's samples."""
    text = metrics.exposition().decode()
    return sum(
        s.value for family in text_string_to_metric_families(text) for s in family.samples if s.name == name
    )


def test_a_model_that_is_not_known_is_another_one():
    metrics = Metrics([], lambda worker: True)
    known = {"m"}
    assert (metrics.meters_for("m", "w", known).model, metrics.meters_for("m", "w", known).worker) == (
        "m",
        "w",
    )
    assert metrics.meters_for("x", "w", known) is metrics.meters_for("y", "w", known)
    assert metrics.meters_for("x", "w", known).model == OTHER
    assert metrics.meters_for("", "", known).model == "", "a request that names none"
    assert metrics.meters_for("m", "w", set()).model == OTHER, "it was known once, and is not any more"


def test_pairs_are_bounded_whatever_workers_list():
    metrics = Metrics([], lambda worker: True)
    models = {f"m{n}" for n in range(2 * PAIRS_AT_MOST)}
    for model in models:
        metrics.meters_for(model, "w0", models).ended(0, 1)
    for n in range(2 * PAIRS_AT_MOST):
        metrics.meters_for("m0", f"w{n}", models).ended(0, 1)
    assert len(metrics.pairs) == PAIRS_AT_MOST + 1
    assert metrics.meters_for("m9999", "w0", models) is metrics.pairs[OTHER, OTHER]
    assert counted(metrics, "relayd_request_duration_seconds_count") == 4 * PAIRS_AT_MOST, "and none is lost"


def test_a_worker_that_is_known_keeps_its_name_when_there_are_too_many():
    metrics = Metrics([], lambda worker: True)
    metrics.meters_for("unknown", "w0", set())
    for n in range(PAIRS_AT_MOST):
        metrics.meters_for("", f"x{n}", set())
    assert metrics.meters_for("m", "w0", {"m"}) is metrics.pairs[OTHER, "w0"]


def test_kinds_of_endings_are_bounded_and_none_is_lost(monkeypatch):
    monkeypatch.setattr(metrics_module, "ROWS_AT_MOST", 50)
    metrics = Metrics([], lambda worker: True)
    for code in range(1, 201):
        metrics.count_kind(("chat", "m", "w", code, "ok"))
        metrics.count_kind(("chat", "m", "w", code, "refused"))
    assert len(metrics.requests) == 52
    assert counted(metrics, "relayd_requests_total") == 400
    assert metrics.requests["chat", OTHER, OTHER, 0, "ok"] == 175


def test_reasons_are_bounded_and_none_is_lost():
    gateway = Gateway(1)
    for number in range(1000):
        gateway.books.over_limit(f"code {number}")
    assert gateway.count("relayd_ratelimit_rejections_total") == 1000
    assert len(families(gateway)["relayd_ratelimit_rejections"].samples) < 200


def test_a_hundred_thousand_models_make_no_series():
    gateway = Gateway(1)
    gateway.fleet.learned(gateway.workers[0], ["m"])
    exchange = gateway.begin(body=b"nonsense").exchange
    gateway.books.log = None  # it would keep every line
    before = len(gateway.metrics.exposition())
    for number in range(100_000):
        exchange.model = f"made-up-{number}"
        gateway.books.began()
        gateway.books.ended(exchange, 404, "refused", None)
    assert len(gateway.metrics.exposition()) < before + 10_000
    assert gateway.count("relayd_requests_total", model=OTHER) == 100_000
