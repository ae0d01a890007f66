"""Phase 7: what did it cost?  Never fails, and runs once for every exchange that began."""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

import msgspec

from relayd._fast.leg import Leg, now_ns
from relayd.records import Exchange, Fleet
from relayd.telemetry.access_log import AccessLog
from relayd.telemetry.metrics import OTHER, Metrics


class Books:
    """Where everything that happened is written down."""

    def __init__(
        self, metrics: Metrics, fleet: Fleet, log: AccessLog | None, pseudonym: bytes
    ) -> None:
        self.metrics = metrics
        self.fleet = fleet
        self.log = log
        self.pseudonym = pseudonym
        self._date = b""
        self._date_s = 0

    def http_date(self) -> bytes:
        """Return the Date value for now, made once a second."""
        now_s = int(time.time())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = formatdate(now_s, usegmt=True).encode("ascii")
        return self._date

    def model_list(self, models: Sequence[str]) -> bytes:
        """Return the body of /v1/models."""
        rows = [{"id": model, "object": "model", "created": 0, "owned_by": "relayd"} for model in models]
        return msgspec.json.encode({"object": "list", "data": rows})

    def began(self) -> None:
        """A request's head has arrived."""
        self.metrics.in_flight += 1

    def retried(self) -> None:
        """A request moves to another worker."""
        self.metrics.retries += 1

    def client_left(self, phase: str) -> None:
        """A client left while its exchange was in `phase`."""
        self.metrics.disconnects[phase] += 1

    def leg_ended(self, leg: Leg, outcome: str) -> None:
        """A leg has ended."""
        if leg.status >= 500 and outcome == "complete":
            outcome = "status_5xx"
        count(self.metrics.legs, (leg.pool.name, outcome))

    def ended(self, exchange: Exchange, code: int, outcome: str, leg: Leg | None) -> None:
        """An exchange has ended; `leg` is the one that answered, if one did."""
        metrics = self.metrics
        now = now_ns() if leg is None else leg.ended_ns
        metrics.in_flight -= 1
        worker = leg.pool.name if leg is not None else ""
        model = exchange.model
        if model and model not in self.fleet.models:
            model = OTHER
        count(metrics.requests, (exchange.route.name, model, worker, code, outcome))
        metrics.duration.observe_ns(now - exchange.arrived_ns)
        if exchange.leg_ns:
            metrics.overhead.observe_ns(now - exchange.ready_ns - exchange.leg_ns)
            metrics.decision.observe_ns(exchange.decision_ns)
        usage: dict[str, int | None] = {}
        if leg is not None and leg.committed:
            usage = self._note_answer(exchange, leg)
        if self.log is not None:
            self._write(exchange, code, outcome, worker, now, usage)

    def _note_answer(self, exchange: Exchange, leg: Leg) -> dict[str, int | None]:
        """Count the tokens of an answer and how fast they came; return what was counted."""
        metrics = self.metrics
        given, written, cached, cache_write = leg.tokens
        if exchange.route.dialect.name == "anthropic" and given is not None:
            given += (cached or 0) + (cache_write or 0)  # its input_tokens leave both out
        metrics.input_tokens += given or 0
        metrics.output_tokens += written or 0
        metrics.cached_input_tokens += cached or 0
        if leg.usage_refused:
            metrics.refused_usage += 1
        if leg.streaming:
            metrics.ttft.observe_ns(leg.first_ns - exchange.arrived_ns)
            tokens = leg.events if written is None else written
            if tokens > 1:
                metrics.tpot.observe_ns((leg.ended_ns - leg.first_ns) // (tokens - 1))
        if written is None and leg.status < 300 and exchange.route.body != "none":
            metrics.estimated_input_tokens += exchange.facts.prompt_tokens if exchange.facts else 0
            metrics.estimated_output_tokens += leg.events if leg.streaming else exchange.sink.bytes_written // 4
            return {"input": None, "output": None}
        return {"input": given, "output": written, "cached_input": cached}

    def _write(
        self, exchange: Exchange, code: int, outcome: str, worker: str, now: int, usage: dict[str, int | None]
    ) -> None:
        assert self.log is not None
        self.log.write(
            {
                "time": time.time(),
                "request_id": exchange.request_id.decode("ascii"),
                "client": exchange.client.address,
                "route": exchange.route.name,
                "model": exchange.model[:128],
                "worker": worker,
                "code": code,
                "outcome": outcome,
                "stream": exchange.stream,
                "retries": exchange.retries,
                "duration_ms": round((now - exchange.arrived_ns) / 1e6, 3),
                "bytes": exchange.sink.bytes_written,
                "tokens": usage,
            }
        )


def count(counts: dict[Any, int], key: Any) -> None:
    """Add one to `counts[key]`."""
    counts[key] = counts.get(key, 0) + 1
