"""A real `relayd serve` in a process of its own, and what it says about itself.

    with Gateway(upstream, settings={"resilience.timeouts.idle": "1s"}) as gateway:
        answer = wire.ask(gateway, wire.request("GET", "/echo"))
        assert gateway.metrics().total("relayd_requests_total", code="200") == 1

Whatever a test does, the gateway must not print a traceback: `close()` checks, so every test that
uses one checks as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.upstream import Upstream
from tests.support.waiting import eventually

READY = re.compile(r"listening on http://([\d.]+):(\d+)(?:, admin on http://([\d.]+):(\d+))?")
START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0


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


class Gateway:
    """`relayd serve --worker ...` on free ports; ready when made."""

    host = "127.0.0.1"

    def __init__(
        self,
        *workers: Upstream | str,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = serve_command(*workers, settings=settings, arguments=arguments)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            text=True,
            errors="replace",
        )
        self._lines: list[str] = []
        self._reading = threading.Thread(target=self._read_stderr, daemon=True)
        self._reading.start()
        self.port = self.admin_port = 0
        eventually(self._is_ready, START_LIMIT_S, f"ready line of {command}")

    # Where it is

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://{self.host}:{self.admin_port}"

    # What it says

    @property
    def stderr(self) -> str:
        return "".join(self._lines)

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

    # Its life

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self, within_s: float = STOP_LIMIT_S) -> int:
        """Wait for its end; return the exit code."""
        code = self._process.wait(within_s)
        self._reading.join(5)
        return code

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Stop it and check that it never printed a traceback."""
        if self.is_running:
            self.signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
        if self.is_running:
            self._process.kill()
            self._process.wait(STOP_LIMIT_S)
            raise AssertionError(f"not ended {STOP_LIMIT_S} s after SIGINT:\n{self.stderr[-2000:]}")
        self._reading.join(5)
        assert "Traceback" not in self.stderr, self.stderr[-4000:]

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)

    def _is_ready(self) -> bool:
        match = READY.search(self.stderr)
        if match:
            self.port, self.admin_port = int(match[2]), int(match[4] or 0)
            return True
        if not self.is_running:
            self._reading.join(1)
            raise AssertionError(f"relayd ended with {self._process.returncode} at its start:\n{self.stderr}")
        return False


def serve_command(
    *workers: Upstream | str,
    settings: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> list[str]:
    """Return the command line that serves these workers on free ports of the loopback."""
    urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
    return [
        *(sys.executable, "-m", "relayd", "serve"),
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
