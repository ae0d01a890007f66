"""What was read and written, three times over: the mocks' own books, relayd's log, and the tenants' quotas.

Requests of every kind end in every way.  Then each line of the log is held against the mock's entry for the
same request: a line that is not marked as an estimate is right to the token.  RELAYD_LEDGER_REQUESTS says how
many requests there are.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.dialects import ANTHROPIC, OPENAI, RESPONSES
from tests.support.gateway import Gateway
from tests.support.mock import FAULTS, Mock
from tests.support.waiting import eventually
from tests.support.wire import Client, post_json

REQUESTS = int(os.environ.get("RELAYD_LEDGER_REQUESTS", "1000"))
BATCH = 500  # the mock remembers a thousand
AT_ONCE = 24
SEED = 20_263
TENANTS = ("acme", "umbrella", "initech")

SETTINGS = """
engine: vllm
auth: {{keys: {keys}}}
limits:
  tiers:
    default:
      requests: 900M/min
      tokens: 900M/min
      concurrency: 1000
      quota: 900M/month
      quota_requests: 900M/month
      models: {{mock: {{tokens: 900M/min, concurrency: 1000, quota: 900M/month}}}}
resilience:
  timeouts: {{first_token: 400ms, idle: 400ms, write: 400ms}}
  breaker: {{rest: 50ms, longest_rest: 50ms}}
log: {{sinks: ["file:{log}"]}}
workers:
  one: {{url: "{one}"}}
  two: {{url: "{two}"}}
models:
  mock: {{targets: [one, two]}}
"""

PROMPTS = [f"Prompt {n}: " + "the quick brown fox jumps over the lazy dog. " * (n * n) for n in range(8)]
ROUTES = [OPENAI.path, ANTHROPIC.path, RESPONSES.path, "/v1/completions", "/v1/embeddings"]


@dataclass(frozen=True)
class Ask:
    """One request and how it ends."""

    name: str
    tenant: str
    path: str
    body: dict[str, Any]
    fault: str | None
    stays: bool
    after_bytes: int
    after_s: float
    resets: bool

    def play(self, gateway: Gateway) -> None:
        headers = [("x-api-key", f"key-of-{self.tenant}"), ("X-Request-Id", self.name)]
        headers += [("x-mock-fault", self.fault)] if self.fault else []
        with Client.to(gateway, wait_s=10.0) as client:
            client.send(post_json(self.path, self.body, *headers))
            if self.stays:
                assert client.read().ending != "silent", self
                return
            client.sock.settimeout(self.after_s)
            client.read(enough=self.after_bytes)
            if self.resets:
                client.reset()


def draw(rng: random.Random, name: str) -> Ask:
    path, text = rng.choice(ROUTES), rng.choice(PROMPTS)
    body: dict[str, Any] = {"model": "mock", "stream": rng.random() < 0.7, "max_tokens": rng.randrange(1, 40)}
    if path == RESPONSES.path:
        body |= {"input": text, "max_output_tokens": body.pop("max_tokens")}
    elif path == "/v1/embeddings":
        body = {"model": "mock", "input": [text, "and more"]}
    elif path == "/v1/completions":
        body |= {"prompt": text}
    else:
        body |= {"messages": [{"role": "user", "content": text}]}
    if path in (OPENAI.path, "/v1/completions"):
        body["n"] = rng.choice([1, 1, 1, 2])
        if body["stream"] and rng.random() < 0.3:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.5}
    return Ask(
        name, rng.choice(TENANTS), path, body,
        fault=rng.choice(FAULTS) if rng.random() < 0.4 else None,
        stays=rng.random() < 0.6,
        after_bytes=rng.randrange(4000),
        after_s=0.001 + rng.random() * 0.08,
        resets=rng.random() < 0.5,
    )  # fmt: skip


@dataclass
class Books:
    """What both sides have written down."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    entries: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by (request, worker)
    status: dict[str, Any] = field(default_factory=dict)
    metrics: Any = None

    def entry(self, line: dict[str, Any]) -> dict[str, Any] | None:
        """Return the worker's own entry for the answer that a line tells of."""
        return self.entries.get((line["request_id"], line["worker"]))


def take_entries(mock: Mock, worker: str, books: Books) -> None:
    """Move a mock's ledger into the books."""
    eventually(lambda: mock.stats()["requests"]["open"] == 0, 10, "the mock is at rest")
    for entry in mock.stats()["ledger"]:
        books.entries[entry["id"], worker] = entry
    urllib.request.urlopen(urllib.request.Request(mock.url + "/mock/reset", method="POST"), timeout=5).close()


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    """Play all requests, and gather what was written down about them."""
    folder, books, rng = tmp_path_factory.mktemp("ledger"), Books(), random.Random(SEED)
    pace = ("--ttft", "5ms", "--itl", "1ms", "--seed", "1", "--output-tokens", "1-40")
    with Mock(*pace) as one, Mock(*pace, "--engine", "anthropic") as two:
        with Gateway(arguments=("--config", str(settings_file(folder, one, two)))) as gateway:
            for start in range(0, REQUESTS, BATCH):
                asks = [draw(rng, f"r{number}") for number in range(start, min(start + BATCH, REQUESTS))]
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    list(pool.map(lambda ask: ask.play(gateway), asks))
                gateway.wait_idle(10)
                take_entries(one, "one", books)
                take_entries(two, "two", books)
            books.status = json.loads(gateway.ask_admin("/status")[1])
            books.metrics = gateway.metrics()
        books.lines = [json.loads(line) for line in (folder / "requests.log").read_text().splitlines()]
        yield books


