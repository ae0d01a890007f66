"""Every exchange is accounted for once, and everybody is told the same: the metrics, the log, and limits."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import msgspec
import pytest

from relayd._fast.head import RequestHead
from relayd._fast.leg import RequestBody
from relayd._fast.sink import Sink
from relayd.phases.routes import route_for
from relayd.records import Client, Exchange
from relayd.telemetry.access_log import AccessLog, LogSink
from relayd.telemetry.metrics import OTHER, OUTCOMES
from tests.fast.stage import Stage, chunks, reply, stream
from tests.phases.test_driver import CHUNKED, EVENT_STREAM, JSON, Call, Gateway
from tests.support.dialects import ANTHROPIC, OPENAI

USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
WITH_USAGE = reply(JSON, body=json.dumps({"usage": USAGE}).encode())
NOTHING = {
    "input": None, "output": None, "cached_input": None, "cache_write": None, "reasoning": None,
    "estimated": False,
}  # fmt: skip


def known(gateway: Gateway, *models: str) -> Gateway:
    """Return the gateway, whose workers serve these models."""
    for worker in gateway.workers:
        gateway.fleet.learned(worker, models)
    return gateway


def test_a_line_tells_what_happened():
    gateway = known(Gateway(1), "m")
    call = gateway.ask(OPENAI, model="m")
    call.exchange.tenant, call.exchange.tier = "acme", "gold"
    gateway.stages[0].worker_says(WITH_USAGE)
    (line,) = gateway.log.lines
    assert line.pop("time") > 1.7e9
    assert line.pop("duration_ms") > 0
    assert line == {
        "request_id": call.request_id, "client": "10.9.9.9", "tenant": "acme", "tier": "gold",
        "route": "chat", "model": "m", "worker": "w0", "code": 200, "outcome": "ok", "fault": "",
        "stream": False, "retries": 0, "ttft_ms": None, "bytes": len(WITH_USAGE.partition(b"\r\n\r\n")[2]),
        "tokens": {
            "input": 10, "output": 4, "cached_input": 3, "cache_write": None, "reasoning": 2,
            "estimated": False,
        },
    }  # fmt: skip


def test_a_stream_has_a_first_token():
    gateway = Gateway(1)
    gateway.ask(OPENAI, is_stream=True)
    gateway.stages[0].worker_says(stream(*OPENAI.events("a")))
    line = gateway.log.lines[0]
    assert line["stream"]
    assert 0 < line["ttft_ms"] <= line["duration_ms"]


def test_a_fault_of_relayds_own_has_its_code():
    gateway = Gateway(1)
    gateway.begin(body=b"nonsense")
    gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, body=b"{}", status=b"429 Slow down"))
    faults = [(line["code"], line["fault"], line["worker"]) for line in gateway.log.lines]
    assert faults == [(400, "bad_body", ""), (429, "", "w0")], "a worker's own refusal is not ours"
    assert gateway.log.lines[0]["tokens"] == NOTHING


def test_a_stream_that_was_cut_has_the_code_of_its_error_event():
    gateway = Gateway(1)
    gateway.ask(OPENAI, is_stream=True)
    gateway.stages[0].worker_says(stream(OPENAI.text("a"), last=False))
    gateway.stages[0].worker_resets()
    line = gateway.log.lines[0]
    assert (line["outcome"], line["fault"], line["tokens"]["estimated"]) == (
        "stream_error",
        "answer_cut",
        True,
    )


def test_a_request_over_a_limit_is_counted_by_its_fault():
    gateway = Gateway(1, "limits.per_address.rate=1/min", "limits.per_address.burst=1")
    for _ in range(3):
        gateway.begin("GET", b"/x", body=None, client="203.0.113.9")
    assert gateway.count("relayd_ratelimit_rejections_total", code="address_rate") == 2
    assert gateway.count("relayd_ratelimit_rejections_total") == 2


def test_a_worker_that_is_over_its_own_limit_is_not_counted_as_ours():
    gateway = Gateway(1)
    gateway.ask(OPENAI)
    gateway.stages[0].worker_says(reply(JSON, body=b"{}", status=b"429 Slow down"))
    assert gateway.count("relayd_ratelimit_rejections_total") == 0


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ("/v1/chat/completions", {"input": 10, "output": 10}),
        ("/v1/embeddings", {"input": 10, "output": None}),
        ("/v1/rerank", {"input": 10, "output": None}),
        ("/v1/images/generations", {"input": None, "output": None}),
        ("/v1/audio/speech", {"input": None, "output": None}),
        ("/v1/messages/count_tokens", {"input": None, "output": None}),
        ("/v1/whatever", {"input": None, "output": None}),
    ],
)
def test_only_what_costs_tokens_is_estimated(path, tokens):
    gateway = Gateway(1)
    gateway.begin("POST", path.encode(), body=b'{"input": "%b"}' % (b"x" * 27))
    gateway.stages[0].worker_says(reply(JSON, body=b"y" * 40))
    told = gateway.log.lines[0]["tokens"]
    assert {name: told[name] for name in tokens} == tokens
    assert told["estimated"] is (tokens["input"] is not None)


def test_what_an_exchange_cost_is_handed_on():
    """Limits settle with the numbers that metrics and the log have."""
    gateway = Gateway(1)
    call = gateway.ask(ANTHROPIC)
    usage = {"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 2}
    gateway.stages[0].worker_says(reply(JSON, body=json.dumps({"usage": usage}).encode()))
    leg_of = Stage()
    leg = leg_of.ask()
    leg_of.worker_says(reply(JSON, body=json.dumps({"usage": usage}).encode()))
    gateway.books.began()
    cost = gateway.books.ended(call.exchange, 200, "ok", leg)
    assert (cost.input, cost.output, cost.total, cost.estimated) == (12, 2, 14, False)
    gateway.books.began()
    assert gateway.books.ended(call.exchange, 499, "client_closed", None) is None


# --- what must not be told ----------------------------------------------------------------------------

CANARY = "canary7f3a"


def everything_planted(gateway: Gateway, is_stream: bool) -> Call:
    """Begin a request that has a canary wherever it may have anything but names."""
    secret = CANARY.encode()
    names = (
        b"Authorization", b"X-Api-Key", b"Api-Key", b"Cookie", b"Proxy-Authorization", b"User-Agent",
        b"Referer", b"Traceparent", b"Tracestate", b"X-Forwarded-For", b"Forwarded",
        b"OpenAI-Organization",
        b"X-" + secret, b"Accept", b"Origin",
    )  # fmt: skip
    headers = [(name, (b"Bearer " if name.endswith(b"ization") else b"") + secret) for name in names]
    body = {
        "model": "m", "stream": is_stream, "user": CANARY, CANARY: CANARY, "metadata": {CANARY: [CANARY]},
        "messages": [{"role": "user", "content": CANARY}], "tools": [{"function": {"name": CANARY}}],
    }  # fmt: skip
    target = b"/v1/chat/completions?" + secret + b"=1&key=" + secret
    return gateway.begin("POST", target, *headers, body=json.dumps(body).encode())


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"Set-Cookie: " + CANARY.encode(), b"X-Request-Id: " + CANARY.encode(), JSON,
              body=json.dumps({"text": CANARY, "usage": {"prompt_tokens": 1, CANARY: 2}}).encode()),
        reply(b"X-A: " + CANARY.encode(), JSON, status=b"500 " + CANARY.encode(),
              body=json.dumps({"error": {"message": CANARY, "code": CANARY}}).encode()),
        stream(OPENAI.text(CANARY), "data: [DONE]\n\n"),
        stream(OPENAI.text(CANARY), f'data: {{"error": {{"message": "{CANARY}"}}}}\n\n'),
        b"HTTP/1.1 " + CANARY.encode() + b"\r\n\r\n",
        None,
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_stream", [False, True])
def test_neither_log_nor_metrics_tell_what_was_asked_or_answered(answer, is_stream, tmp_path):
    gateway = known(Gateway(1), "m")
    path = tmp_path / "log"
    with path.open("wb") as file:
        gateway.books.log = AccessLog([LogSink("file", file.fileno())])
        call = everything_planted(gateway, is_stream)
        assert CANARY in gateway.stages[0].sent.decode()
        if answer is None:
            call.leave()
        else:
            gateway.stages[0].worker_says(answer)
            gateway.stages[0].worker_closes()
        gateway.begin("POST", f"/{CANARY}/../x".encode(), (b"X\x00" + CANARY.encode(), b"1"), body=b"{")
        gateway.begin("GET", f"/v1/files/{CANARY}".encode(), body=None).leave()
        gateway.books.log.close()
    text = path.read_text()
    assert text.count("\n") == 3
    assert CANARY not in text
    assert CANARY not in gateway.metrics.exposition().decode()


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\u2028", "x" * 1000, "\u202e"])
def test_a_name_cannot_break_the_line_it_is_in(text):
    gateway = Gateway(1)
    call = gateway.ask(OPENAI, model=text)
    call.exchange.tenant = call.exchange.tier = text + "\ud800"
    call.leave()
    line = gateway.log.lines[0]
    for name in ("model", "tenant", "tier"):
        assert line[name].isprintable()
        assert len(line[name]) <= 300


def test_names_that_were_seen_are_remembered_within_bounds():
    gateway = Gateway(1)
    gateway.books.log = None
    exchange = gateway.begin(body=b"nonsense").exchange

    class Last:
        """Keeps the last line."""

        def write(self, line):
            self.line = msgspec.to_builtins(line)

    gateway.books.log = Last()
    for number in range(10_000):
        exchange.model = f"m\n{number}"
        gateway.books.began()
        gateway.books.ended(exchange, 404, "refused", None)
        assert gateway.books.log.line["model"] == f"m\\u000a{number}"


# --- the ledger ---------------------------------------------------------------------------------------


class Answer:
    """What a worker is going to say, piece by piece, and what it will have cost by its own account."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.read, self.cached, self.reasoned = (
            rng.randrange(1, 5000),
            rng.randrange(0, 900),
            rng.randrange(0, 9),
        )
        self.count = rng.randrange(0, 12)  # of text events
        self.written = self.reasoned + self.count
        self.tells = True
        self.path, self.is_stream = b"/v1/chat/completions", True
        self.pieces: list[bytes] = []
        rng.choice((self.chat, self.plain, self.silent, self.messages, self.gemini))()

    @property
    def told(self) -> dict[str, int | None]:
        """What it says that it cost."""
        reasoned = None if self.path == b"/v1/messages" else self.reasoned
        return {
            "input": self.read, "output": self.written, "cached_input": self.cached, "reasoning": reasoned,
        }  # fmt: skip

    def _stream(self, *events: str) -> None:
        self.pieces = [reply(EVENT_STREAM, CHUNKED)]
        self.pieces += [chunks([event.encode()], last=False) for event in events]
        self.pieces.append(b"0\r\n\r\n")

    def _usage(self) -> str:
        return json.dumps(
            {
                "prompt_tokens": self.read,
                "completion_tokens": self.written,
                "prompt_tokens_details": {"cached_tokens": self.cached},
                "completion_tokens_details": {"reasoning_tokens": self.reasoned},
            }
        )

    def chat(self) -> None:
        usage = f'data: {{"choices":[],"usage":{self._usage()}}}\n\n'
        self._stream(*OPENAI.events(*"x" * self.count)[:-1], usage, "data: [DONE]\n\n")

    def silent(self) -> None:
        self.tells = False
        self._stream(*OPENAI.events(*"x" * self.count))

    def plain(self) -> None:
        self.is_stream = False
        body = reply(JSON, body=f'{{"choices":[{{"text":"{"x" * 50}"}}],"usage":{self._usage()}}}'.encode())
        self.pieces = [body[start : start + 60] for start in range(0, len(body), 60)]

    def messages(self) -> None:
        self.path = b"/v1/messages"
        uncached = {"input_tokens": self.read, "cache_read_input_tokens": self.cached, "output_tokens": 1}
        start = {"type": "message_start", "message": {"usage": uncached}}
        delta = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": self.written}}
        self.read += self.cached
        events = [start, *[json.loads(ANTHROPIC.text("x").partition("data: ")[2])] * self.count, delta]
        events.append({"type": "message_stop"})
        self._stream(*[f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events])

    def gemini(self) -> None:
        self.path = b"/v1beta/models/m:streamGenerateContent"
        texts = []
        for so_far in range(self.count + 1):
            usage = {
                "promptTokenCount": self.read,
                "cachedContentTokenCount": self.cached,
                "thoughtsTokenCount": self.reasoned,
                "candidatesTokenCount": so_far,
            }
            texts.append(f'data: {{"candidates":[],"usageMetadata":{json.dumps(usage)}}}\n\n')
        self._stream(*texts)


