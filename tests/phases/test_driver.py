"""A request goes through its phases: refused, answered, moved to another worker, cut, or left by its client.

The driver is the real one, and so are legs, pools, sinks and books; only the sockets are made of memory.
"""

from __future__ import annotations

import json
import logging

import msgspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from prometheus_client.parser import text_string_to_metric_families

from relayd._fast.head import RequestHead
from relayd._fast.leg import RequestBody, Sweeper, now_ns
from relayd._fast.sink import HttpSink
from relayd._fast.turn import Outlet
from relayd.config import Settings, apply
from relayd.faults import fault
from relayd.phases.account import Books
from relayd.phases.driver import Driver, ns
from relayd.phases.routes import route_for
from relayd.records import Client, Exchange, Fleet, Worker
from relayd.routing.round_robin import RoundRobin
from relayd.telemetry.access_log import Line
from relayd.telemetry.metrics import Metrics
from relayd.upstream.breakers import is_resting
from tests.fast.stage import CHUNKED, EVENT_STREAM, NS, FakeTransport, Stage, chunks, new_turn, reply, stream
from tests.support import sse
from tests.support.dialects import ANTHROPIC, DIALECTS, OPENAI, Dialect, chat_usage
from tests.support.wire import CLOSED, RESET, Answer

pytestmark = pytest.mark.usefixtures("both_ways")

JSON = b"Content-Type: application/json"
EACH = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


class Door:
    """An exchange's door: remembers what it is asked."""

    def __init__(self) -> None:
        self.wanted = 0
        self.ended: list[Exchange] = []

    def want_body(self) -> None:
        self.wanted += 1

    def exchange_ended(self, exchange: Exchange) -> None:
        self.ended.append(exchange)


class Discovery:
    """Counts how often workers that had not told were to be asked."""

    def __init__(self) -> None:
        self.asked = 0

    def ask_missing(self) -> None:
        self.asked += 1


class Log:
    """An access log in memory."""

    def __init__(self) -> None:
        self.lines: list[dict] = []

    def write(self, line: Line) -> None:
        self.lines.append(json.loads(msgspec.json.encode(line)))


