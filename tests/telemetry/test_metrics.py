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
from relayd.telemetry.metrics import Metrics
from tests.fast.stage import reply, stream
from tests.phases.test_driver import Gateway
from tests.support.dialects import OPENAI

PROMTOOL = shutil.which("promtool")

# The names and labels that dashboards and alerts are written against.
PROMISED = {
    "relayd_requests": ("counter", {"route", "model", "worker", "code", "outcome"}),
    "relayd_in_flight": ("gauge", set()),
    "relayd_ttft_seconds": ("histogram", {"le"}),
    "relayd_overhead_seconds": ("histogram", {"le"}),
    "relayd_decision_seconds": ("histogram", {"le"}),
    "relayd_request_duration_seconds": ("histogram", {"le"}),
    "relayd_client_disconnects": ("counter", {"phase"}),
    "relayd_legs": ("counter", {"worker", "outcome"}),
    "relayd_tokens": ("counter", {"type"}),
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
    for name in PROMISED:
        assert name in found, name
    assert [sample.value for sample in found["relayd_in_flight"].samples] == [0]
    assert [sample.value for sample in found["relayd_retries"].samples if sample.name.endswith("_total")] == [
        0
    ]


def test_histograms_are_cumulative_and_whole():
    for family in families(busy_gateway()).values():
        if family.type != "histogram":
            continue
        buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
        count = next(sample.value for sample in family.samples if sample.name.endswith("_count"))
        assert buckets == sorted(buckets)
        assert buckets[-1] == count
        bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
        assert bounds == sorted(set(bounds))
        assert bounds[-1] == float("inf")


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
