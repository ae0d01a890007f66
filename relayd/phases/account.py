"""Phase 7: what did it cost?  Never fails, and runs once for every exchange that began."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from relayd._fast.leg import Leg, now_ns
from relayd.records import NO_FACTS, Exchange, Fleet
from relayd.telemetry.access_log import AccessLog
from relayd.telemetry.metrics import OTHER, Metrics


class Books:
    """Where everything that happened is written down."""

    def __init__(self, metrics: Metrics, fleet: Fleet, log: AccessLog | None, pseudonym: bytes) -> None:
        self.metrics = metrics
        self.fleet = fleet
        self.log = log
        self.pseudonym = pseudonym

    def model_list(self, models: Sequence[str]) -> bytes:
        """Return the body of /v1/models."""
        rows = [{"id": model, "object": "model", "created": 0, "owned_by": "relayd"} for model in models]
        return msgspec.json.encode({"object": "list", "data": rows})

    def began(self) -> None:
        """A request's head has arrived."""
        self.metrics.in_flight += 1

    def connections(self, change: int) -> None:
        """A client has connected, or is gone."""
        self.metrics.connections += change

    def retried(self) -> None:
        """A request moves to another worker."""
        self.metrics.retries += 1

    def client_left(self, phase: str) -> None:
        """A client left while its exchange was in `phase`."""
        self.metrics.disconnects[phase] += 1

    def ended(self, exchange: Exchange, code: int, outcome: str, leg: Leg | None) -> None:
        """An exchange has ended; `leg` is the last one that tried to answer, if one did."""
        metrics, route, model, worker = self.metrics, exchange.route, exchange.model, ""
        metrics.in_flight -= 1
        if model and model not in self.fleet.models:
            model = OTHER
        if leg is None:
            metrics.meters.ended(exchange.arrived_ns, now_ns())
        else:
            worker = leg.pool.name
            facts = exchange.facts
            metrics.meters.answered(
                leg,
                exchange.arrived_ns,
                exchange.ready_ns,
                exchange.leg_ns,
                exchange.decision_ns,
                -1 if facts is NO_FACTS else facts.prompt_tokens,
                route.uncached_input,
            )
        metrics.requests[route.name, model, worker, code, outcome] += 1
        if self.log is not None:
            self._write(exchange, code, outcome, leg)

    def _write(self, exchange: Exchange, code: int, outcome: str, leg: Leg | None) -> None:
        assert self.log is not None
        ended_ns = leg.ended_ns if leg is not None else now_ns()
        given, written, cached, _ = leg.tokens if leg is not None else (None,) * 4
        self.log.write(
            {
                "time": time.time(),
                "request_id": exchange.head.request_id.decode("ascii"),
                "client": exchange.address or exchange.client.address,
                "route": exchange.route.name,
                "model": exchange.model[:128],
                "worker": leg.pool.name if leg is not None else "",
                "code": code,
                "outcome": outcome,
                "stream": exchange.stream,
                "retries": exchange.retries,
                "duration_ms": round((ended_ns - exchange.arrived_ns) / 1e6, 3),
                "bytes": exchange.sink.bytes_written,
                "tokens": {"input": given, "output": written, "cached_input": cached},
            }
        )