class Gateway:
    """A driver, its workers, and its clients."""

    def __init__(self, workers: int = 2, *sets: str, connects: bool = True) -> None:
        self.settings = Settings()
        for assignment in sets:
            self.settings = apply(self.settings, assignment)
        self.sweeper = Sweeper(None)
        self.loop, self.turn = new_turn()
        self.stages = [
            Stage(sweeper=self.sweeper, name=f"w{n}", connects=connects, loop=self.loop, turn=self.turn)
            for n in range(workers)
        ]
        self.workers = [Worker(stage.pool.name, "http://w", stage.pool) for stage in self.stages]
        self.fleet = Fleet(self.workers)
        self.metrics = Metrics(self.workers, lambda worker: not is_resting(worker, now_ns()))
        self.log = Log()
        self.discovery = Discovery()
        self.books = Books(self.metrics, self.fleet, self.log, b"relayd-test")
        self.driver = Driver(
            self.settings, self.fleet, RoundRobin(), self.sweeper, self.books, self.discovery
        )

    def begin(
        self, method: str = "POST", path: bytes = b"/v1/chat/completions", *headers: tuple[bytes, bytes],
        body: bytes | None = b"{}", minor: int = 1, client: str = "10.9.9.9", whole: bool = True,
    ) -> Call:  # fmt: skip
        """Begin an exchange, as a door does; its body has arrived unless `whole` is False."""
        size = [] if body is None else [(b"Content-Length", b"%d" % len(body))]
        head = RequestHead(method, path, minor, [(b"Host", b"relay.test"), *size, *headers])
        call = Call(self, method, minor)
        route = route_for(method, head.path, head.anthropic)
        request = RequestBody(-2 if body is None else len(body), self.settings.max_body)
        now = now_ns()
        call.exchange = Exchange(call.door, head, call.sink, request, Client(client), route, now)
        if body is not None and whole:
            request.feed(body)
            request.finish()
        self.driver.begin(call.exchange)
        return call

    def ask(self, dialect: Dialect, is_stream: bool = False, **more: object) -> Call:
        """Ask in a dialect."""
        headers = [(name.encode(), value.encode()) for name, value in dialect.headers]
        body = json.dumps(dialect.ask(is_stream, **more)).encode()
        return self.begin("POST", dialect.path.encode(), *headers, body=body)

    @property
    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """What the metrics say, by (name, labels)."""
        found = {}
        for family in text_string_to_metric_families(self.metrics.exposition().decode()):
            for sample in family.samples:
                if sample.value:
                    found[(sample.name, tuple(sorted(sample.labels.items())))] = sample.value
        return found

    def count(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        wanted = set(labels.items())
        return sum(
            value for (found, has), value in self.samples.items() if found == name and wanted <= set(has)
        )

    def assert_nothing_left(self) -> None:
        """Fail unless everything that exchanges held was given back."""
        assert self.driver.held_bytes == 0
        assert self.metrics.in_flight == 0
        assert len(self.sweeper) == 0
        for stage in self.stages:
            stage.assert_nothing_left()


class Call:
    """One client's view of its exchange."""

    def __init__(self, gateway: Gateway, method: str, minor: int) -> None:
        self.gateway = gateway
        self.method = method
        self.door = Door()
        self.transport = FakeTransport()
        self.sink = HttpSink(Outlet(self.transport, gateway.turn), minor, method == "HEAD", True)
        self.exchange: Exchange

    @property
    def answer(self) -> Answer:
        """What the client has."""
        answer = Answer(self.method)
        answer.feed(self.transport.written)
        if self.transport.ending:
            answer.feed_end(RESET if self.transport.was_reset else CLOSED)
        return answer

    @property
    def error(self) -> dict:
        """The error in the answer's body."""
        return self.answer.json()["error"]

    @property
    def outcome(self) -> tuple[int, str]:
        """(code, outcome) as the access log tells."""
        assert self.door.ended == [self.exchange]
        line = next(line for line in self.gateway.log.lines if line["request_id"] == self.request_id)
        return line["code"], line["outcome"]

    @property
    def request_id(self) -> str:
        return self.exchange.head.request_id.decode()

    def leave(self) -> None:
        """Close the client's side."""
        self.gateway.driver.client_gone(self.exchange)


def asked(gateway: Gateway) -> list[int]:
    """Return how many requests each worker has received."""
    return [sum(t.written.count(b" HTTP/1.1\r\n") for t in stage.transports) for stage in gateway.stages]


# --- the plain way ------------------------------------------------------------------------------------


@EACH
def test_a_plain_answer(dialect):
    gateway = Gateway()
    call = gateway.ask(dialect)
    body = json.dumps(dialect.whole("hi")).encode()
    gateway.stages[0].worker_says(reply(JSON, body=body))
    assert (call.answer.status, bytes(call.answer.body), call.answer.is_complete) == (200, body, True)
    assert call.answer.header("x-relayd-worker") == "w0"
    assert call.answer.header("x-request-id") == call.request_id
    assert "relayd;dur=" in call.answer.header("server-timing")
    assert call.outcome == (200, "ok")
    gateway.assert_nothing_left()


@EACH
def test_a_stream(dialect):
    gateway = Gateway()
    call = gateway.ask(dialect, is_stream=True)
    text = "".join(dialect.events("a", "b"))
    gateway.stages[0].worker_says(stream(text))
    assert (bytes(call.answer.body).decode(), call.answer.is_complete) == (text, True)
    assert call.outcome == (200, "ok")
    assert gateway.count("relayd_ttft_seconds_count") == 1
    gateway.assert_nothing_left()


def test_what_a_worker_is_told():
    gateway = Gateway(1)
    body = b'{"model":"m", "x": [1]}'
    gateway.begin("POST", b"/v1/chat/completions?a=b", (b"Authorization", b"Bearer k"), (b"X-Mine", b"1"),
                  (b"X-Forwarded-For", b"6.6.6.6"), (b"Accept-Encoding", b"gzip"), body=body)  # fmt: skip
    head, _, sent = gateway.stages[0].sent.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[:2] == [b"POST /v1/chat/completions?a=b HTTP/1.1", b"Host: w"]
    assert sent == body
    for line in (
        b"Authorization: Bearer k",
        b"X-Mine: 1",
        b"X-Forwarded-For: 10.9.9.9",
        b"X-Forwarded-Proto: http",
        b"X-Forwarded-Host: relay.test",
        b"Via: 1.1 relayd-test",
        b"Accept-Encoding: gzip",
        b"Content-Length: 23",
    ):
        assert lines.count(line) == 1, line
    assert b"6.6.6.6" not in head


def test_a_trusted_proxy_is_believed():
    gateway = Gateway(1, "trusted_proxies=10.0.0.0/8")
    given = [(b"X-Forwarded-For", b"1.2.3.4"), (b"X-Forwarded-Proto", b"https")]
    gateway.begin("POST", b"/v1/chat/completions", *given, client="10.9.9.9")
    assert b"X-Forwarded-For: 1.2.3.4, 10.9.9.9\r\nX-Forwarded-Proto: https\r\n" in gateway.stages[0].sent
    for stranger in ("11.0.0.1", "unix", "::1"):
        gateway.begin("POST", b"/v1/chat/completions", *given, client=stranger)
        assert (
            b"X-Forwarded-For: " + stranger.encode() + b"\r\nX-Forwarded-Proto: http\r\n"
            in gateway.stages[0].sent
        )


def test_a_connections_next_request_for_another_host_tells_the_other():
    gateway = Gateway(1)
    client = Client("10.9.9.9")
    for host in (b"one.test", b"two.test", b"one.test"):
        call = Call(gateway, "GET", 1)
        head = RequestHead("GET", b"/x", 1, [(b"Host", host)])
        now = now_ns()
        call.exchange = Exchange(
            call.door, head, call.sink, RequestBody(-2, 0), client, route_for("GET", b"/x", False), now
        )
        gateway.driver.begin(call.exchange)
        assert b"X-Forwarded-Host: " + host + b"\r\n" in gateway.stages[0].sent
        gateway.stages[0].transports[-1].writes.clear()
        gateway.stages[0].worker_says(reply(body=b""))


def test_workers_are_named_only_when_told_to():
    gateway = Gateway(1, "reveal=off")
    call = gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, body=b"{}"))
    assert call.answer.values("x-relayd-worker") == call.answer.values("server-timing") == []
    call = gateway.ask(OPENAI)
    gateway.stages[0].worker_says(b"garbage\r\n\r\n")
    assert "w0" not in call.error["message"]


def test_a_stream_is_asked_for_without_a_coding():
    gateway = Gateway(1)
    gateway.begin("POST", b"/v1/chat/completions", (b"Accept-Encoding", b"gzip"), body=b'{"stream":true}')
    assert b"Accept-Encoding: identity\r\n" in gateway.stages[0].sent


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_these_engines_are_asked_for_usage(engine):
    gateway = Gateway(1, f"engine={engine}")
    call = gateway.ask(OPENAI, is_stream=True)
    sent = json.loads(gateway.stages[0].sent.partition(b"\r\n\r\n")[2])
    assert sent["stream_options"] == {"include_usage": True}
    gateway.stages[0].worker_says(reply(EVENT_STREAM, CHUNKED))
    for event in [*OPENAI.events("a")[:-1], chat_usage(21, 4, 5), "data: [DONE]\n\n"]:
        gateway.stages[0].worker_says(chunks([event.encode()], last=False))
    gateway.stages[0].worker_says(chunks([]))
    assert b"usage" not in bytes(call.answer.body)
    assert call.answer.is_complete
    assert gateway.count("relayd_tokens_total", type="input") == 21
    assert gateway.count("relayd_tokens_total", type="output") == 4
    assert gateway.count("relayd_tokens_total", type="cached_input") == 5


def test_a_request_sends_no_question_of_relayds_own():
    gateway = Gateway(1)
    gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, body=b"{}"))
    assert gateway.discovery.asked == 0
    gateway.begin("GET", b"/v1/models", body=None)
    assert gateway.discovery.asked == 1


