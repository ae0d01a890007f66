"""Admit, decide, routes and Retry-After: the phases that only look."""

from __future__ import annotations

import pytest

from relayd._fast.head import RequestHead, read_response_head
from relayd._fast.leg import Pool, RequestBody
from relayd._fast.sink import Sink
from relayd._fast.sse import Terminator
from relayd.config import Settings
from relayd.faults import Fault
from relayd.limits.addresses import Addresses
from relayd.phases import admit as phase
from relayd.phases.decide import decide
from relayd.phases.retry_after import number, seconds_asked_for
from relayd.phases.routes import POSTS, route_for
from relayd.records import NEVER, Client, Exchange, Facts, Fleet, Worker
from relayd.routing.round_robin import RoundRobin

NOW = 10**15


def exchange_for(
    *headers, method: str = "POST", target: bytes = b"/v1/chat/completions", minor: int = 1
) -> Exchange:
    """Return an exchange that has just begun."""
    head = RequestHead(method, target, minor, [(b"Host", b"a"), *headers])
    return Exchange(None, head, Sink(), RequestBody(-2, 0), Client("a"), route_for("POST", target, False), 0)


def admit(exchange: Exchange, settings: Settings) -> Fault | None:
    """Admit an exchange as the first of its address."""
    addresses = Addresses(settings.trusted_proxies, settings.limits.per_address, NOW)
    return phase.admit(exchange, settings, addresses)


# --- admit --------------------------------------------------------------------------------------------


def test_admits_a_good_head():
    assert admit(exchange_for((b"Content-Length", b"5")), Settings()) is None


@pytest.mark.parametrize(
    ("options", "headers", "code", "says"),
    [
        ({"method": "TRACE"}, [], "method_not_allowed", "TRACE"),
        ({"minor": -1}, [], "http_version", "HTTP/1.1"),
        ({"target": b"/../a"}, [], "bad_target", "'..'"),
        ({}, [(b"Host", b"b")], "bad_host", "one Host"),
        ({}, [(b"X Y", b"1")], "bad_header", "'X Y'"),
        ({}, [(b"X\xff\n" + b"y" * 100, b"1")], "bad_header", "'X\\\\xff\\n"),
        ({}, [(b"X-A", b"\x00")], "bad_header", "'X-A'"),
        ({}, [(b"Content-Length", b"x")], "bad_length", "length"),
        ({}, [(b"Transfer-Encoding", b"gzip")], "transfer_coding", "chunked"),
        ({}, [(b"Authorization", b"Bearer a, Bearer b")], "bad_credential", "one credential"),
        ({}, [(b"Expect", b"x")], "expectation", "100-continue"),
    ],
)
def test_refuses_a_bad_head_and_says_why(options, headers, code, says):
    fault = admit(exchange_for(*headers, **options), Settings())
    assert fault.code == code
    assert says in fault.message
    assert len(fault.message) < 300
    assert fault.message.isprintable()
    assert "Bearer a" not in fault.message


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False), (10**17, False)])
def test_refuses_a_body_that_says_it_is_too_large(size, fits):
    fault = admit(exchange_for((b"Content-Length", b"%d" % size)), Settings(max_body=100))
    assert (fault is None) is fits
    if not fits:
        assert (fault.status, fault.code) == (413, "body_too_large")


# --- decide -------------------------------------------------------------------------------------------


def fleet(count: int) -> Fleet:
    """Return a fleet of workers that serve anything."""
    return Fleet([Worker(f"w{n}", "http://w", Pool(f"w{n}", b"w", None)) for n in range(count)])


