"""Phase 7: what did it cost?  Never fails, and runs once for every exchange that began.

The cost is worked out once, and metrics, the log and limits are told the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time

import msgspec

from relayd._fast.leg import Leg, now_ns
from relayd._fast.meters import Cost, Meters, cost_of
from relayd.records import NO_FACTS, Exchange, Fleet
from relayd.telemetry.access_log import TEXT_AT_MOST, AccessLog, Line, LineTokens, plain
from relayd.telemetry.metrics import Metrics, bump

READS = frozenset({"embeddings", "rerank"})  # routes that cost input and write no tokens
SEEN_AT_MOST = 4096
NO_TOKENS = LineTokens(None, None, None, None, None, False)


class Books:
    """Where everything that happened is written down."""

    def __init__(self, metrics: Metrics, fleet: Fleet, log: AccessLog | None, pseudonym: bytes) -> None:
        self.metrics = metrics
        self.fleet = fleet
        self.log = log
        self.pseudonym = pseudonym
        # Metrics' own dicts: a look-up in each is all that a request of a known kind needs.
        self.pairs = metrics.pairs
        self.requests = metrics.requests
        self.decision = metrics.decision
        self.bookkeeping = metrics.bookkeeping
        self.seen: dict[str, str] = {}  # texts of clients, as the log shows them

    def model_list(self, models: Sequence[str]) -> bytes:
        """Return the body of /v1/models."""
        return msgspec.json.encode({"object": "list", "data": [card_of(model) for model in models]})

    def model_card(self, model: str) -> bytes:
        """Return the body of /v1/models/MODEL."""
        return msgspec.json.encode(card_of(model))

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

    def over_limit(self, code: str) -> None:
        """A request went over a limit of relayd's own; `ended` counts those that were answered so."""
        bump(self.metrics.limited, code)

    def ended(self, exchange: Exchange, code: int, outcome: str, leg: Leg | None) -> Cost | None:
        """An exchange has ended; `leg` is the last one that tried to answer, if one did.

        Called once for each exchange that began.  Returns what it cost, None where no worker was asked.
        """
        self.metrics.in_flight -= 1
        cost = None
        worker = "" if leg is None else leg.pool.name
        meters = self.pairs.get((exchange.model, worker))
        if meters is None:
            meters = self.metrics.meters_for(exchange.model, worker, self.fleet.models)
        if leg is None:
            meters.ended(exchange.arrived_ns, now_ns())
        else:
            cost = cost_for(exchange, leg)
            meters.answered(leg, cost, exchange.arrived_ns, exchange.ready_ns, exchange.leg_ns)
            self.decision.observe_ns(exchange.decision_ns)
        self._count(exchange, meters, code, outcome)
        if self.log is not None:
            self._write(exchange, code, outcome, leg, cost)
        return cost

    def _count(self, exchange: Exchange, meters: Meters, code: int, outcome: str) -> None:
        """Count the ending itself, in the one row that it belongs to."""
        row = (exchange.route.name, meters.model, meters.worker, code, outcome)
        count = self.requests.get(row)
        if count is None:
            self.metrics.count_kind(row)
        else:
            self.requests[row] = count + 1
        if code == 429 and exchange.fault:
            self.over_limit(exchange.fault)

    def _write(self, exchange: Exchange, code: int, outcome: str, leg: Leg | None, cost: Cost | None) -> None:
        assert self.log is not None
        ended_ns = now_ns() if leg is None else leg.ended_ns
        has_first = leg is not None and leg.committed and leg.streaming
        self.log.write(
            Line(
                time(),
                exchange.head.request_id.decode("ascii"),
                exchange.address or exchange.client.address,
                self._shown(exchange.tenant),
                self._shown(exchange.tier),
                exchange.route.name,
                self._shown(exchange.model),
                "" if leg is None else leg.pool.name,
                code,
                outcome,
                exchange.fault,
                exchange.stream,
                exchange.retries,
                ms(ended_ns - exchange.arrived_ns),
                ms(leg.first_ns - exchange.arrived_ns) if leg is not None and has_first else None,
                exchange.sink.bytes_written,
                line_tokens(cost),
            )
        )

    def _shown(self, text: str) -> str:
        """Return what a client chose as it may stand in a line; most of it has been seen before."""
        seen = self.seen.get(text)
        if seen is None:
            seen = plain(text)
            if len(text) <= TEXT_AT_MOST and len(self.seen) < SEEN_AT_MOST:
                self.seen[text] = seen
        return seen


def card_of(model: str) -> dict[str, object]:
    """Return what a list of models says of one."""
    return {"id": model, "object": "model", "created": 0, "owned_by": "relayd"}


def cost_for(exchange: Exchange, leg: Leg) -> Cost:
    """Return what the leg that answered an exchange cost."""
    route = exchange.route
    writes = route.terminator != 0  # on exactly these routes answers are made of tokens
    estimate = -1
    if exchange.facts is not NO_FACTS and (writes or route.name in READS):
        estimate = exchange.facts.prompt_tokens
    return cost_of(leg, estimate, writes, route.uncached_input)


def ms(ns: int) -> float:
    """Return milliseconds, to the microsecond."""
    return (ns // 1000) / 1000


def line_tokens(cost: Cost | None) -> LineTokens:
    """Return a cost as the log tells it."""
    if cost is None:
        return NO_TOKENS
    return LineTokens(
        None if cost.input < 0 else cost.input,
        None if cost.output < 0 else cost.output,
        None if cost.cached_input < 0 else cost.cached_input,
        None if cost.cache_write < 0 else cost.cache_write,
        None if cost.reasoning < 0 else cost.reasoning,
        cost.input_estimated or cost.output_estimated,
    )
