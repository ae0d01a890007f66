"""What a balancer and a scraper get of the admin port."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from relayd.admin.app import make_app
from relayd.admin.status import Status
from relayd.config import Settings
from relayd.telemetry.metrics import Metrics

WELL = [("accepting", True), ("workers", True)]
DRAINING = [("accepting", False), ("workers", True)]
NOBODY = [("accepting", False), ("workers", False)]


def ask(path: str, checks=WELL, method: str = "GET", headers=None) -> tuple[int, str, str]:
    """Return (status, text, content type) of one request."""

    async def look() -> list[tuple[str, bool]]:
        return checks

    async def run():
        metrics = Metrics([], lambda worker: True)
        status = Status(Settings(), [], metrics, None, None)
        async with TestClient(TestServer(make_app(metrics, look, status))) as client:
            answer = await client.request(method, path, headers=headers)
            return answer.status, await answer.text(), answer.headers.get("Content-Type", "")

    return asyncio.run(run())


@pytest.mark.parametrize("checks", [WELL, DRAINING, NOBODY])
def test_alive_is_alive(checks):
    assert ask("/livez", checks)[:2] == (200, "ok\n")


@pytest.mark.parametrize("path", ["/readyz", "/healthz"])
def test_ready_when_all_is_well(path):
    assert ask(path)[:2] == (200, "ok\n")
    assert ask(path, DRAINING)[:2] == (503, "not ready: accepting\n")
    assert ask(path, NOBODY)[:2] == (503, "not ready: accepting, workers\n")


@pytest.mark.parametrize("path", ["/readyz?verbose", "/healthz?verbose=1"])
def test_tells_why_when_asked(path):
    assert ask(path)[1] == "[+]accepting ok\n[+]workers ok\n"
    status, text, _ = ask(path, DRAINING)
    assert (status, text) == (503, "[-]accepting failed\n[+]workers ok\n")


def test_metrics_are_prometheus_text():
    status, text, kind = ask("/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "relayd_requests" in names
    assert not [name for name in names if "[" in name]


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_head_is_served_and_nothing_else(path):
    assert ask(path, method="HEAD")[0] == 200
    assert ask(path, method="POST")[0] == 405


@pytest.mark.parametrize("path", ["/nothing", "/v1/chat/completions", "/metrics/../livez2"])
def test_other_paths_are_not_found(path):
    assert ask(path)[0] == 404
