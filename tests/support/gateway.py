"""A real `relayd serve` in a process of its own, and what it says about itself.

with Gateway(upstream, settings={"resilience.timeouts.idle": "1s"}) as gateway:
    answer = wire.ask(gateway, wire.request("GET", "/echo"))
    assert gateway.metrics().total("relayd_requests_total", code="200") == 1
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.program import Program
from tests.support.upstream import Upstream
from tests.support.waiting import eventually

READY = re.compile(r"listening on http://([\d.]+):(\d+)(?:, admin on http://([\d.]+):(\d+))?")


@dataclass(frozen=True)
class Sample:
    """One line of /metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [
            Sample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all samples of that name which have these labels; 0 if there is none."""
        wanted = labels.items()
        return sum(
            sample.value for sample in self.samples if sample.name == name and wanted <= sample.labels.items()
        )


class Gateway(Program):
    """`relayd serve --worker ...` on free ports; ready when made."""

    host = "127.0.0.1"

    def __init__(
        self,
        *workers: Upstream | str,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        stdout: int = subprocess.DEVNULL,
    ) -> None:
        arguments = serve_arguments(*workers, settings=settings, arguments=arguments)
        super().__init__(READY, *arguments, environment=environment, stdout=stdout)
        self.port, self.admin_port = int(self.ready[2]), int(self.ready[4] or 0)

    # Where it is

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://{self.host}:{self.admin_port}"

    # What it says

    def ask_admin(self, path: str) -> tuple[int, str]:
        """Return status and text of a page of the admin port."""
        try:
            with urllib.request.urlopen(self.admin + path, timeout=5) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def metrics(self) -> Metrics:
        """Return a scrape of /metrics."""
        status, text = self.ask_admin("/metrics")
        assert status == 200, (status, text)
        return Metrics(text)

    def in_flight(self) -> float:
        """Return how many exchanges it says it is serving."""
        return self.metrics().total("relayd_in_flight")

    def wait_idle(self, within_s: float = 5.0) -> None:
        """Wait until it serves nothing."""
        eventually(lambda: self.in_flight() == 0, within_s, "relayd_in_flight at 0")


def serve_arguments(
    *workers: Upstream | str,
    settings: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> list[str]:
    """Return the arguments that serve these workers on free ports of the loopback."""
    urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
    return [
        "serve",
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *(part for url in urls for part in ("--worker", url)),
        *(part for key, value in (settings or {}).items() for part in ("--set", f"{key}={value}")),
        *arguments,
    ]


def run_relayd(*arguments: str, within_s: float = 15.0) -> subprocess.CompletedProcess[str]:
    """Run a `relayd` command that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "relayd", *arguments],
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