def test_a_worker_is_up_as_long_as_it_answers():
    gateway = Gateway(1)
    worker = gateway.workers[0]
    for say, up in [
        (reply(JSON, body=b"{}"), True),
        (None, False),
        (reply(JSON, body=b"{}", status=b"500 Oops"), True),
        (None, False),
        (b"garbage\r\n\r\n", False),
    ]:
        gateway.ask(OPENAI)
        if say is None:
            gateway.stages[0].connects = True
            gateway.stages[0].worker_closes()
            if gateway.stages[0].pool.in_flight:  # the kept connection had died, and was replaced
                gateway.stages[0].worker_closes()
        else:
            gateway.stages[0].worker_says(say)
        assert worker.up is up


# --- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ([(b"X Y", b"1")], b"{}", 400, "bad_header"),
        ([], b"nonsense", 400, "bad_body"),
        ([], b'{"model":7}', 400, "bad_body"),
        ([(b"Content-Encoding", b"br")], b"{}", 415, "body_coding"),
        ([(b"Expect", b"magic")], b"{}", 417, "expectation"),
    ],
)
@EACH
def test_refused_before_any_worker(dialect, headers, body, status, code):
    gateway = Gateway()
    call = gateway.begin("POST", dialect.path.encode(), *headers, body=body)
    assert (call.answer.status, call.answer.is_complete) == (status, True)
    assert call.error["code"] == code
    assert call.answer.header("content-type") == "application/json"
    assert call.answer.header("x-request-id") == call.request_id
    assert call.answer.header("x-should-retry") == "false"
    assert call.answer.header("date", "").endswith("GMT")
    assert bool(call.answer.values("request-id")) is (dialect is ANTHROPIC)
    assert asked(gateway) == [0, 0]
    assert call.outcome == (status, "refused")
    gateway.assert_nothing_left()


def test_a_body_that_says_it_is_too_large():
    gateway = Gateway(1, "max_body=10")
    call = gateway.begin(body=b'{"model": "m"}', whole=False)
    assert (call.answer.status, call.error["code"]) == (413, "body_too_large")
    gateway.assert_nothing_left()


def test_a_head_request_is_refused_without_a_body():
    gateway = Gateway()
    call = gateway.begin("HEAD", b"/../x", body=None)
    assert (call.answer.status, bytes(call.answer.body), call.answer.is_complete) == (400, b"", True)


def test_what_could_not_be_read_as_a_request():
    from relayd.faults import fault

    gateway = Gateway()
    call = Call(gateway, "GET", 1)
    head = RequestHead("GET", b"/", 1, [(b"Host", b"unread")])
    call.exchange = Exchange(
        call.door, head, call.sink, RequestBody(-2, 0), Client("a"), route_for("GET", b"/", False), 0
    )
    gateway.driver.begin_refused(call.exchange, fault("head_timeout"))
    assert (call.answer.status, call.error["code"]) == (408, "head_timeout")
    gateway.assert_nothing_left()


# --- bodies that come later ---------------------------------------------------------------------------


def test_a_json_body_is_gathered_first():
    gateway = Gateway(1)
    call = gateway.begin(body=b'{"model":"m"}', whole=False)
    assert call.door.wanted == 1
    assert gateway.driver.wants_whole_body(call.exchange)
    for part in (b'{"mod', b'el":"m"}'):
        assert asked(gateway) == [0]
        call.exchange.body.feed(part)
        gateway.driver.body_arrived(call.exchange)
    assert asked(gateway) == [0]
    assert gateway.driver.held_bytes == 13
    call.exchange.body.finish()
    gateway.driver.body_arrived(call.exchange)
    assert gateway.stages[0].sent.endswith(b'{"model":"m"}')
    gateway.stages[0].worker_says(reply(body=b"ok"))
    assert call.outcome == (200, "ok")
    gateway.assert_nothing_left()


def test_any_other_body_is_streamed():
    gateway = Gateway(1)
    call = gateway.begin("PUT", b"/files", body=b"abcdef", whole=False)
    assert call.door.wanted == 1
    assert not gateway.driver.wants_whole_body(call.exchange)
    call.exchange.body.feed(b"abc")
    gateway.driver.body_arrived(call.exchange)
    assert gateway.stages[0].sent.endswith(b"\r\n\r\nabc")
    call.exchange.body.feed(b"def")
    call.exchange.body.finish()
    gateway.driver.body_arrived(call.exchange)
    assert gateway.stages[0].sent.endswith(b"abcdef")
    gateway.stages[0].worker_says(reply(body=b"ok"))
    gateway.assert_nothing_left()


