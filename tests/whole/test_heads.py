"""Which header lines pass, in both directions, and what relayd says for itself in them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.dialects import ANTHROPIC, OPENAI
from tests.support.upstream import Request, head, reply, send, stream
from tests.support.wire import Answer, ask, post_json, request
from tests.whole.conftest import Relay


def _forwarded(relay: Relay, *headers: tuple[str, str], **options: str) -> Request:
    """Send a GET with these headers; return what the worker saw."""
    relay.upstream.forget()
    answer = ask(relay.gateway, request("GET", "/any", *headers, **options))
    assert answer.status == 200, answer
    return relay.upstream.requests[0]


def _returned(relay: Relay, *headers: tuple[str, str]) -> Answer:
    """Have the worker answer with these headers; return what the client sees."""
    relay.upstream.play(reply({"ok": True}, 200, *headers))
    answer = ask(relay.gateway, request("GET", "/any"))
    assert answer.json() == {"ok": True}
    return answer


# Requests


HOP_BY_HOP = {
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "keep-alive",
    "Proxy-Authorization": "Basic abc",
    "TE": "trailers",
    "Trailer": "X-T",
    "HTTP2-Settings": "abc",
    "Proxy": "http://evil.test",
}


@pytest.mark.parametrize(("name", "value"), HOP_BY_HOP.items())
def test_what_is_for_this_connection_stays_here(relay: Relay, name: str, value: str) -> None:
    assert _forwarded(relay, (name, value)).header(name) is None


def test_what_Connection_names_stays_here(relay: Relay) -> None:
    seen = _forwarded(relay, ("Connection", "keep-alive, X-Mine"), ("X-Mine", "1"), ("X-Other", "2"))
    assert seen.header("x-mine") is None
    assert seen.header("x-other") == "2"
    assert "x-mine" not in (seen.header("connection") or "").lower()


@pytest.mark.parametrize("name", ["Authorization", "Traceparent", "X-Request-Id"])
def test_Connection_cannot_take_away_what_matters(relay: Relay, name: str) -> None:
    value = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" if name == "Traceparent" else "a1"
    assert _forwarded(relay, ("Connection", name), (name, value)).header(name)


@pytest.mark.parametrize(
    "name",
    [
        "X-Relayd-Tenant",
        "X-Relayd-Worker",
        "X_Forwarded_For",
        "X_Forwarded_Proto",
        "X-Real-IP",
        "Forwarded",
        "X-Original-URL",
        "X-Rewrite-URL",
    ],
)
def test_identity_and_forwarding_cannot_be_claimed(relay: Relay, name: str) -> None:
    assert _forwarded(relay, (name, "1.2.3.4")).header(name) in (None, "127.0.0.1")


def test_forwarding_headers_are_ours(relay: Relay) -> None:
    claimed = (("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "evil"))
    seen = _forwarded(relay, *claimed)
    assert seen.values("x-forwarded-for") == ["127.0.0.1"]
    assert seen.values("x-forwarded-proto") == ["http"]
    assert "evil" not in (seen.header("x-forwarded-host") or "")


def test_a_trusted_proxy_is_believed(start: Callable[..., Relay]) -> None:
    relay = start(1, {"trusted_proxies": "127.0.0.0/8"})
    seen = _forwarded(relay, ("X-Forwarded-For", "9.8.7.6"), ("X-Forwarded-Proto", "https"))
    assert seen.values("x-forwarded-for") == ["9.8.7.6, 127.0.0.1"]
    assert seen.values("x-forwarded-proto") == ["https"]


def test_everything_else_passes(relay: Relay) -> None:
    sent = {
        "Authorization": "Bearer sk-1",
        "X-Api-Key": "k",
        "Anthropic-Version": "2023-06-01",
        "Anthropic-Beta": "a-2099-01-01,b-2099-01-01",
        "OpenAI-Organization": "org",
        "X-Stainless-Retry-Count": "0",
        "X-Claude-Code-Session-Id": "s1",
        "session_id": "u_1",
        "User-Agent": "some/1.0",
        "Accept": "application/json",
        "Accept-Language": "de",
        "Cookie": "a=b",
        "Tracestate": "x=1",
        "X-Empty": "",
    }
    seen = _forwarded(relay, *sent.items())
    assert {name: seen.header(name) for name in sent} == sent


def test_repeated_headers_stay_repeated_and_in_order(relay: Relay) -> None:
    seen = _forwarded(relay, ("X-A", "1"), ("X-B", "x"), ("X-A", "2"), ("X-A", "1"))
    assert seen.values("x-a") == ["1", "2", "1"]


def test_bytes_that_are_not_ASCII_stay_the_same(relay: Relay) -> None:
    assert _forwarded(relay, ("X-Name", "caf\xe9")).header("x-name") == "caf\xe9"


def test_nothing_is_added_that_the_client_did_not_say(relay: Relay) -> None:
    seen = _forwarded(relay)
    ours = {"host", "via", "x-request-id", "traceparent", "connection", "content-length"}
    added = {name for name, _ in seen.headers if not name.startswith("x-forwarded-")} - ours
    assert not added


def test_the_worker_is_addressed_by_its_own_name(relay: Relay) -> None:
    assert _forwarded(relay, host="public.example").values("host") == [relay.upstream.name]


def test_targets_pass_as_they_are_written(relay: Relay) -> None:
    target = "/v1/files/a%2Fb%2E%27c%252Fd?q=%7E+%20x&empty=&=v"
    ask(relay.gateway, request("GET", target))
    assert relay.upstream.requests[0].target == target


def test_a_head_of_50_KiB_passes(relay: Relay) -> None:
    token = "Bearer " + "t" * 50_000
    assert _forwarded(relay, ("Authorization", token)).header("authorization") == token


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Long", "x" * 200_000)],
        [(f"X-{number}", "y" * 100) for number in range(2000)],
    ],
    ids=["one long line", "many lines"],
)
def test_a_head_without_end_is_431(relay: Relay, headers: list[tuple[str, str]]) -> None:
    with relay.connect() as client:
        try:
            client.send(request("GET", "/any", *headers))
        except ConnectionError:
            pass  # it need not be read to its end
        answer = client.read()
        assert answer.status == 431
        assert answer.json()["error"]["message"]
        assert client.wait_closed() != "silent"
    assert not relay.upstream.requests


# What relayd says for itself


def test_a_request_id_is_kept_in_both_directions(relay: Relay) -> None:
    answer = ask(relay.gateway, request("GET", "/any", ("X-Request-Id", "mine-123")))
    assert relay.upstream.requests[0].values("x-request-id") == ["mine-123"]
    assert answer.values("x-request-id") == ["mine-123"]


def test_a_request_id_is_made_if_there_is_none(relay: Relay) -> None:
    answer = ask(relay.gateway, request("GET", "/any"))
    (made,) = answer.values("x-request-id")
    assert relay.upstream.requests[0].values("x-request-id") == [made]
    other = ask(relay.gateway, request("GET", "/any"))
    assert other.header("x-request-id") != made


@pytest.mark.parametrize("bad", ["", "a b", "x" * 1000, "a\tb", "caf\xe9"])
def test_a_request_id_that_is_none_is_replaced(relay: Relay, bad: str) -> None:
    seen = _forwarded(relay, ("X-Request-Id", bad))
    assert re.fullmatch(r"[\w.:-]{1,128}", seen.header("x-request-id") or "")
    assert seen.header("x-request-id") != bad


def test_messages_have_their_own_name_for_it(relay: Relay) -> None:
    relay.upstream.play(reply(ANTHROPIC.whole("a")))
    answer = relay.ask(ANTHROPIC)
    assert answer.header("request-id")
    relay.upstream.play(reply(ANTHROPIC.whole("a"), 200, ("request-id", "req_worker")))
    assert relay.ask(ANTHROPIC).values("request-id") == ["req_worker"]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_goes_on(relay: Relay) -> None:
    seen = _forwarded(relay, ("Traceparent", TRACE), ("Tracestate", "a=1"))
    assert (seen.header("traceparent") or "")[3:35] == TRACE[3:35]
    assert seen.header("tracestate") == "a=1"


def test_a_trace_begins_if_there_is_none(relay: Relay) -> None:
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", _forwarded(relay).header("traceparent") or "")


def test_Via_is_extended(relay: Relay) -> None:
    assert re.search(r"1\.1 \S*relayd", _forwarded(relay).header("via") or "")
    values = _forwarded(relay, ("Via", "1.1 other")).values("via")
    assert "other" in ", ".join(values)
    assert "relayd" in ", ".join(values)


def test_a_loop_is_refused(relay: Relay) -> None:
    """What relayd sent out itself must not come back in."""
    via = ", ".join(_forwarded(relay).values("via"))
    assert ask(relay.gateway, request("GET", "/any", ("Via", via))).status == 508


def test_the_worker_and_the_times_are_told(relay: Relay) -> None:
    answer = _returned(relay)
    assert answer.header("x-relayd-worker") == relay.upstream.name
    assert "dur=" in (answer.header("server-timing") or "")


def test_they_can_be_switched_off(start: Callable[..., Relay]) -> None:
    answer = _returned(start(1, {"reveal": "off"}))
    assert answer.header("x-relayd-worker") is None
    assert answer.header("server-timing") is None


# Answers


def test_an_answers_headers_pass(relay: Relay) -> None:
    sent = {
        "x-ratelimit-remaining-requests": "7",
        "anthropic-ratelimit-unified-status": "allowed",
        "retry-after": "30",
        "openai-processing-ms": "12",
        "cache-control": "no-cache",
        "etag": '"a"',
        "x-empty": "",
    }
    answer = _returned(relay, *sent.items())
    assert {name: answer.header(name) for name in sent} == sent


def test_an_answers_repeated_headers_stay_repeated(relay: Relay) -> None:
    answer = _returned(relay, ("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-a", "1"), ("x-a", "1"))
    assert answer.values("set-cookie") == ["a=1", "b=2"]
    assert answer.values("x-a") == ["1", "1"]


def test_an_answers_hop_by_hop_headers_stay_here(relay: Relay) -> None:
    named = ("connection", "keep-alive, X-Hop"), ("x-hop", "1"), ("keep-alive", "timeout=5")
    answer = _returned(relay, *named, ("proxy-connection", "keep-alive"), ("proxy-authenticate", "Basic"))
    for name in ("x-hop", "keep-alive", "proxy-connection"):
        assert answer.header(name) is None


def test_an_answer_cannot_take_away_its_framing(relay: Relay) -> None:
    relay.upstream.play(
        [head(200, ("connection", "content-length"), ("content-length", "2")), send("ok")],
    )
    assert ask(relay.gateway, request("GET", "/any")).body == b"ok"


def test_a_stream_is_not_to_be_buffered_by_whoever_is_in_front(relay: Relay) -> None:
    relay.upstream.play(stream(*OPENAI.events("a")))
    answer = relay.ask(OPENAI, stream=True)
    assert answer.header("x-accel-buffering") == "no"
    assert answer.header("content-type") == "text/event-stream"


def test_an_answer_is_framed_once(relay: Relay) -> None:
    relay.upstream.play(reply(OPENAI.whole("a")))
    plain = relay.ask(OPENAI)
    assert plain.header("content-length")
    assert not plain.is_chunked
    relay.upstream.play(stream(*OPENAI.events("a")))
    streamed = relay.ask(OPENAI, stream=True)
    assert streamed.is_chunked
    assert streamed.header("content-length") is None


def test_interim_answers_are_not_the_answer(relay: Relay) -> None:
    interim = [send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"), {"sleep": 0.05}]
    relay.upstream.play([*interim, *reply({"ok": True})])
    answer = ask(relay.gateway, request("GET", "/any"))
    assert (answer.status, answer.json()) == (200, {"ok": True})


def test_redirects_are_the_clients_business(relay: Relay) -> None:
    relay.upstream.play(reply({}, 307, ("location", "http://elsewhere.test/")))
    answer = ask(relay.gateway, post_json(OPENAI.path, OPENAI.ask()))
    assert (answer.status, answer.header("location")) == (307, "http://elsewhere.test/")
    assert relay.requests == 1