ENDINGS = ("complete",) * 6 + ("cut", "leave", "reset at once", "error", "refused")


def play(rng: Random, stage: Stage, answer: Answer, ending: str, call: Call) -> None:
    """Let the worker, or the client, end an exchange in this way."""
    if ending == "error":
        stage.worker_says(reply(JSON, body=b"{}", status=b"500 Oops"))
    elif ending == "refused":
        answer.tells = False
        stage.worker_says(reply(JSON, body=b"{}", status=b"404 No"))
    elif ending == "complete":
        stage.worker_says(*answer.pieces)
    else:
        part = 0 if ending == "reset at once" else rng.randrange(len(answer.pieces))
        stage.worker_says(*answer.pieces[:part])
        if ending == "leave":
            call.leave()
        elif stage.pool.in_flight:
            stage.worker_resets()


def run_one(rng: Random, gateway: Gateway) -> tuple[Answer | None, str]:
    """Run an exchange to its end; return the answer that it got, or was getting, and how that ended."""
    if rng.random() < 0.03:
        gateway.begin(body=b"nonsense")
        return None, "nonsense"
    ending = rng.choice(ENDINGS)
    answer = Answer(rng)
    body = json.dumps({"model": "m", "stream": answer.is_stream}).encode()
    call = gateway.begin("POST", answer.path, body=body)
    for _ in range(3):
        flying = [stage for stage in gateway.stages if stage.pool.in_flight]
        if not flying:
            break
        play(rng, flying[0], answer, ending, call)
        if flying[0].pool.in_flight == 0 and any(stage.pool.in_flight for stage in gateway.stages):
            ending = "complete"  # it has moved to the other worker
    return answer, ending