def test_a_body_that_grows_too_large_on_the_way():
    gateway = Gateway(1, "max_body=10")
    for path, sent in ((b"/v1/chat/completions", 0), (b"/files", 1)):
        body = RequestBody(-1, 100)
        call = Call(gateway, "POST", 1)
        head = RequestHead("POST", path, 1, [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked")])
        now = now_ns()
        call.exchange = Exchange(
            call.door, head, call.sink, body, Client("a"), route_for("POST", path, False), now
        )
        gateway.driver.begin(call.exchange)
        body.feed(b"x" * 11)
        gateway.driver.body_arrived(call.exchange)
        assert (call.answer.status, call.error["code"]) == (413, "body_too_large")
        assert call.outcome == (413, "refused")
        assert (sum(asked(gateway)) > 0) is bool(sent)
        body.feed(b"more")


def test_all_bodies_together_are_bounded():
    gateway = Gateway(1, "max_held=20")
    calls = []
    for _ in range(3):
        call = gateway.begin(body=b"{" + b" " * 20, whole=False)
        call.exchange.body.feed(b"{       ")
        gateway.driver.body_arrived(call.exchange)
        calls.append(call)
    assert [bool(call.door.ended) for call in calls] == [False, False, True]
    assert (calls[2].answer.status, calls[2].error["code"]) == (503, "overloaded")
    assert calls[2].answer.values("retry-after") == ["1"]
    assert gateway.driver.held_bytes == 16
    for call in calls[:2]:
        call.leave()
    gateway.assert_nothing_left()


def test_a_body_that_cannot_be_had():
    from relayd.faults import fault

    gateway = Gateway(1)
    for path in (b"/v1/chat/completions", b"/files"):
        call = gateway.begin("POST", path, body=b"abcdef", whole=False)
        call.exchange.body.feed(b"abc")
        gateway.driver.body_arrived(call.exchange)
        gateway.driver.body_failed(call.exchange, fault("body_timeout"))
        assert (call.answer.status, call.error["code"]) == (408, "body_timeout")
        assert call.outcome == (408, "refused")
    assert gateway.stages[0].transports[-1].ending == "aborted"
    gateway.assert_nothing_left()


# --- another worker -----------------------------------------------------------------------------------

FAILURES = [
    ("connection closed", lambda stage: stage.worker_closes()),
    ("reset", lambda stage: stage.worker_resets()),
    ("garbage", lambda stage: stage.worker_says(b"garbage\r\n\r\n")),
    ("500", lambda stage: stage.worker_says(reply(JSON, body=b"{}", status=b"500 Oops"))),
    ("429", lambda stage: stage.worker_says(reply(JSON, body=b"{}", status=b"429 Slow"))),
    ("503", lambda stage: stage.worker_says(reply(JSON, b"Retry-After: 1", body=b"{}", status=b"503 Busy"))),
    ("error event", lambda stage: stage.worker_says(stream(OPENAI.preamble, OPENAI.error(500, "no")))),
    ("cut", lambda stage: stage.worker_says(stream(OPENAI.preamble))),
    ("first token", lambda stage: stage.sweeper.sweep(now_ns() + 601 * NS)),
]


@pytest.mark.parametrize(("what", "fail"), FAILURES, ids=[what for what, _ in FAILURES])
def test_a_failure_before_content_moves_unseen(what, fail):
    gateway = Gateway()
    call = gateway.ask(OPENAI, is_stream=True)
    fail(gateway.stages[0])
    assert call.transport.written == b""
    assert asked(gateway) == [1, 1], what
    assert gateway.stages[1].sent.endswith(json.dumps(OPENAI.ask(True)).encode())
    text = "".join(OPENAI.events("a"))
    gateway.stages[1].worker_says(stream(text))
    assert (bytes(call.answer.body).decode(), call.answer.header("x-relayd-worker")) == (text, "w1")
    assert call.outcome == (200, "ok")
    assert gateway.count("relayd_retries_total") == 1
    assert gateway.count("relayd_legs_total") == 2
    gateway.assert_nothing_left()


def test_a_refused_connection_moves():
    gateway = Gateway(connects=False)
    gateway.stages[1].connects = True
    call = gateway.ask(OPENAI)
    gateway.stages[0].pool.dial_failed(3, "connection refused")
    gateway.stages[1].worker_says(reply(JSON, body=b"{}"))
    assert call.outcome == (200, "ok")
    assert gateway.count("relayd_legs_total", worker="w0", outcome="connect") == 1


def test_no_worker_is_asked_twice_and_no_more_than_the_attempts():
    for workers, attempts, legs in [(5, 2, 3), (2, 9, 2), (5, 0, 1), (1, 2, 1)]:
        gateway = Gateway(workers, f"attempts={attempts}")
        call = gateway.ask(OPENAI)
        while not call.door.ended:
            stage = next(one for one in gateway.stages if one.pool.in_flight)
            stage.worker_closes()
        assert sorted(asked(gateway)) == [0] * (workers - legs) + [1] * legs
        assert call.answer.status == 502
        assert call.error["code"] == "worker_reset"
        gateway.assert_nothing_left()


def test_nobody_is_told_to_come_back_too_early():
    gateway = Gateway()
    call = gateway.begin(whole=False)
    gateway.driver.body_failed(call.exchange, fault("overloaded", retry_after_s=1.2001))
    assert call.answer.values("retry-after") == ["2"]
    assert call.answer.values("retry-after-ms") == ["1201"]


def test_the_last_answer_is_passed_on_when_all_fail():
    gateway = Gateway()
    call = gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, body=b'{"first":1}', status=b"500 Oops"))
    gateway.stages[1].worker_says(reply(JSON, b"Retry-After: 7", body=b'{"last":1}', status=b"503 Busy"))
    assert (call.answer.status, bytes(call.answer.body)) == (503, b'{"last":1}')
    assert call.answer.values("retry-after") == ["7"]
    assert call.outcome == (503, "upstream_error")
    gateway.assert_nothing_left()


def test_a_budget_bounds_the_retries():
    gateway = Gateway(2, "retry.budget=0%")
    gateway.driver.budget.tokens = 0.0
    call = gateway.ask(OPENAI)
    gateway.stages[0].worker_closes()
    assert (call.answer.status, asked(gateway)) == (502, [1, 0])
    assert gateway.count("relayd_retries_total") == 0


def test_successes_fill_the_budget():
    gateway = Gateway(1)
    gateway.driver.budget.tokens = 0.0
    for status in (b"200 OK", b"404 No", b"500 Oops", b"429 Slow"):
        gateway.ask(OPENAI)
        gateway.stages[0].worker_says(reply(JSON, body=b"{}", status=status))
    assert gateway.driver.budget.tokens == pytest.approx(0.4)


@pytest.mark.parametrize(("said", "too_late_s", "in_time_s"), [(b"1500", 2, 1), (b"604800000", 3601, 3599)])
def test_a_client_may_say_how_long_it_waits(said, too_late_s, in_time_s):
    for seconds, status in ((in_time_s, 0), (too_late_s, 504)):
        gateway = Gateway(1, "first_token=off")
        call = gateway.begin("GET", b"/x", (b"X-Relayd-Timeout-Ms", said), body=None)
        gateway.sweeper.sweep(now_ns() + seconds * NS)
        assert call.answer.status == status
        if status:
            assert call.error["code"] == ("deadline" if said == b"1500" else "total_timeout")


