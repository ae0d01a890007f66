"""One request and its answer, with whatever was asked to go wrong in it.

The order is: faults that come before an answer (delay, hang, close, a status), then the
answer of the engine.  An answer is streamed as the simulation writes tokens, or held
until it is complete.  Faults inside an answer count server-sent events: the one numbered N
is the last that leaves.  For an answer that is not streamed, N = 0 stops after the head
and any other N in the middle of the body.

When the client does not read, tokens are counted, not kept: they become bytes when there
is room for them.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from relayd.mock import errors, faults, ledger
from relayd.mock.asks import Refusal
from relayd.mock.simulation import DONE

if TYPE_CHECKING:
    from relayd.mock.connection import Connection, Request
    from relayd.mock.server import MockServer
    from relayd.mock.simulation import Sequence
    from relayd.mock.writers import Json, Writer

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"

_SLICE_TOKENS = 256  # made into bytes at once, before asking whether the client still reads
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_FAILED = "The engine failed while it was writing this answer."


class Exchange:
    """See the module."""

    __slots__ = (
        "_ended", "_events", "_fault_at", "_fault_kind", "_head_sent", "_opened", "_pending", "_rendered",
        "_silent", "_stalled", "_timer", "connection", "entry", "is_messages", "plan", "request",
        "request_id", "sequence", "server", "writer",
    )  # fmt: skip

    def __init__(self, server: MockServer, connection: Connection, request: Request, request_id: str) -> None:
        self.server = server
        self.connection = connection
        self.request = request
        self.request_id = request_id
        self.is_messages = request.path.startswith("/v1/messages")
        self.entry: ledger.Entry | None = None  # only inference requests have one
        self.plan: faults.Plan = {}
        self.sequence: Sequence | None = None
        self.writer: Writer | None = None
        self._fault_kind = ""
        self._fault_at = -1
        self._timer: asyncio.TimerHandle | None = None
        self._head_sent = self._opened = self._stalled = self._ended = False
        self._silent = 0  # how many events had been sent when pings were last due
        self._events = self._pending = self._rendered = 0

    # --- before the answer

    def begin(self, plan: faults.Plan) -> None:
        """Let happen what was planned, then answer."""
        self.plan = plan
        if plan:
            self._prepare()
            if "delay" in plan:
                self._timer = self.server.loop.call_later(plan["delay"], self._begin)
                return
        self._begin()

    def _prepare(self) -> None:
        if self.entry:
            self.entry.fault = ";".join(f"{kind}={value:g}" for kind, value in self.plan.items())
        for kind in faults.AFTER_EVENTS:
            if kind in self.plan:
                self._fault_kind, self._fault_at = kind, int(self.plan[kind])
        if "drip" in self.plan:
            self.connection.drip(self.plan["drip"])

    def _begin(self) -> None:
        self._timer = None
        plan = self.plan
        if "hang" in plan:
            self._stalled = True
        elif "close" in plan:
            self._end(ledger.FAILED)
            self.connection.close()
        elif "rate_limit" in plan:
            self._rate_limited(plan["rate_limit"])
        elif "status" in plan:
            status = int(plan["status"])
            self.refuse(Refusal(status, errors.reason(status)), ledger.FAILED)
        else:
            self.server.answer(self)

    def _rate_limited(self, seconds: float) -> None:
        head = b"retry-after: %g\r\nretry-after-ms: %d\r\n" % (seconds, round(seconds * 1000))
        self.refuse(Refusal(429, errors.reason(429)), ledger.FAILED, head)

    # --- answers that are whole

    def refuse(self, refusal: Refusal, outcome: str = ledger.REJECTED, headers: bytes = b"") -> None:
        """Answer with an error in the engine's words."""
        engine = self.server.settings.engine
        if self.is_messages:
            error = errors.in_messages(engine, refusal.status, refusal.message, self.request_id)
        else:
            error = errors.in_body(engine, refusal.status, refusal.message, refusal.code, refusal.param)
        self.send(refusal.status, errors.encode(error), headers=headers, outcome=outcome)

    def send_json(self, answer: Json | list[Json]) -> None:
        """Answer 200 with an object."""
        self.send(200, orjson.dumps(answer))

    def send(
        self,
        status: int,
        body: bytes,
        kind: str = JSON,
        headers: bytes = b"",
        outcome: str = ledger.COMPLETED,
    ) -> None:
        """Answer with a status and a body, and end."""
        if self.entry:
            self.entry.status = status
        head = self._head(status, kind, b"content-length: %d\r\n" % len(body), headers)
        if self.request.method == b"HEAD":
            body = b""
        if self._fault_kind and status == 200:
            self._send_spoilt(head, body)
            return
        self.connection.write(head + body)
        self._finish(outcome)

    def _send_spoilt(self, head: bytes, body: bytes) -> None:
        if self._fault_kind == "error":
            self._fault_kind = ""
            self.refuse(Refusal(500, _FAILED), ledger.FAILED)
            return
        self.connection.write(head + (body[: len(body) // 2] if self._fault_at else b""))
        self._strike()

    def _head(self, status: int, kind: str, framing: bytes, headers: bytes = b"") -> bytes:
        request = self.request
        head = b"HTTP/1.1 %d %b\r\n%b%bcontent-type: %b\r\n%b%b" % (
            status,
            _REASONS.get(status, b""),
            self.server.common_headers(),
            self.server.identity_headers(self),
            kind.encode(),
            framing,
            headers,
        )
        if not request.keep_alive:
            return head + b"connection: close\r\n\r\n"
        if request.http_1_0:
            return head + b"connection: keep-alive\r\n\r\n"
        return head + b"\r\n"

    # --- answers that take time

    def accepted(self, writer: Writer, sequence: Sequence) -> None:
        """The engine has the request in its queue."""
        self.writer = writer
        self.sequence = sequence
        if writer.ask.stream:
            events = writer.on_accept()
            if events is not None:
                self._send_stream_head()
                self._send_events(events)

    def tokens_written(self, count: int) -> None:
        """The engine has written `count` more tokens of each answer."""
        if self._ended or self.writer is None:
            return
        if self.entry and self.sequence and self.sequence.generates:
            self.entry.completion_tokens += count * self.sequence.width
        self._pending += count
        if self.writer.ask.stream:
            self.resume()
        elif self._pending == self.writer.reply.count:
            self._send_whole()

    def _send_whole(self) -> None:
        assert self.writer is not None
        assert self.sequence is not None
        if self.entry:
            self.entry.cached_tokens = self.sequence.cached_tokens
        body = self.writer.body()
        if self.sequence.generates and not self._fault_kind:
            self._note_sent(self._pending * self.sequence.width)
        self.server.keep(body)
        self.send_json(body)

    def resume(self) -> None:
        """Send what is pending, as far as the client takes it."""
        if self._stalled or self.writer is None or not self.writer.ask.stream:
            return
        while self._pending and not self._stalled and not self._ended and self.connection.can_take_more:
            self._send_some()
        if self._rendered == self.writer.reply.count and not self._stalled and not self._ended:
            self._close_stream()

    def _send_some(self) -> None:
        assert self.writer is not None
        assert self.sequence is not None
        events = [] if self._opened else self._open()
        left = self._fault_at - self._events - len(events)  # token events before a fault that is due
        count = min(self._pending, _SLICE_TOKENS)
        events += self.writer.tokens(self._rendered, self._rendered + count)
        self._rendered += count
        self._pending -= count
        tokens = count * self.sequence.width
        self._note_sent(tokens if self._fault_at < 0 else max(0, min(left, tokens)))
        self._send_events(events)

    def _note_sent(self, tokens: int) -> None:
        self.server.stats.tokens_sent += tokens
        if self.entry:
            self.entry.tokens_sent += tokens

    def _open(self) -> list[bytes]:
        assert self.writer is not None
        assert self.sequence is not None
        self._opened = True
        if self.entry:
            self.entry.cached_tokens = self.sequence.cached_tokens
        if not self._head_sent:
            self._send_stream_head()
        return self.writer.on_first()

    def _close_stream(self) -> None:
        assert self.writer is not None
        self._send_events(self.writer.closing())
        if self._stalled or self._ended:
            return
        self._end_body()

    def _send_stream_head(self) -> None:
        self._head_sent = True
        request = self.request
        if request.http_1_0:
            request.keep_alive = False  # the end of the connection is the end of the body
        if self.entry:
            self.entry.status = 200
        framing = b"" if request.http_1_0 else b"transfer-encoding: chunked\r\n"
        self.connection.write(self._head(200, EVENT_STREAM, framing, b"cache-control: no-cache\r\n"))
        if self._fault_at == 0:
            self._strike()

    def _send_events(self, events: list[bytes]) -> None:
        if self._stalled or self._ended or not events:
            return
        strikes = 0 <= self._fault_at <= self._events + len(events)
        if strikes:
            events = events[: self._fault_at - self._events]
        self._write_events(events)
        if strikes:
            self._strike()

    def _write_events(self, events: list[bytes]) -> None:
        self._events += len(events)
        self.server.stats.events_sent += len(events)
        if self.entry:
            self.entry.events = self._events
        if self.request.http_1_0:
            self.connection.write(b"".join(events))
        else:
            self.connection.write(b"".join([b"%x\r\n%b\r\n" % (len(event), event) for event in events]))

    def ping(self) -> None:
        """Send a ping if nothing else was sent since this was last called."""
        if self.writer is None or self._stalled or self._ended or not self._head_sent:
            return
        event = self.writer.ping()
        if event and self._silent == self._events and self.connection.can_take_more:
            self._send_events([event])
        self._silent = self._events

    # --- ends

    def _strike(self) -> None:
        """The fault inside the answer is due.  A stalled engine goes on holding its slot."""
        kind = self._fault_kind
        if kind == "error" and self.writer:
            self._fault_at = -1
            self._stop_writing()
            self._write_events(self.writer.error(500, _FAILED))
            self._end_body(ledger.FAILED)
        elif kind == "cut":
            self._end(ledger.FAILED)
            self.connection.close()
        elif kind == "reset":
            self._end(ledger.FAILED)
            self.connection.reset()
        else:
            self._stalled = True

    def _stop_writing(self) -> None:
        if self.sequence and self.sequence.state != DONE:
            self.server.cancel(self.sequence)

    def _end_body(self, outcome: str = ledger.COMPLETED) -> None:
        if not self.request.http_1_0:
            self.connection.write(b"0\r\n\r\n")
        self._finish(outcome)

    def _finish(self, outcome: str) -> None:
        """The answer has been written whole."""
        self._end(outcome)
        self.connection.answered(self.request.keep_alive and "keepalive_close" not in self.plan)

    def client_left(self) -> None:
        """The client closed its connection."""
        if self._ended:
            return
        if self.entry:
            self.server.stats.client_left(self.entry)
        self._end(ledger.CANCELLED)

    def _end(self, outcome: str) -> None:
        self._ended = True
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._stop_writing()
        self.server.ended(self, outcome)