def settings_file(folder: Path, one: Mock, two: Mock) -> Path:
    keys = folder / "keys.yaml"
    hashes = {tenant: hashlib.sha256(f"key-of-{tenant}".encode()).hexdigest() for tenant in TENANTS}
    keys.write_text(json.dumps([{"sha256": value, "tenant": tenant} for tenant, value in hashes.items()]))
    keys.chmod(0o600)
    file = folder / "relayd.yaml"
    file.write_text(SETTINGS.format(keys=keys, log=folder / "requests.log", one=one.url, two=two.url))
    return file


def exact(books: Books) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the lines whose tokens are a worker's own, each with the worker's entry."""
    pairs = [(line, books.entry(line)) for line in books.lines if line["tokens"]["input"] is not None]
    return [(line, entry) for line, entry in pairs if entry and not line["tokens"]["estimated"]]


def test_every_request_has_one_line(books: Books) -> None:
    names = [line["request_id"] for line in books.lines]
    assert len(names) == len(set(names)) == books.metrics.total("relayd_requests_total")
    assert {name for name, _ in books.entries} <= set(names)
    assert len(names) > REQUESTS * 0.95, "few clients are gone before they are heard"
    assert len({line["outcome"] for line in books.lines}) > 5, "they ended in many ways"


def test_what_is_not_marked_is_right_to_the_token(books: Books) -> None:
    for line, entry in exact(books):
        tokens = line["tokens"]
        written = None if line["route"] == "embeddings" else entry["completion_tokens"]
        assert (tokens["input"], tokens["output"]) == (entry["prompt_tokens"], written), (line, entry)
        # vLLM does not tell of cached tokens on messages.
        assert tokens["cached_input"] in (None, entry["cached_tokens"]), (line, entry)
    sums = [sum(line["tokens"][kind] or 0 for line, _ in exact(books)) for kind in ("input", "output")]
    sent = [sum(entry[kind] for _, entry in exact(books)) for kind in ("prompt_tokens", "tokens_sent")]
    assert sums == sent
    assert sum(line["tokens"]["cached_input"] or 0 for line, _ in exact(books)) > 0


def test_whole_answers_are_never_estimated(books: Books) -> None:
    whole = [line for line in books.lines if line["outcome"] == "ok"]
    assert len(whole) > REQUESTS / 4
    assert not any(line["tokens"]["estimated"] for line in whole)


def test_what_a_worker_sent_is_in_the_log_or_marked(books: Books) -> None:
    """Tokens of a leg that was given up for another one are nobody's; all others are told of."""
    for line in books.lines:
        entry = books.entry(line)
        if entry and entry["tokens_sent"]:
            assert line["tokens"]["input"] is not None, (line, entry)
    told = {(line["request_id"], line["worker"]) for line in books.lines}
    retried = {line["request_id"] for line in books.lines if line["retries"]}
    assert {name for name, worker in books.entries.keys() - told} <= retried


def test_quotas_and_metrics_say_the_same_as_the_log(books: Books) -> None:
    for use in books.status["tenants"]:
        lines = [line for line in books.lines if line["tenant"] == use["tenant"]]
        assert use["quota_used"] == sum(total(line) for line in lines)
        assert use["quota_requests_used"] == sum(line["worker"] != "" for line in lines)
    metrics = books.metrics
    for kind in ("input", "output"):
        counted = metrics.total("relayd_tokens_total", type=kind)
        counted += metrics.total("relayd_tokens_estimated_total", type=kind)
        assert counted == sum(line["tokens"][kind] or 0 for line in books.lines)


def total(line: dict[str, Any]) -> int:
    return (line["tokens"]["input"] or 0) + (line["tokens"]["output"] or 0)


def test_nothing_is_left(books: Books) -> None:
    assert books.status["requests_in_flight"] == 0
    assert [use["in_flight"] for use in books.status["tenants"]] == [0] * len(TENANTS)
    assert [worker["in_flight"] for worker in books.status["workers"]] == [0, 0]
    for name in ("relayd_in_flight", "relayd_upstream_in_flight"):
        assert books.metrics.total(name) == 0
    # Nothing that was reserved is missing: the rates, of 15 million a second, have filled up again.
    for use in books.status["tenants"]:
        assert (use["requests_left"], use["tokens_left"]) == (900_000_000, 900_000_000)