@pytest.mark.parametrize("said", [b"0", b"-1", b"1.5", b"soon", b"", b"9" * 18])
def test_a_wait_that_is_no_number_is_refused(said):
    call = Gateway(1).begin("GET", b"/x", (b"X-Relayd-Timeout-Ms", said), body=None)
    assert (call.answer.status, call.error["code"]) == (400, "bad_wish")


def test_a_body_whose_beginning_is_gone_cannot_move():
    gateway = Gateway()
    call = Call(gateway, "PUT", 1)
    head = RequestHead("PUT", b"/files", 1, [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked")])
    now = now_ns()
    body = RequestBody(-1, 4)
    call.exchange = Exchange(
        call.door, head, call.sink, body, Client("a"), route_for("PUT", b"/files", False), now
    )
    gateway.driver.begin(call.exchange)
    body.feed(b"too long to keep")
    gateway.stages[0].worker_closes()
    assert (call.answer.status, asked(gateway)) == (502, [1, 0])
    assert call.outcome == (502, "upstream_error")
    gateway.assert_nothing_left()


@EACH
def test_a_fault_comes_in_the_callers_dialect(dialect):
    gateway = Gateway(1)
    call = gateway.ask(dialect)
    gateway.stages[0].worker_closes()
    assert (call.answer.status, call.error["code"]) == (502, "worker_reset")
    assert "w0" in call.error["message"]
    assert call.answer.values("x-should-retry") == []
    assert ("type" in call.answer.json()) is (dialect is ANTHROPIC)


# --- cut ----------------------------------------------------------------------------------------------


@EACH
def test_a_cut_at_a_boundary_ends_with_an_error_event(dialect):
    gateway = Gateway()
    call = gateway.ask(dialect, is_stream=True)
    text = dialect.preamble + dialect.text("a")
    gateway.stages[0].worker_says(stream(text, last=False))
    gateway.stages[0].worker_resets()
    seen = call.answer
    assert (seen.status, seen.is_complete, seen.ending) == (200, False, CLOSED)
    events = sse.read(bytes(seen.body))
    assert bytes(seen.body).decode().startswith(text)
    assert not events.unfinished
    last = events.events[-1]
    assert last.json()["error"]["code"] == "answer_cut"
    assert last.name == ("message" if dialect is OPENAI else "error")
    assert call.outcome == (200, "stream_error")
    assert asked(gateway) == [1, 0], "after content nothing is repeated"
    gateway.assert_nothing_left()


@EACH
def test_a_cut_inside_an_event_adds_nothing(dialect):
    gateway = Gateway()
    call = gateway.ask(dialect, is_stream=True)
    text = dialect.text("a") + dialect.text("b")[:20]
    gateway.stages[0].worker_says(stream(text, last=False))
    gateway.stages[0].worker_resets()
    assert (bytes(call.answer.body).decode(), call.answer.ending) == (text, CLOSED)
    assert call.outcome == (200, "stream_error")


def test_a_cut_http_1_0_stream_is_reset():
    gateway = Gateway()
    call = gateway.begin(body=json.dumps(OPENAI.ask(True)).encode(), minor=0)
    gateway.stages[0].worker_says(stream(OPENAI.text("a"), last=False))
    gateway.stages[0].worker_resets()
    assert (bytes(call.answer.body).decode(), call.answer.ending) == (OPENAI.text("a"), RESET)


def test_a_cut_plain_answer_is_not_completed():
    gateway = Gateway()
    call = gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, b"Content-Length: 100") + b"part")
    gateway.stages[0].worker_closes()
    assert (bytes(call.answer.body), call.answer.ending) == (b"part", CLOSED)
    assert call.outcome == (200, "stream_error")


def test_silence_in_the_middle_is_a_timeout():
    gateway = Gateway()
    call = gateway.ask(OPENAI, is_stream=True)
    gateway.stages[0].worker_says(stream(OPENAI.text("a"), last=False))
    gateway.sweeper.sweep(now_ns() + 301 * NS)
    last = sse.read(bytes(call.answer.body)).events[-1]
    assert last.json()["error"]["code"] == "idle_timeout"
    assert not call.answer.is_complete
    assert call.outcome == (200, "upstream_timeout")
    gateway.assert_nothing_left()


def test_the_whole_time_is_bounded_over_all_workers():
    gateway = Gateway()
    call = gateway.ask(OPENAI)
    gateway.sweeper.sweep(now_ns() + 3601 * NS)
    assert (call.answer.status, call.error["code"]) == (504, "total_timeout")
    assert call.outcome == (504, "upstream_timeout")
    assert asked(gateway) == [1, 0]


def test_an_error_event_behind_content_is_told_in_the_books():
    gateway = Gateway()
    call = gateway.ask(OPENAI, is_stream=True)
    gateway.stages[0].worker_says(stream(OPENAI.text("a"), OPENAI.error(500, "no")))
    assert call.answer.is_complete
    assert call.outcome == (200, "stream_error")


# --- a client that leaves -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["body", "dialing", "waiting", "held", "streaming"])
def test_a_client_that_leaves_ends_everything(at):
    gateway = Gateway(connects=at != "dialing")
    if at == "body":
        call = gateway.begin(body=b'{"model":"m"}', whole=False)
    else:
        call = gateway.ask(OPENAI, is_stream=True)
    if at == "held":
        gateway.stages[0].worker_says(stream(OPENAI.preamble, last=False))
    if at == "streaming":
        gateway.stages[0].worker_says(stream(OPENAI.text("a"), last=False))
    call.leave()
    call.leave()
    if at not in ("body", "dialing"):
        assert gateway.stages[0].transports[0].ending == "aborted"
        assert gateway.count("relayd_legs_total", outcome="cancelled") == 1
    assert call.outcome == (499, "client_closed")
    assert asked(gateway) in ([1, 0], [0, 0])
    phase = "body" if at == "body" else "forward"
    assert gateway.count("relayd_client_disconnects_total", phase=phase) == 1
    assert gateway.workers[0].failures == 0
    if at == "dialing":
        gateway.stages[0].connect()
    gateway.assert_nothing_left()


