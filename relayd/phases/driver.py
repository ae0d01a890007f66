"""Takes an exchange through its phases, and decides what to do when a leg ends.

Everything here is a reaction: a door reports a head, more of a body, or a client that has left; a leg
reports that it ended.  No task runs for a request.  Phases decide; this acts.

    begin -> admit -> authenticate -> limit -> (body) -> decode -> decide -> leg -> leg_ended -> account
                                           ^                  |
                                           +--- another target, before the commit point

What an exchange holds is given back in `_finish`, which runs exactly once, whatever happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from math import ceil

from relayd._fast.head import RequestHead, http_date
from relayd._fast.leg import Leg, LegOutcome, LegState, Limits, Sweeper, Terms, now_ns
from relayd._fast.sink import Sink, SinkState
from relayd.auth.authenticator import Authenticator
from relayd.config import Settings
from relayd.faults import LEG_ROWS, Fault, fault
from relayd.limits.addresses import Addresses
from relayd.limits.tenants import Limiter
from relayd.phases.account import Books
from relayd.phases.admit import admit
from relayd.phases.authenticate import authenticate
from relayd.phases.decide import decide
from relayd.phases.decode import decode, has_seen_enough, is_held_to_model, permit, rename_model, visible
from relayd.phases.limit import limit, reserve, settle
from relayd.phases.retry_after import seconds_asked_for
from relayd.records import Exchange, Fleet, Route, Worker
from relayd.routing.base import Policy
from relayd.upstream.breakers import Rests, RetryBudget
from relayd.upstream.discovery import Discovery

log = logging.getLogger("relayd")

# As plain numbers: an enum's member is a slow thing to compare with.
COMPLETE = int(LegOutcome.LEG_COMPLETE)
LEG_ENDED = int(LegState.LEG_ENDED)
SINK_NEW, SINK_STARTED = int(SinkState.SINK_NEW), int(SinkState.SINK_STARTED)

NS = 1_000_000_000
MS = 1_000_000
DRAIN_AT_MOST_S = 120.0  # for a worker that may finish without its client


class Driver:
    """One gateway's requests."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        policy: Policy,
        sweeper: Sweeper,
        books: Books,
        discovery: Discovery,
        authenticator: Authenticator | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        timeouts = settings.resilience.timeouts
        self.settings = settings
        self.fleet = fleet
        self.policy = policy
        self.sweeper = sweeper
        self.books = books
        self.discovery = discovery
        self.limits = Limits(*(ns(getattr(timeouts, name)) for name in timeouts.__struct_fields__))
        self.total_ns = ns(timeouts.total)
        self.terms: dict[Route, Terms] = {}
        self.asks_for_usage = settings.engine in ("vllm", "sglang")
        self.rests = Rests(settings.resilience.breaker)
        self.budget = RetryBudget(settings.resilience.retry.budget, now_ns())
        self.addresses = Addresses(
            settings.trusted_proxies,
            settings.limits.per_address,
            now_ns(),
            settings.auth.failures if authenticator is not None else None,
        )
        self.authenticator = authenticator
        self.limiter = limiter
        self.wall: Callable[[], float] = time.time
        self.max_body = settings.max_body
        self.max_held = settings.max_held
        self.reveal = settings.reveal
        self.held_bytes = 0
        self.draining = False

    # -- what a door reports

    def begin(self, exchange: Exchange) -> None:
        """Take an exchange whose head has arrived, and maybe its body."""
        try:
            self.books.began()
            refused = admit(exchange, self.settings, self.addresses)
            if refused is not None:
                self.fail(exchange, refused)
            elif self.authenticator is not None:
                self._authenticate(exchange, self.authenticator)
            else:
                self._limit(exchange)
        except Exception:
            self._give_up(exchange)

    def _authenticate(self, exchange: Exchange, authenticator: Authenticator) -> None:
        exchange.phase = "authenticate"
        answer = authenticate(exchange, authenticator, self.addresses, exchange.arrived_ns, self.wall())
        if answer is None:
            self._limit(exchange)
        elif isinstance(answer, Fault):
            self.fail(exchange, answer)
        elif not authenticator.when_known(partial(self._keys_came, exchange)):
            self._keys_came(exchange)

    def _keys_came(self, exchange: Exchange) -> None:
        """Look again at a credential whose key was not known; whoever has left meanwhile is forgotten."""
        if exchange.ended or self.authenticator is None:
            return
        try:
            answer = authenticate(exchange, self.authenticator, self.addresses, now_ns(), self.wall())
            if answer is None:
                exchange.ready_ns = now_ns()
                self._limit(exchange)
            else:
                waits = fault("keys_missing", retry_after_s=1.0)  # for other keys, after a reload
                self.fail(exchange, answer if isinstance(answer, Fault) else waits)
        except Exception:
            self._give_up(exchange)

    def _limit(self, exchange: Exchange) -> None:
        if self.limiter is not None:
            refused = limit(exchange, self.limiter, now_ns(), self.wall())
            if refused is not None:
                return self.fail(exchange, refused)
        if exchange.route.name == "models":
            return self._answer_models(exchange)
        if exchange.route.name == "model" and self.fleet.declared:
            return self._answer_model(exchange)
        return self._gather(exchange)

    def _give_up(self, exchange: Exchange) -> None:
        """End an exchange on which relayd itself failed; what went wrong is in the log."""
        log.exception("relayd failed on request %s", exchange.head.request_id)
        if exchange.leg is not None:
            exchange.leg.cancel()
            exchange.leg = None
        self.fail(exchange, fault("internal"))

    def _gather(self, exchange: Exchange) -> None:
        """Decode the body if enough of it is there, and ask for the rest."""
        body = exchange.body
        exchange.phase = "body"
        if body.size > self.max_body:
            return self.body_failed(exchange, too_large(self.settings))
        if has_seen_enough(exchange, self.fleet.renames or is_held_to_model(exchange)):
            self._decode(exchange)
        if not body.complete and not exchange.ended:
            exchange.door.want_body()
        return None

    def begin_refused(self, exchange: Exchange, refused: Fault) -> None:
        """Answer what could not be read as a request."""
        self.books.began()
        self.fail(exchange, refused)

    def body_arrived(self, exchange: Exchange) -> None:
        """More of the body is there, or all of it."""
        try:
            self._body_arrived(exchange)
        except Exception:
            self._give_up(exchange)

    def _body_arrived(self, exchange: Exchange) -> None:
        if exchange.body.size > self.max_body:
            return self.body_failed(exchange, too_large(self.settings))
        if not self._hold(exchange):
            return self.body_failed(exchange, fault("overloaded", retry_after_s=1.0))
        if exchange.phase == "body" and has_seen_enough(
            exchange, self.fleet.renames or is_held_to_model(exchange)
        ):
            exchange.ready_ns = now_ns()
            self._decode(exchange)
        return None

    def _hold(self, exchange: Exchange) -> bool:
        """Count what is held of the body; return False when it is too much for all of them together."""
        held = exchange.body.keep if exchange.body.lost else exchange.body.size
        self.held_bytes += held - exchange.held_bytes
        exchange.held_bytes = held
        return self.held_bytes <= self.max_held

    def body_failed(self, exchange: Exchange, refused: Fault) -> None:
        """The body cannot be had: it is malformed, too large, or has stopped coming."""
        if exchange.leg is not None:
            self._cancel(exchange)
        self.fail(exchange, refused)

    def client_gone(self, exchange: Exchange) -> None:
        """The client has left: nobody waits for the answer."""
        if exchange.ended:
            return
        self.books.client_left(exchange.phase)
        leg = exchange.leg
        if leg is not None and self.settings.on_disconnect == "drain" and leg.sent_ns:
            deadline = now_ns() + int(DRAIN_AT_MOST_S * NS)
            exchange.sink = Sink()
            exchange.outcome = "client_closed"
            leg.go_on_without_client(exchange.sink, deadline)
            return
        if leg is not None:
            self._cancel(exchange)
        self._finish(exchange, 499, "client_closed", leg)

    def stopped(self, exchange: Exchange) -> None:
        """End what is under way when relayd stops, and tell its client as far as it can be told."""
        if exchange.ended:
            return None
        why, leg = fault("draining", retry_after_s=1.0), exchange.leg
        if leg is None:
            return self.fail(exchange, why)
        if leg.committed:
            self._tell_cut(exchange, leg, why)
        self._cancel(exchange)
        if leg.committed:
            return self._finish(exchange, leg.status, "stream_error", leg)
        return self.fail(exchange, why, leg)

    # -- decode, decide, forward

    def wants_whole_body(self, exchange: Exchange) -> bool:
        """True while the body is gathered here and not yet passed on."""
        return exchange.phase in ("admit", "authenticate", "body")

    def _decode(self, exchange: Exchange) -> None:
        exchange.phase = "decide"
        exchange.strip_usage = self.asks_for_usage
        if not self._hold(exchange):
            return self.body_failed(exchange, fault("overloaded", retry_after_s=1.0))
        refused = decode(exchange, self.max_body)
        if refused is None and (self.fleet.declared or exchange.allowed is not None):
            refused = permit(exchange, self.fleet)
        if refused is None and self.limiter is not None:
            refused = reserve(exchange, self.limiter, now_ns(), self.wall())
        if refused is not None:
            return self.fail(exchange, refused)
        started = now_ns()
        worker = decide(exchange, self.fleet, self.policy, started)
        exchange.decision_ns = now_ns() - started
        if worker is None:
            return self.fail(exchange, fault("no_worker", retry_after_s=1.0))
        return self._forward(exchange, worker)

    def _forward(self, exchange: Exchange, worker: Worker) -> None:
        """Begin a leg on `worker`."""
        head, body, facts, client = exchange.head, exchange.body, exchange.facts, exchange.client
        pool = worker.pool
        if self.fleet.renames:
            refused = rename_model(exchange, self.fleet.name_at(exchange.model, worker), self.max_body)
            if refused is not None:
                return self.fail(exchange, refused)
        exchange.phase = "forward"
        exchange.tried.append(worker)
        exchange.next_worker = None
        if worker.rests:
            self.rests.picked(worker, now_ns())
        lines = client.lines
        if lines is None or client.host != head.host:
            lines = self._client_lines(exchange)
        if worker.lines:
            lines = lines + worker.lines
        # Where relayd authenticates, a client's credential is for relayd alone.
        passes = self.authenticator is None and not worker.has_key
        length = body.size if body.complete and body.declared != -2 else body.declared
        leg = Leg(
            pool,
            exchange.sink,
            self,
            exchange,
            head.for_worker(pool.host, lines, exchange.stream, passes, length, worker.line_names),
            body,
            self.terms.get(exchange.route) or self._make_terms(exchange.route),
            self._answer_lines(exchange, worker),
            head.request_id,
        )
        leg.expect(
            head.method == "HEAD",
            exchange.strip_usage,
            exchange.stream,
            facts.prompt_tokens,
            facts.output_tokens,
            exchange.ready_ns,
            exchange.arrived_ns + self._patience_ns(head),
        )
        exchange.leg = leg
        leg.begin()
        return None

    def _patience_ns(self, head: RequestHead) -> int:
        """Return how long a request may take, all in all: as the settings say, or as its client will wait."""
        return min(self.total_ns, head.timeout_ms * MS) if head.timeout_ms else self.total_ns

    def _answer_lines(self, exchange: Exchange, worker: Worker) -> bytes:
        """Return the lines that relayd adds to an answer's head."""
        lines = worker.line if self.reveal else b""
        if self.limiter is not None and exchange.grant is not None:
            lines += self.limiter.lines(exchange.grant, now_ns())
        return lines

    def _make_terms(self, route: Route) -> Terms:
        """Return what is the same for all legs of `route`, and keep it: routes are constants."""
        settings, dialect = self.settings, route.dialect
        keepalive_ns = ns(settings.sse_keepalive) if settings.sse_keepalive else 0
        terms = Terms(
            self.limits,
            self.sweeper,
            route.terminator,
            settings.reveal,
            dialect.name == "anthropic",
            keepalive_ns,
            dialect.keepalive,
        )
        self.terms[route] = terms
        return terms

    def _client_lines(self, exchange: Exchange) -> bytes:
        """Return the lines about the client, and keep them if its next request will need the same."""
        head, client = exchange.head, exchange.client
        believed = self.addresses.trusts(client.address)
        address, proto = client.address.encode("ascii", "replace"), b"http"
        if believed and head.forwarded_for is not None:
            address = head.forwarded_for + b", " + address
        if believed and head.forwarded_proto is not None:
            proto = head.forwarded_proto
        lines = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\nVia: 1.1 %b\r\n" % (
            address, proto, head.host or b"-", self.books.pseudonym)  # fmt: skip
        if not believed:
            client.host, client.lines = head.host, lines
        return lines

    # -- what a leg asks and reports

    def judge_event(self, leg: Leg, event: bytes) -> int:
        """Return the EventKind of a held event."""
        exchange: Exchange = leg.exchange
        return exchange.route.dialect.judge(event)

    def try_elsewhere(self, leg: Leg) -> bool:
        """Return True if this failed answer is dropped because another worker will be asked."""
        exchange: Exchange = leg.exchange
        self._note_wishes(leg)
        if exchange.outcome:
            return False  # its client has left: nobody needs another answer
        exchange.next_worker = self._another(exchange)
        return exchange.next_worker is not None

    def _another(self, exchange: Exchange) -> Worker | None:
        """Return a worker for one more leg, within the attempts and the budget, or None."""
        if exchange.retries >= self.settings.resilience.retry.attempts or exchange.body.lost:
            return None
        now = now_ns()
        worker = decide(exchange, self.fleet, self.policy, now)
        if worker is None or not self.budget.take(now):
            return None
        exchange.retries += 1
        self.books.retried()
        return worker

    def leg_ended(self, leg: Leg) -> None:
        """Act on the end of a leg: account, go on elsewhere, or tell the client."""
        exchange: Exchange = leg.exchange
        worker = exchange.tried[-1]
        exchange.leg = None
        exchange.leg_ns += leg.took_ns
        try:
            if leg.went_well and not (worker.failures or worker.rests or exchange.outcome):
                worker.up = True  # as nearly all end; the long way would come to the same
                self.budget.succeeded()
                self._finish(exchange, leg.status, "ok", leg)
            elif leg.outcome == COMPLETE:
                self._note_health(leg, worker)
                self._complete(exchange, leg)
            else:
                self._note_health(leg, worker)
                self._go_on_after(exchange, leg)
        except Exception:
            self._give_up(exchange)

    def _go_on_after(self, exchange: Exchange, leg: Leg) -> None:
        """Act on a leg that failed."""
        row = LEG_ROWS[leg.outcome]
        if exchange.outcome == "client_closed":
            return self._finish(exchange, 499, "client_closed", leg)
        if leg.committed:
            return self._cut(exchange, leg, self._fault_of(exchange, leg))
        worker = exchange.next_worker
        if worker is None and row.retry:
            worker = self._another(exchange)
        if worker is not None:
            return self._forward(exchange, worker)
        return self.fail(exchange, self._fault_of(exchange, leg), leg)

    def _complete(self, exchange: Exchange, leg: Leg) -> None:
        if exchange.sink.state == SINK_STARTED:
            # Our own keep-alive had started a stream, and the worker's answer is not one.
            return self.fail(exchange, late_fault(leg), leg)
        if leg.status < 500 and leg.status != 429:
            self.budget.succeeded()
        return self._finish(exchange, leg.status, exchange.outcome or outcome_of(leg), leg)

    def _fault_of(self, exchange: Exchange, leg: Leg) -> Fault:
        row = LEG_ROWS[leg.outcome]
        if row.code == "total_timeout" and self._patience_ns(exchange.head) < self.total_ns:
            return fault("deadline")
        worker = self.fleet.by_pool[leg.pool.name]
        return fault(row.code, leg.reason, worker=worker.name if self.settings.reveal else "")

    def _note_health(self, leg: Leg, worker: Worker) -> None:
        """Tell the breaker what this leg says about its worker."""
        row = LEG_ROWS[leg.outcome]
        if leg.response is not None:
            worker.up = True
        elif row.unreached:
            worker.up = False
        if leg.outcome == COMPLETE and leg.status < 500 and not leg.error_passed:
            if self.rests.succeeded(worker):
                log.warning("worker %s answers again", worker.name)
        elif is_neutral(leg, row.counts):
            self.rests.said_nothing(worker)
        elif self.rests.failed(worker, now_ns()):
            rest_s = (worker.resting_until_ns - now_ns()) / NS
            log.warning(
                "worker %s rests for %.0f s after %d failures in a row: %s",
                worker.name, rest_s, worker.failures, leg.reason or f"it answered {leg.status}",
            )  # fmt: skip

    def _note_wishes(self, leg: Leg) -> None:
        """Leave a worker alone for as long as it asked to be."""
        asked = seconds_asked_for(leg.response)
        if asked is not None and leg.status in (429, 503):
            self.rests.busy(self.fleet.by_pool[leg.pool.name], asked, now_ns())

    # -- ends

    def _cancel(self, exchange: Exchange) -> None:
        leg = exchange.leg
        if leg is None or leg.state == LEG_ENDED:
            return
        leg.cancel()
        exchange.leg = None
        exchange.leg_ns += leg.took_ns
        self.rests.said_nothing(self.fleet.by_pool[leg.pool.name])

    def _cut(self, exchange: Exchange, leg: Leg, why: Fault) -> None:
        self._tell_cut(exchange, leg, why)
        timed_out = why.status == 504
        self._finish(exchange, leg.status, "upstream_timeout" if timed_out else "stream_error", leg)

    def _tell_cut(self, exchange: Exchange, leg: Leg, why: Fault) -> None:
        """The answer is under way and will not be complete: make the client see it."""
        exchange.fault = why.code
        if leg.at_boundary and exchange.sink.can_append():
            exchange.sink.write(
                exchange.route.dialect.error_event(why, exchange.head.request_id.decode("ascii"))
            )
        exchange.sink.abort()

    def fail(self, exchange: Exchange, why: Fault, leg: Leg | None = None) -> None:
        """End the exchange with a fault, in whatever way the client can still be told."""
        if exchange.ended:
            return
        exchange.fault = why.code
        sink, dialect = exchange.sink, exchange.route.dialect
        outcome = {"client": "refused", "relayd": "refused"}.get(why.kind.whose, "upstream_error")
        if why.status == 504:
            outcome = "upstream_timeout"
        if sink.state == SINK_NEW:
            body = dialect.error_body(why, exchange.head.request_id.decode("ascii"))
            self.answer(exchange, why.status, body,
                        self._fault_lines(exchange, why))  # fmt: skip
        elif sink.state == SINK_STARTED:
            if sink.can_append() and exchange.stream:
                sink.write(dialect.error_event(why, exchange.head.request_id.decode("ascii")))
            sink.abort()
        self._finish(exchange, why.status, outcome, leg)

    def _fault_lines(self, exchange: Exchange, why: Fault) -> bytes:
        lines = b"Content-Type: application/json\r\nX-Request-Id: %b\r\n" % exchange.head.request_id
        if exchange.route.dialect.name == "anthropic":
            lines += b"Request-Id: %b\r\n" % exchange.head.request_id
        if why.retry_after_s is not None:
            lines += b"Retry-After: %d\r\nRetry-After-Ms: %d\r\n" % (
                max(1, ceil(why.retry_after_s)), ceil(why.retry_after_s * 1000))  # fmt: skip
        elif why.kind.whose == "client":
            lines += b"X-Should-Retry: false\r\n"
        if why.status == 401:
            lines += b'WWW-Authenticate: Bearer realm="relayd"'
            lines += b"\r\n" if why.code == "credential_missing" else b', error="invalid_token"\r\n'
        if self.limiter is not None and exchange.grant is not None:
            lines += self.limiter.lines(exchange.grant, now_ns())
        elif self.limiter is not None and exchange.tenant:
            lines += self.limiter.lines_of(exchange.tenant, exchange.tier, now_ns())
        return lines

    def answer(self, exchange: Exchange, status: int, body: bytes, lines: bytes) -> None:
        """Write an answer of relayd's own."""
        sink = exchange.sink
        sink.start(status, b"Date: %b\r\n" % http_date() + lines, len(body))
        sink.write(body)
        sink.end()

    def _answer_models(self, exchange: Exchange) -> None:
        """List the models that the workers told of; pass the question on if none did."""
        self.discovery.ask_missing()
        known = sorted(visible(exchange, self.fleet))
        if not known and exchange.allowed is None:
            return self._decode(exchange)
        return self._answer_json(exchange, self.books.model_list(known))

    def _answer_model(self, exchange: Exchange) -> None:
        """Tell of a model that the settings declare: a worker may have another name for it."""
        refused = decode(exchange, self.max_body)
        exchange.asked = exchange.model
        refused = refused or permit(exchange, self.fleet)
        if refused is not None:
            return self.fail(exchange, refused)
        return self._answer_json(exchange, self.books.model_card(exchange.asked))

    def _answer_json(self, exchange: Exchange, body: bytes) -> None:
        lines = b"Content-Type: application/json\r\nX-Request-Id: %b\r\n" % exchange.head.request_id
        self.answer(exchange, 200, body, lines)
        return self._finish(exchange, 200, "ok")

    def _finish(self, exchange: Exchange, code: int, outcome: str, leg: Leg | None = None) -> None:
        """Give back what the exchange held, account for it, and let its door go on."""
        if exchange.ended:
            return
        exchange.ended = True
        self.held_bytes -= exchange.held_bytes
        exchange.phase = "ended"
        started = now_ns()
        cost = self.books.ended(exchange, code, outcome, leg)
        if self.limiter is not None and exchange.grant is not None:
            served = leg is not None and leg.committed and leg.status < 400
            used = cost if served or (cost is not None and cost.estimated) else None
            settle(exchange, used, self.limiter, now_ns(), self.wall())
        self.books.bookkeeping.observe_ns(now_ns() - started)
        exchange.door.exchange_ended(exchange)


def too_large(settings: Settings) -> Fault:
    """Return the fault of a body that is larger than max_body."""
    return fault("body_too_large", f"{settings.max_body} bytes")


def ns(seconds: float) -> int:
    """Return a duration in nanoseconds; 0, which means never, becomes a very long time."""
    return int(seconds * NS) if seconds else 1 << 62


def outcome_of(leg: Leg) -> str:
    """Return how an answer that was passed on whole went, for the metrics."""
    if leg.error_passed:
        return "stream_error"
    if leg.status >= 500:
        return "upstream_error"
    return "ok" if leg.status < 400 else "refused"


def is_neutral(leg: Leg, counts: bool) -> bool:
    """True if the end of a leg says nothing about its worker's health."""
    if leg.status == 429:
        return True
    if leg.status == 503 and seconds_asked_for(leg.response) is not None:
        return True  # back-pressure: it works, and has too much to do
    return not counts and (leg.status < 500 or leg.status == 501)


def late_fault(leg: Leg) -> Fault:
    """Return the fault for an answer that came after a keep-alive had promised a stream."""
    said = leg.held_answer[:512].decode("utf-8", "replace").strip()
    return fault("worker_error", f"answered {leg.status}: {said}", worker=leg.pool.name)