def test_the_ledger():
    """10,000 requests with random endings: each is in the log once, with what its worker said or a mark.

    And the metrics have the same sums.
    """
    rng = Random(20260301)
    gateway = known(Gateway(2), "m")
    exact = marked = 0
    for number in range(10_000):
        answer, ending = run_one(rng, gateway)
        assert len(gateway.log.lines) == number % 500 + 1, "one line an exchange"
        line = gateway.log.lines[-1]
        tokens = dict(line["tokens"])
        assert line["outcome"] in OUTCOMES
        del tokens["cache_write"]
        if tokens.pop("estimated"):
            marked += 1
            assert tokens["output"] is not None or tokens["input"] is not None
        elif answer is not None and answer.tells and any(count is not None for count in tokens.values()):
            assert tokens == answer.told, (number, ending, line)
            exact += 1
        else:
            assert set(tokens.values()) == {None}, (number, ending, line)
            assert ending != "complete", (number, line)
        if number % 500 == 499:
            settle(gateway)
    assert exact > 4_000
    assert marked > 1_000
    assert gateway.count("relayd_requests_total") == 10_000
    assert gateway.metrics.in_flight == 0
    assert {labels["outcome"] for labels in rows(gateway)} == set(OUTCOMES) - {"upstream_timeout"}