def test_a_worker_may_finish_without_its_client():
    gateway = Gateway(1, "on_disconnect=drain")
    call = gateway.ask(OPENAI, is_stream=True)
    gateway.stages[0].worker_says(stream(OPENAI.text("a"), last=False))
    seen = call.transport.written
    call.leave()
    assert gateway.stages[0].transports[0].ending == ""
    gateway.stages[0].worker_says(chunks([chat_usage(10, 3).encode(), b"data: [DONE]\n\n"]))
    assert call.transport.written == seen
    assert call.outcome == (200, "client_closed")
    assert gateway.count("relayd_tokens_total", type="output") == 3
    gateway.assert_nothing_left()


def test_but_only_for_so_long():
    gateway = Gateway(1, "on_disconnect=drain")
    call = gateway.ask(OPENAI, is_stream=True)
    gateway.stages[0].worker_says(stream(OPENAI.text("a"), last=False))
    call.leave()
    gateway.sweeper.sweep(now_ns() + 121 * NS)
    assert call.outcome == (499, "client_closed")
    gateway.assert_nothing_left()


def test_a_drained_worker_that_fails_is_not_replaced():
    gateway = Gateway(2, "on_disconnect=drain")
    call = gateway.ask(OPENAI, is_stream=True)
    call.leave()
    gateway.stages[0].worker_closes()
    assert asked(gateway) == [1, 0]
    assert call.outcome == (499, "client_closed")
    gateway.assert_nothing_left()


def test_a_drained_worker_that_answers_badly_is_not_replaced():
    gateway = Gateway(2, "on_disconnect=drain")
    call = gateway.ask(OPENAI, is_stream=True)
    call.leave()
    gateway.stages[0].worker_says(reply(JSON, body=b"{}", status=b"500 Oops"))
    assert asked(gateway) == [1, 0], "nobody waits for an answer"
    assert gateway.count("relayd_retries_total") == 0
    assert call.outcome[1] == "client_closed"
    gateway.assert_nothing_left()


# --- who is left alone --------------------------------------------------------------------------------


def test_five_failures_in_a_row_rest_a_worker():
    gateway = Gateway(2, "attempts=0")
    for number in range(10):
        gateway.ask(OPENAI)
        stage = next(one for one in gateway.stages if one.pool.in_flight)
        assert stage is gateway.stages[number % 2]
        if stage is gateway.stages[0]:
            stage.worker_closes()
        else:
            stage.worker_says(reply(JSON, body=b"{}"))
    assert is_resting(gateway.workers[0], now_ns())
    before = asked(gateway)
    for _ in range(4):
        gateway.ask(OPENAI)
        gateway.stages[1].worker_says(reply(JSON, body=b"{}"))
    assert asked(gateway)[0] == before[0]
    assert gateway.count("relayd_upstream_up", worker="w1") == 1
    assert gateway.count("relayd_upstream_up", worker="w0") == 0


def test_the_last_worker_never_rests():
    gateway = Gateway(1)
    for _ in range(8):
        call = gateway.ask(OPENAI)
        gateway.stages[0].worker_closes()
        assert call.answer.status == 502
    assert asked(gateway) == [8]


NEUTRAL = [
    reply(JSON, body=b"{}", status=b"404 No"),
    reply(JSON, body=b"{}", status=b"429 Slow"),
    reply(JSON, b"Retry-After: 1", body=b"{}", status=b"503 Busy"),
    reply(JSON, body=b"{}", status=b"501 No"),
    reply(JSON, body=b"{}", status=b"200 OK"),
]


@pytest.mark.parametrize("answer", NEUTRAL)
def test_what_says_nothing_of_a_workers_health(answer):
    gateway = Gateway(1)
    for _ in range(10):
        gateway.ask(OPENAI)
        gateway.stages[0].worker_says(answer)
        gateway.workers[0].busy_until_ns = 0
    assert (gateway.workers[0].failures, gateway.workers[0].rests) == (0, 0)


COUNTS = [
    reply(JSON, body=b"{}", status=b"500 Oops"),
    reply(JSON, body=b"{}", status=b"503 Busy"),
    b"garbage\r\n\r\n",
]


@pytest.mark.parametrize("answer", COUNTS)
def test_what_counts_against_a_worker(answer):
    gateway = Gateway(1)
    for _ in range(5):
        gateway.ask(OPENAI)
        gateway.stages[0].worker_says(answer)
    assert gateway.workers[0].rests == 1


def test_a_busy_worker_is_left_alone_as_long_as_it_asked():
    gateway = Gateway(2)
    call = gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, b"Retry-After: 30", body=b"{}", status=b"429 Slow"))
    gateway.stages[1].worker_says(reply(JSON, body=b"{}"))
    assert call.outcome == (200, "ok")
    for _ in range(3):
        gateway.ask(OPENAI)
        gateway.stages[1].worker_says(reply(JSON, body=b"{}"))
    assert asked(gateway) == [1, 4]
    assert 29 * NS < gateway.workers[0].open_at_ns - now_ns() <= 30 * NS


def test_a_success_ends_a_rest_and_says_so(caplog):
    gateway = Gateway(1)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            gateway.ask(OPENAI)
            gateway.stages[0].worker_closes()
        assert "worker w0 rests for 5 s after 5 failures in a row" in caplog.text
        gateway.ask(OPENAI)
        gateway.stages[0].worker_says(reply(JSON, body=b"{}"))
    assert "worker w0 answers again" in caplog.text
    assert gateway.workers[0].open_at_ns == 0


# --- signs of life ------------------------------------------------------------------------------------


@EACH
def test_a_waiting_stream_client_gets_a_sign_of_life_in_its_dialect(dialect):
    gateway = Gateway(1, "sse_keepalive=15s")
    call = gateway.ask(dialect, is_stream=True)
    plain = gateway.ask(dialect)
    gateway.sweeper.sweep(now_ns() + 16 * NS)
    expected = b"event: ping\ndata:" if dialect is ANTHROPIC else b": "
    assert bytes(call.answer.body).startswith(expected)
    assert plain.transport.written == b""