class Recording(RoundRobin):
    """A policy that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked = []

    def pick(self, facts, candidates, now_ns):
        self.asked.append((facts, list(candidates), now_ns))
        return super().pick(facts, candidates, now_ns)


def test_only_open_workers_are_candidates():
    three, policy, exchange = fleet(4), Recording(), exchange_for()
    exchange.facts = Facts("m", 1, 2)
    three.workers[0].open_at_ns = NOW + 1
    three.workers[1].open_at_ns = NOW
    three.workers[3].open_at_ns = NEVER
    assert decide(exchange, three, policy, NOW) is three.workers[1]
    three.workers[3].open_at_ns = 0
    decide(exchange, three, policy, NOW)
    assert policy.asked[-1] == (exchange.facts, [three.workers[n] for n in (1, 2, 3)], NOW)


def test_when_all_rest_all_are_asked():
    two, policy = fleet(2), Recording()
    for worker in two.workers:
        worker.open_at_ns = NEVER
    assert decide(exchange_for(), two, policy, NOW) in two.workers
    assert policy.asked[-1][1] == two.workers


def test_a_single_worker_is_asked_even_while_it_rests():
    one, exchange = fleet(1), exchange_for()
    one.workers[0].open_at_ns = NEVER
    assert decide(exchange, one, RoundRobin(), NOW) is one.workers[0]
    exchange.tried.append(one.workers[0])
    assert decide(exchange, one, RoundRobin(), NOW) is None


def test_who_has_failed_is_not_asked_again():
    three, exchange = fleet(3), exchange_for()
    for _ in range(3):
        worker = decide(exchange, three, RoundRobin(), NOW)
        assert worker not in exchange.tried
        exchange.tried.append(worker)
    assert decide(exchange, three, RoundRobin(), NOW) is None


def test_a_second_choice_must_be_a_good_one():
    two, exchange = fleet(2), exchange_for()
    exchange.tried.append(two.workers[0])
    two.workers[1].open_at_ns = NOW + 1
    assert decide(exchange, two, RoundRobin(), NOW) is None


def test_only_those_that_serve_the_model():
    three, exchange = fleet(3), exchange_for()
    three.learned(three.workers[0], ["m"])
    three.learned(three.workers[1], ["other"])
    three.learned(three.workers[2], ["m"])
    exchange.model = "m"
    picked = set()
    for _ in range(4):
        worker = decide(exchange, three, RoundRobin(), NOW)
        picked.add(worker.name)
        worker.open_at_ns = NOW + 1
    assert picked == {"w0", "w2"}


# --- routes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name", "dialect", "terminator", "body"),
    [
        (b"/v1/chat/completions", "chat", "openai", Terminator.TERMINATOR_DONE, "json"),
        (b"/v1/completions", "completions", "openai", Terminator.TERMINATOR_DONE, "json"),
        (b"/v1/responses", "responses", "responses", Terminator.TERMINATOR_RESPONSE, "json"),
        (b"/v1/messages", "messages", "anthropic", Terminator.TERMINATOR_MESSAGE_STOP, "json"),
        (b"/v1/messages/count_tokens", "count_tokens", "anthropic", Terminator.TERMINATOR_NONE, "json"),
        (b"/v1/embeddings", "embeddings", "openai", Terminator.TERMINATOR_NONE, "json"),
        (b"/v1/rerank", "rerank", "openai", Terminator.TERMINATOR_NONE, "json"),
        (b"/v1/audio/speech", "audio", "openai", Terminator.TERMINATOR_NONE, "json"),
        (b"/v1/audio/transcriptions", "audio", "openai", Terminator.TERMINATOR_NONE, "multipart"),
        (b"/v1/images/generations", "images", "openai", Terminator.TERMINATOR_NONE, "json"),
        (b"/v1/images/edits", "images", "openai", Terminator.TERMINATOR_NONE, "multipart"),
        (b"/v1/whatever", "other", "plain", Terminator.TERMINATOR_NONE, "none"),
        (b"/v1/chat/completions/", "other", "plain", Terminator.TERMINATOR_NONE, "none"),
        (b"/", "other", "plain", Terminator.TERMINATOR_NONE, "none"),
        (b"/v1/messages/batches", "other", "anthropic", Terminator.TERMINATOR_NONE, "none"),
    ],
)
def test_what_a_path_means(path, name, dialect, terminator, body):
    route = route_for("POST", path, False)
    assert (route.name, route.dialect.name, route.terminator, route.body) == (name, dialect, terminator, body)


@pytest.mark.parametrize("path", POSTS)
def test_a_path_means_something_only_when_it_is_posted_to(path):
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert route_for(method, path, False).name == "other"


def test_the_list_of_models():
    for method in ("GET", "HEAD"):
        assert route_for(method, b"/v1/models", False).name == "models"
        assert route_for(method, b"/v1/models", True).dialect.name == "anthropic"
        assert route_for(method, b"/v1/models/x", False).name == "model"
    assert route_for("POST", b"/v1/models", False).name == "other"


def test_an_anthropic_client_is_answered_in_its_words():
    assert route_for("GET", b"/v1/whatever", True).dialect.name == "anthropic"
    assert route_for("POST", b"/v1/chat/completions", True).dialect.name == "openai"


def test_routes_are_constants_with_bounded_names():
    names = {
        route_for(method, path, anthropic).name
        for method in ("GET", "POST")
        for path in [*POSTS, b"/x", b"/v1/models"]
        for anthropic in (False, True)
    }
    assert len(names) < 20
    for path in [*POSTS, b"/x"]:
        assert route_for("POST", path, False) is route_for("POST", path, False)


# --- Retry-After --------------------------------------------------------------------------------------

AT = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT
RETRY_AFTER = [
    ({}, None),
    ({b"retry-after": b"7"}, 7.0),
    ({b"retry-after": b"0"}, 0.0),
    ({b"retry-after": b"1.5"}, 1.5),
    ({b"retry-after-ms": b"1500"}, 1.5),
    ({b"retry-after-ms": b"250.5"}, 0.2505),
    ({b"retry-after-ms": b"100", b"retry-after": b"9"}, 0.1),
    ({b"retry-after-ms": b"soon", b"retry-after": b"9"}, 9.0),
    ({b"retry-after": b"Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
    ({b"retry-after": b"Tue, 14 Nov 2023 22:13:50 +0100"}, 0.0),
    ({b"retry-after": b"Tuesday, 14-Nov-23 22:13:50 GMT"}, 30.0),
    ({b"retry-after": b"Tue, 14 Nov 2023 22:13:00 GMT"}, 0.0),
    ({b"retry-after": b""}, None),
    ({b"retry-after": b"-5"}, None),
    ({b"retry-after": b"soon"}, None),
    ({b"retry-after": b"1e9"}, None),
    ({b"retry-after": b"inf"}, None),
    ({b"retry-after": b"nan"}, None),
    ({b"retry-after": b"."}, None),
    ({b"retry-after": b"\xff"}, None),
    ({b"retry-after": b"\xb2"}, None),
    ({b"retry-after": b"9" * 13}, None),
    ({b"retry-after": b"Tue, 99 Nov 2023 22:13:50 GMT"}, None),
    ({b"retry-after": b"Tue, 14 Nov 99999 22:13:50 GMT"}, None),
    ({b"retry-after": b"Tue, 14 Nov 2023 22:13:50 +9999"}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), RETRY_AFTER)
def test_reads_how_long_a_worker_asks_for(headers, seconds):
    asked = seconds_asked_for(read_response_head(list(headers.items())), AT)
    assert asked == (pytest.approx(seconds) if seconds is not None else None)


def test_without_a_head_nothing_was_asked():
    assert seconds_asked_for(None) is None


def test_the_wall_clock_is_used_when_none_is_given():
    assert seconds_asked_for(read_response_head([(b"Retry-After", b"Thu, 01 Jan 1970 00:00:01 GMT")])) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [(None, None), (b"", None), (b"1.", 1.0), (b".5", 0.5), (b"1.2.3", None), (b"+1", None)],
)
def test_numbers(text, value):
    assert number(text) == value