def rows(gateway: Gateway) -> list[dict[str, str]]:
    """Return the labels of the requests that were counted."""
    return [dict(labels) for name, labels in gateway.samples if name == "relayd_requests_total"]


def settle(gateway: Gateway) -> None:
    """Compare what was logged with what the metrics grew by, and begin anew."""
    seen = getattr(gateway, "seen", Counter())
    for line in gateway.log.lines:
        seen.update({kind: count or 0 for kind, count in line["tokens"].items()})
    gateway.seen = seen
    for kind in ("input", "output"):
        counted = gateway.count("relayd_tokens_total", type=kind)
        counted += gateway.count("relayd_tokens_estimated_total", type=kind)
        assert counted == seen[kind], kind
    for kind in ("cached_input", "reasoning"):
        assert gateway.count("relayd_tokens_total", type=kind) == seen[kind], kind
    gateway.log.lines.clear()


# --- names --------------------------------------------------------------------------------------------


def test_a_model_that_no_worker_lists_is_another_one():
    gateway = known(Gateway(1), "m")
    for model in ("m", "made up", "made up too"):
        gateway.ask(OPENAI, model=model)
        gateway.stages[0].worker_says(WITH_USAGE)
    assert gateway.count("relayd_requests_total", model="m") == 1
    assert gateway.count("relayd_requests_total", model=OTHER) == 2
    assert gateway.count("relayd_tokens_total", model=OTHER, type="input") == 20
    assert [line["model"] for line in gateway.log.lines] == ["m", "made up", "made up too"]


def test_a_request_that_no_worker_answered_has_no_worker():
    gateway = Gateway(1)
    exchange = Exchange(
        None, RequestHead("GET", b"/", 1, [(b"Host", b"a")]), Sink(), RequestBody(-2, 0), Client("10.0.0.1"),
        route_for("GET", b"/", False), 0,
    )  # fmt: skip
    gateway.books.began()
    gateway.books.ended(exchange, 503, "refused", None)
    assert gateway.count("relayd_request_duration_seconds_count", model="", worker="") == 1
    assert gateway.log.lines[0]["worker"] == ""