@EACH
def test_a_failure_behind_a_sign_of_life_is_told_as_an_event(dialect):
    gateway = Gateway(1, "sse_keepalive=15s")
    call = gateway.ask(dialect, is_stream=True)
    gateway.sweeper.sweep(now_ns() + 16 * NS)
    gateway.stages[0].worker_says(reply(JSON, body=b'{"error":{"message":"bad prompt"}}', status=b"400 Bad"))
    events = sse.read(bytes(call.answer.body)).events
    assert "400" in events[-1].json()["error"]["message"]
    assert "bad prompt" in events[-1].json()["error"]["message"]
    assert not call.answer.is_complete
    assert call.outcome == (502, "upstream_error")
    gateway.assert_nothing_left()


def test_a_failure_behind_a_sign_of_life_moves_as_well():
    gateway = Gateway(2, "sse_keepalive=15s")
    call = gateway.ask(OPENAI, is_stream=True)
    gateway.sweeper.sweep(now_ns() + 16 * NS)
    gateway.stages[0].worker_closes()
    text = "".join(OPENAI.events("a"))
    gateway.stages[1].worker_says(stream(text))
    assert bytes(call.answer.body).decode() == ": keep-alive\n\n" + text
    assert call.answer.is_complete
    assert call.outcome == (200, "ok")


# --- the list of models -------------------------------------------------------------------------------


def test_models_are_those_that_workers_told():
    gateway = Gateway(2)
    gateway.fleet.learned(gateway.workers[0], ["b", "a"])
    gateway.fleet.learned(gateway.workers[1], ["c"])
    call = gateway.begin("GET", b"/v1/models", body=None)
    said = call.answer.json()
    assert [model["id"] for model in said["data"]] == ["a", "b", "c"]
    assert said["object"] == "list"
    assert asked(gateway) == [0, 0]
    assert call.outcome == (200, "ok")


def test_models_that_nobody_told_are_asked_for():
    gateway = Gateway(2)
    call = gateway.begin("GET", b"/v1/models", body=None)
    gateway.stages[0].worker_says(reply(JSON, body=b'{"data":[]}'))
    assert bytes(call.answer.body) == b'{"data":[]}'


# --- the books ----------------------------------------------------------------------------------------


def test_labels_are_bounded():
    gateway = Gateway(1)
    gateway.fleet.learned(gateway.workers[0], ["m"])
    for number in range(50):
        gateway.begin(body=b'{"model":"made-up-%d"}' % number)
        gateway.stages[0].worker_says(reply(JSON, body=b"{}"))
        gateway.begin("GET", b"/made/up/%d" % number, body=None)
        gateway.stages[0].worker_says(reply(JSON, body=b"{}"))
    gateway.begin(body=b'{"model":"m"}')
    gateway.stages[0].worker_says(reply(JSON, body=b"{}"))
    rows = {key for key in gateway.samples if key[0] == "relayd_requests_total"}
    assert len(rows) == 3
    assert gateway.count("relayd_requests_total", model="_other") == 50
    assert (
        gateway.count("relayd_requests_total", model="m", route="chat", worker="w0", code="200", outcome="ok")
        == 1
    )


def test_the_log_tells_no_secrets():
    gateway = Gateway(1)
    canary = "canary-7f3a"
    call = gateway.begin(
        "POST",
        b"/v1/chat/completions?key=" + canary.encode(),
        (b"Authorization", b"Bearer " + canary.encode()),
        (b"Cookie", canary.encode()),
        body=json.dumps({"model": "m" * 500, "messages": [canary]}).encode(),
    )
    gateway.stages[0].worker_says(reply(JSON, body=json.dumps({"text": canary}).encode()))
    line = gateway.log.lines[0]
    assert canary not in json.dumps(line)
    assert line["request_id"] == call.request_id
    assert (line["client"], line["route"], line["worker"], line["code"]) == ("10.9.9.9", "chat", "w0", 200)
    assert line["model"] == "m" * 256


def test_anthropic_input_includes_what_was_cached():
    gateway = Gateway(1)
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 6,
        "output_tokens": 2,
    }
    gateway.ask(ANTHROPIC)
    gateway.stages[0].worker_says(reply(JSON, body=json.dumps({"type": "message", "usage": usage}).encode()))
    assert gateway.count("relayd_tokens_total", type="input") == 18
    assert gateway.count("relayd_tokens_total", type="cached_input") == 7


def test_without_usage_an_estimate_is_made_and_marked():
    gateway = Gateway(1)
    call = gateway.ask(OPENAI, is_stream=True)
    gateway.stages[0].worker_says(stream(*[OPENAI.text("a")] * 6, "data: [DONE]\n\n"))
    assert gateway.count("relayd_tokens_total") == 0
    assert gateway.count("relayd_tokens_estimated_total", type="input") == call.exchange.body.size // 4
    assert 5 <= gateway.count("relayd_tokens_estimated_total", type="output") <= 7


def test_zero_is_not_absent():
    gateway = Gateway(1)
    gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, body=b'{"usage":{"prompt_tokens":0,"completion_tokens":0}}'))
    assert gateway.count("relayd_tokens_estimated_total") == 0


def test_a_usage_that_is_not_believed_is_counted():
    gateway = Gateway(1)
    gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, body=b'{"usage":{"prompt_tokens":-4,"completion_tokens":2}}'))
    assert gateway.count("relayd_usage_refused_total") == 1


# --- what cannot happen -------------------------------------------------------------------------------


def test_a_mistake_of_ours_is_a_500_and_a_line_in_the_log(caplog, monkeypatch):
    gateway = Gateway(2)
    monkeypatch.setattr(gateway.driver, "policy", None)
    call = gateway.ask(OPENAI)
    assert (call.answer.status, call.error["code"]) == (500, "internal")
    assert call.request_id in caplog.text
    assert "NoneType" not in call.answer.json()["error"]["message"]
    gateway.assert_nothing_left()


def test_an_event_that_cannot_be_judged_is_the_workers_fault(monkeypatch):
    """Whatever a worker sends, its request ends and nothing is left behind."""
    gateway = Gateway(1)
    call = gateway.ask(OPENAI, is_stream=True)
    for event in (b'data: {"type": []}\n\n', b'data: {"error": {"code": "\xc2\xb2"}}\n\n'):
        if not call.door.ended:
            gateway.stages[0].worker_says(stream(event, last=False))
    gateway.stages[0].worker_closes()
    assert call.door.ended == [call.exchange]
    gateway.assert_nothing_left()


def test_a_duration_of_zero_means_never():
    assert ns(0) > 10**18
    assert ns(1.5) == 1_500_000_000


# --- anything, in any order ---------------------------------------------------------------------------

SAYINGS = st.sampled_from(
    [
        reply(JSON, body=b'{"usage":{"prompt_tokens":1}}'),
        reply(JSON, body=b"{}", status=b"500 Oops"),
        reply(JSON, b"Retry-After: 1", body=b"{}", status=b"429 Slow"),
        reply(JSON, body=b"{}", status=b"404 No"),
        reply(JSON, b"Content-Length: 50") + b"part",
        stream(*OPENAI.events("a", "b")),
        stream(OPENAI.preamble, last=False),
        stream(OPENAI.text("a"), last=False),
        chunks([OPENAI.text("b").encode()], last=False),
        chunks([OPENAI.error(500, "no").encode()], last=False),
        chunks([b"data: [DONE]\n\n"]),
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ]
)
BODIES = st.sampled_from(
    [
        b'{"model":"m","stream":true}',
        b'{"model":"m"}',
        b'{"model":"other","max_tokens":9}',
        b"{",
        b"[]",
        b'{"stream":true}',
    ]
)

WHICH = st.integers(0, 1000)


class Day(RuleBasedStateMachine):
    """A day in the life of a gateway."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = Gateway(3, "sse_keepalive=15s", "max_held=1MiB", connects=False)
        self.gateway.fleet.learned(self.gateway.workers[0], ["m"])
        self.calls: list[Call] = []

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls if not call.door.ended]

    @rule(
        body=BODIES,
        whole=st.booleans(),
        path=st.sampled_from([b"/v1/chat/completions", b"/files"]),
        minor=st.integers(0, 1),
    )
    def asks(self, body, whole, path, minor) -> None:
        self.calls.append(self.gateway.begin("POST", path, body=body, whole=whole, minor=minor))

    def pick(self, which: int) -> Call | None:
        """Return one of the open calls.

        What is drawn must not depend on how the day went: retry budgets and rests read the clock.
        """
        calls = self.open_calls
        return calls[which % len(calls)] if calls else None

    @rule(which=WHICH, last=st.booleans())
    def body_comes(self, which, last) -> None:
        call = self.pick(which)
        if call is None or call.exchange.body.complete:
            return
        body = call.exchange.body
        body.feed(b'{"model":"m"}'[: max(0, body.declared - body.size)])
        if last:
            body.finish()
        self.gateway.driver.body_arrived(call.exchange)

    @rule(which=WHICH)
    def client_leaves(self, which) -> None:
        call = self.pick(which)
        if call is not None:
            call.leave()

    @rule(which=WHICH, slow=st.booleans())
    def client_is_slow(self, which, slow) -> None:
        call = self.pick(which)
        if call is not None:
            (call.sink.pause if slow else call.sink.resume)()

    @rule(number=st.integers(0, 2), well=st.booleans())
    def dial_ends(self, number, well) -> None:
        stage = self.gateway.stages[number]
        if stage.pool.dialing and well:
            stage.connect()
        elif stage.pool.dialing:
            stage.pool.dial_failed(3, "connection refused")

    @rule(number=st.integers(0, 2), which=WHICH, said=SAYINGS, ends_turn=st.booleans())
    def worker_says(self, number, which, said, ends_turn) -> None:
        stage = self.gateway.stages[number]
        if stage.connections:
            stage.worker_says(said, on=which % len(stage.connections), ends_turn=ends_turn)

    @rule(number=st.integers(0, 2), which=WHICH, resets=st.booleans())
    def worker_goes(self, number, which, resets) -> None:
        stage = self.gateway.stages[number]
        if stage.connections:
            (stage.worker_resets if resets else stage.worker_closes)(on=which % len(stage.connections))

    @rule(seconds=st.sampled_from([1, 3, 16, 301, 601]))
    def time_passes(self, seconds) -> None:
        self.gateway.sweeper.sweep(now_ns() + seconds * NS)

    @rule()
    def a_turn_passes(self) -> None:
        for stage in self.gateway.stages:
            stage.end_turn()

    @invariant()
    def what_is_open_is_in_flight(self) -> None:
        assert self.gateway.metrics.in_flight == len(self.open_calls)
        assert sum(stage.pool.in_flight for stage in self.gateway.stages) <= len(self.open_calls)
        assert sum(stage.pool.in_flight for stage in self.gateway.stages) == len(self.gateway.sweeper)
        assert self.gateway.driver.held_bytes == sum(call.exchange.held_bytes for call in self.open_calls)

    @invariant()
    def each_ends_once_in_one_way(self) -> None:
        for call in self.calls:
            assert len(call.door.ended) <= 1
            if call.door.ended:
                answer = call.answer
                code, outcome = call.outcome
                assert outcome in (
                    "ok",
                    "refused",
                    "upstream_error",
                    "upstream_timeout",
                    "stream_error",
                    "client_closed",
                )
                assert outcome != "ok" or (
                    answer.is_complete or (call.transport.ending == "" and not call.sink.keep_alive)
                )
                assert code == answer.status or code == 499 or not answer.status or call.exchange.stream

    def teardown(self) -> None:
        for call in self.open_calls:
            call.leave()
        for stage in self.gateway.stages:
            while stage.pool.dialing:
                stage.connect()
            stage.end_turn()
            for on, transport in enumerate(stage.transports):
                if not transport.ending:
                    stage.worker_closes(on=on)
        assert all(call.door.ended for call in self.calls)
        self.gateway.assert_nothing_left()


def test_any_day(caplog):
    caplog.set_level(logging.CRITICAL, "relayd")
    run_state_machine_as_test(
        Day, settings=hypothesis_settings(max_examples=60, stateful_step_count=25, deadline=None)
    )
