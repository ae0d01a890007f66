"""Which requests are refused for their head, and what goes on to a worker of those that are not."""

from __future__ import annotations

import re
import string

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relayd._fast import head as head_module
from relayd._fast.head import HeadFault, Priority, RequestHead, is_one_message, random_hex, set_via

HOST = (b"Host", b"relay.test")
CLIENT = b"X-Forwarded-For: 10.0.0.1\r\nVia: 1.1 relayd-test\r\n"
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN = (b"Host", b"X-Request-Id", b"Traceparent", b"Content-Length", b"Transfer-Encoding")


def read(*headers, method="POST", target=b"/v1/chat/completions", minor=1, host=HOST):
    """Return the head of a request; it has a Host unless `host` is None."""
    return RequestHead(method, target, minor, [*([host] if host else []), *headers])


def passed(*headers, stream=False, credentials=True, length=0, **options):
    """Return what a worker gets, as (name, value) pairs without those that relayd adds."""
    head = read(*headers, **options)
    assert head.fault == HeadFault.HEAD_OK
    lines = head.for_worker(b"w:1", b"", stream, credentials, length).split(b"\r\n")
    assert lines[1] == b"Host: w:1"
    assert lines[-2:] == [b"", b""]
    pairs = [tuple(line.split(b": ", 1)) for line in lines[1:-2]]
    assert [name for name, _ in pairs].count(b"X-Request-Id") == 1
    assert [name for name, _ in pairs].count(b"Traceparent") == 1
    return [pair for pair in pairs if pair[0] not in OWN]


# --- every way to be refused --------------------------------------------------------------------------

BAD = [
    (HeadFault.HEAD_BAD_METHOD, {"method": "TRACE"}),
    (HeadFault.HEAD_BAD_METHOD, {"method": "CONNECT"}),
    (HeadFault.HEAD_BAD_METHOD, {"method": "CONNECT", "target": b"relay.test:443"}),
    (HeadFault.HEAD_BAD_VERSION, {"minor": -1}),
    (HeadFault.HEAD_BAD_HOST, {"host": None}),
    (HeadFault.HEAD_BAD_HOST, {"headers": [HOST]}),
    (HeadFault.HEAD_BAD_WISH, {"headers": [(b"X-Relayd-Priority", b"high")]}),
    (HeadFault.HEAD_BAD_NAME, {"headers": [(b"X Y", b"1")]}),
    (HeadFault.HEAD_BAD_NAME, {"headers": [(b"X-A ", b"1")]}),
    (HeadFault.HEAD_BAD_NAME, {"headers": [(b"", b"1")]}),
    (HeadFault.HEAD_BAD_NAME, {"headers": [(b"X\x00", b"1")]}),
    (HeadFault.HEAD_BAD_NAME, {"headers": [(b"X\xe9", b"1")]}),
    (HeadFault.HEAD_BAD_NAME, {"headers": [(b"X:", b"1")]}),
    (HeadFault.HEAD_BAD_NAME, {"headers": [(b"Content-Length\r", b"1")]}),
    (HeadFault.HEAD_BAD_VALUE, {"headers": [(b"X-A", b"a\rb")]}),
    (HeadFault.HEAD_BAD_VALUE, {"headers": [(b"X-A", b"a\nb")]}),
    (HeadFault.HEAD_BAD_VALUE, {"headers": [(b"X-A", b"a\r\n b")]}),
    (HeadFault.HEAD_BAD_VALUE, {"headers": [(b"X-A", b"a\x00b")]}),
    (HeadFault.HEAD_BAD_VALUE, {"headers": [(b"X-A", b"\x7f")]}),
    (HeadFault.HEAD_BAD_VALUE, {"headers": [(b"Authorization", b"Bearer \x1b")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"1"), (b"Content-Length", b"1")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"1"), (b"content-length", b"2")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"1, 1")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"+1")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"-1")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"0x10")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"1 ")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"1" * 19)]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Content-Length", b"1"), (b"Transfer-Encoding", b"chunked")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"0")]}),
    (HeadFault.HEAD_BAD_LENGTH, {"headers": [(b"Transfer-Encoding", b"chunked")], "minor": 0}),
    (HeadFault.HEAD_BAD_CODING, {"headers": [(b"Transfer-Encoding", b"gzip, chunked")]}),
    (HeadFault.HEAD_BAD_CODING, {"headers": [(b"Transfer-Encoding", b"identity")]}),
    (HeadFault.HEAD_BAD_CODING, {"headers": [(b"Transfer-Encoding", b"chunked, chunked")]}),
    (HeadFault.HEAD_BAD_CODING, {"headers": [(b"Transfer-Encoding", b"chunked")] * 2}),
    (HeadFault.HEAD_BAD_CODING, {"headers": [(b"Transfer-Encoding", b"xchunked")]}),
    (HeadFault.HEAD_BAD_CODING, {"headers": [(b"Transfer-Encoding", b"")]}),
    (
        HeadFault.HEAD_BAD_CREDENTIAL,
        {"headers": [(b"Authorization", b"Bearer a"), (b"authorization", b"Bearer b")]},
    ),
    (HeadFault.HEAD_BAD_CREDENTIAL, {"headers": [(b"Authorization", b"Bearer a, Bearer b")]}),
    (HeadFault.HEAD_BAD_CREDENTIAL, {"headers": [(b"Authorization", b"bearer a b")]}),
    (HeadFault.HEAD_BAD_CREDENTIAL, {"headers": [(b"Authorization", b"BEARER   a,")]}),
    (HeadFault.HEAD_BAD_CREDENTIAL, {"headers": [(b"Authorization", b"Bearer ,a  ")]}),
    (HeadFault.HEAD_BAD_EXPECT, {"headers": [(b"Expect", b"200-ok")]}),
    (HeadFault.HEAD_BAD_EXPECT, {"headers": [(b"Expect", b"")]}),
]


@pytest.mark.parametrize(("fault", "request_"), BAD)
def test_refuses(fault, request_):
    options = dict(request_)
    assert read(*options.pop("headers", []), **options).fault == fault


def test_there_is_a_case_for_every_fault():
    met = {fault for fault, _ in BAD} | {HeadFault.HEAD_OK, HeadFault.HEAD_BAD_TARGET, HeadFault.HEAD_LOOP}
    assert met == set(HeadFault)


def test_names_the_field_that_is_wrong():
    assert read((b"X-Bad", b"\n")).bad_name == b"X-Bad"
    assert read((b"X Bad", b"1")).bad_name == b"X Bad"
    assert read((b"Content-Length", b"x")).bad_name == b"Content-Length"


GOOD = [
    [(b"X-A", b"tab\there, \xe9\xff")],
    [(b"X-Empty", b"")],
    [(b"!#$%&'*+-.^_`|~09azAZ", b"1")],
    [(b"Content-Length", b"0")],
    [(b"Content-Length", b"9" * 18)],
    [(b"Content-Length", b"007")],
    [(b"Transfer-Encoding", b"Chunked")],
    [(b"Expect", b"100-Continue")],
    [(b"Authorization", b"Bearer a")],
    [(b"Authorization", b"Bearer  a ")],
    [(b"Authorization", b"Basic a, b")],
    [(b"Via", b"1.0 other")],
]


@pytest.mark.parametrize("headers", GOOD)
def test_accepts(headers):
    assert read(*headers).fault == HeadFault.HEAD_OK


def test_http_1_0_needs_no_host():
    assert read(host=None, minor=0).fault == HeadFault.HEAD_OK
    assert read(host=(b"Host", b""), minor=0).fault == HeadFault.HEAD_BAD_HOST


HOSTS = [
    (b"relay.test", True), (b"relay.test:8080", True), (b"relay.test:", True), (b"10.0.0.1", True),
    (b"10.0.0.1:1", True), (b"localhost:65535", True), (b"a_b", True), (b"a%20b", True),
    (b"[::1]", True), (b"[::1]:80", True), (b"[::ffff:1.2.3.4]:80", True), (b"[FE80::aB]", True),
    (b"", False), (b":80", False), (b"a:b", False), (b"a:80:80", False), (b"a:123456", False),
    (b"a b", False), (b" a", False), (b"a/b", False), (b"a?b", False), (b"a#b", False), (b"u@a", False),
    (b"a,b", False), (b"a\\b", False), (b"\xe9", False), (b"[::1", False), (b"::1", False), (b"[]", False),
    (b"[:]", False), (b"[::1]x", False), (b"[::1]:x", False), (b"[::g]", False), (b"a" * 263, False),
    (b"a:-1", False), (b"a\t", False), (b"<a>", False),
]  # fmt: skip


@pytest.mark.parametrize(("host", "good"), HOSTS)
def test_a_host_is_a_name_or_address_with_a_port(host, good):
    assert (read(host=(b"Host", host)).fault == HeadFault.HEAD_OK) is good


TARGETS = [
    (b"/", True),
    (b"/v1/chat/completions", True),
    (b"/a?b=c&d", True),
    (b"/a?..", True),
    (b"/a?/../b", True),
    (b"/..a", True),
    (b"/a..", True),
    (b"/a..b/c", True),
    (b"/...", True),
    (b"/.", True),
    (b"/./a", True),
    (b"//a", True),
    (b"/%20", True),
    (b"/%2f", True),
    (b"/a%2eb", True),
    (b"/a;b=c", True),
    (b"", False),
    (b"a", False),
    (b"*", False),
    (b"?a", False),
    (b"/a b", False),
    (b"/a\tb", False),
    (b"/a#b", False),
    (b"/a\x00", False),
    (b"/\x7f", False),
    (b"/\xc3\xa9", False),
    (b"/a\r\nX: y", False),
    (b"/..", False),
    (b"/../", False),
    (b"/a/..", False),
    (b"/a/../b", False),
    (b"/../a", False),
    (b"/%2e%2e/a", False),
    (b"/%2E%2e/a", False),
    (b"/.%2e/a", False),
    (b"/%2E./a", False),
    (b"/a%2f..%2fb", False),
    (b"/a%2F..", False),
    (b"/..%2fa", False),
    (b"/a/..%5ca", False),
    (b"/a%5C..%5Cb", False),
    (b"/a\\..\\b", False),
    (b"/..\\a", False),
    (b"/a/%2e%2e%2f", False),
    (b"/a/..?b", False),
    (b"//..", False),
]


@pytest.mark.parametrize(("target", "good"), TARGETS)
def test_a_target_is_a_plain_path_that_does_not_climb(target, good):
    expected = HeadFault.HEAD_OK if good else HeadFault.HEAD_BAD_TARGET
    assert read(target=target).fault == expected


@pytest.mark.parametrize(
    ("target", "became"),
    [
        (b"http://relay.test/a?b", b"/a?b"),
        (b"HTTP://RELAY.test/a", b"/a"),
        (b"http://relay.test", b"/"),
        (b"http://relay.test/", b"/"),
        (b"http://other.test/a", None),
        (b"http://relay.test:80/a", None),
        (b"http://relay.test/../a", None),
        (b"http:///a", None),
        (b"http://u@relay.test/a", None),
        (b"https://relay.test/a", None),
        (b"ftp://relay.test/a", None),
    ],
)
def test_the_absolute_form_must_name_the_host(target, became):
    head = read(target=target)
    assert head.fault == (HeadFault.HEAD_BAD_TARGET if became is None else HeadFault.HEAD_OK)
    if became is not None:
        assert head.target == became
        assert head.for_worker(b"w", b"", False, True, -2).startswith(b"POST " + became + b" HTTP/1.1\r\n")


def test_the_absolute_form_without_a_host_is_refused():
    assert read(target=b"http://relay.test/a", host=None, minor=0).fault == HeadFault.HEAD_BAD_TARGET


def test_the_path_ends_at_the_question_mark():
    head = read(target=b"/v1/models?a=b?c")
    assert (head.path, head.target) == (b"/v1/models", b"/v1/models?a=b?c")


def test_knows_its_own_name_in_via():
    set_via(b"relayd-0badcafe")
    try:
        assert read((b"Via", b"1.1 a, 1.1 relayd-0badcafe")).fault == HeadFault.HEAD_LOOP
        assert read((b"Via", b"1.1 relayd-0badcaff")).fault == HeadFault.HEAD_OK
        assert passed((b"Via", b"1.1 other")) == [(b"Via", b"1.1 other")]
    finally:
        set_via(b"")


# --- what relayd acts on ------------------------------------------------------------------------------


def test_notes_what_it_acts_on():
    head = read(
        (b"content-TYPE", b"application/json"),
        (b"Content-Encoding", b"gzip"),
        (b"Accept-Encoding", b"gzip"),
        (b"accept-encoding", b"br"),
        (b"X-Forwarded-For", b"1.1.1.1"),
        (b"X-Forwarded-For", b"2.2.2.2"),
        (b"X-Forwarded-Proto", b"https"),
        (b"X-Request-Id", b"abc"),
        (b"Traceparent", TRACE),
        (b"Authorization", b"Bearer k"),
        (b"X-Api-Key", b"k"),
        (b"Anthropic-Version", b"2023-06-01"),
        (b"Content-Length", b"12"),
        (b"Expect", b"100-continue"),
    )
    assert head.fault == HeadFault.HEAD_OK
    assert head.method == "POST"
    assert head.host == b"relay.test"
    assert head.content_type == b"application/json"
    assert head.content_encoding == b"gzip"
    assert head.accept_encoding == b"gzip, br"
    assert head.forwarded_for == b"1.1.1.1, 2.2.2.2"
    assert head.forwarded_proto == b"https"
    assert head.request_id == b"abc"
    assert head.traceparent == TRACE
    assert (head.authorization, head.api_key) == (b"Bearer k", b"k")
    assert (head.content_length, head.chunked) == (12, False)
    assert head.expect_continue
    assert head.anthropic


def test_says_nothing_of_what_was_not_said():
    head = read()
    nothing = (
        "content_type",
        "content_encoding",
        "accept_encoding",
        "forwarded_for",
        "authorization",
        "api_key",
    )
    assert [getattr(head, name) for name in nothing] == [None] * len(nothing)
    assert head.content_length == -1
    assert (head.chunked, head.expect_continue, head.anthropic) == (False, False, False)


# --- what it is called --------------------------------------------------------------------------------

IDS = [b"a", b"req_0123456789abcdef", b"A-Z.0:9/+=@_", b"x" * 128]
NO_IDS = [b"", b"x" * 129, b"a b", b"a\tb", b'"', b"<a>", b"a,b", b"a;b", b"a\\b", b"\xc3\xa9", b"a{b}"]
TRACES = [TRACE, TRACE[:-2] + b"00"]
NO_TRACES = [
    b"", b"00", TRACE[:-1], TRACE + b"0", TRACE.upper(), TRACE.replace(b"-", b"_"), TRACE.replace(b"a", b"g"),
    b"0-0" + TRACE[3:], TRACE + b"-extra", b" " * 55,
]  # fmt: skip


@pytest.mark.parametrize("value", IDS)
def test_a_sound_request_id_is_kept(value):
    head = read((b"X-Request-ID", value))
    assert head.request_id == value
    assert b"\r\nX-Request-Id: " + value + b"\r\n" in head.for_worker(b"w", b"", False, True, -2)


@pytest.mark.parametrize("value", NO_IDS)
def test_any_other_is_replaced(value):
    head = read((b"X-Request-ID", value))
    assert re.fullmatch(rb"req_[0-9a-f]{24}", head.request_id)
    assert b"\r\nX-Request-Id: " + head.request_id + b"\r\n" in head.for_worker(b"w", b"", False, True, -2)


@pytest.mark.parametrize("value", TRACES)
def test_a_sound_traceparent_is_kept(value):
    assert read((b"traceparent", value)).traceparent == value


@pytest.mark.parametrize("value", NO_TRACES)
def test_any_other_traceparent_is_replaced(value):
    made = read((b"traceparent", value)).traceparent
    assert made != value
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-01", made)


def test_each_request_has_names_of_its_own():
    heads = [read() for _ in range(1000)]
    assert len({head.request_id for head in heads}) == len({head.traceparent for head in heads}) == 1000


def test_a_refused_request_has_a_name_too():
    assert read(method="TRACE").request_id.startswith(b"req_")
    assert read((b"X-Request-Id", b"mine"), (b"X Bad", b"1")).request_id == b"mine"
    assert read((b"X-Request-Id", b"a\nb")).request_id.startswith(b"req_")


# --- what goes on to a worker -------------------------------------------------------------------------

PASSES = [
    b"Accept", b"Accept-Language", b"Content-Type", b"Content-Encoding", b"User-Agent", b"Cookie",
    b"OpenAI-Organization", b"OpenAI-Beta", b"Anthropic-Version", b"Anthropic-Beta", b"X-Stainless-Lang",
    b"X-Session-Id", b"Idempotency-Key", b"X-Custom_Name", b"tracestate", b"baggage", b"X-Priority", b"Via",
    b"x-forward", b"Cache-Control", b"If-None-Match", b"Range", b"X-Slo-Ttft-Ms",
]  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
def test_what_is_not_denied_passes_in_its_spelling(name):
    for spelling in (name, name.upper(), name.lower()):
        assert passed((spelling, b"Some Value ")) == [(spelling, b"Some Value ")]


DENIED = [
    b"Keep-Alive",
    b"Proxy-Connection",
    b"Proxy-Authorization",
    b"Proxy-Authenticate",
    b"TE",
    b"Trailer",
    b"Upgrade",
    b"HTTP2-Settings",
    b"Forwarded",
    b"X-Forwarded-For",
    b"X-Forwarded-Proto",
    b"X-Forwarded-Host",
    b"X-Forwarded-Port",
    b"X-Forwarded-Server",
    b"X-Forwarded-Anything",
    b"X-Real-IP",
    b"X-Client-IP",
    b"X-Cluster-Client-Ip",
    b"True-Client-IP",
    b"X-Original-URL",
    b"X-Rewrite-URL",
    b"Proxy",
    b"X-Relayd-Worker",
    b"X-Relayd-Tenant",
    b"X-Request-Id",
    b"Traceparent",
    b"Connection",
    b"Proxy-Authentication-Info",
]


@pytest.mark.parametrize("name", DENIED)
def test_what_is_denied_does_not_pass_in_any_spelling(name):
    for spelling in (name, name.upper(), name.lower()):
        assert passed((spelling, b"x"), (b"A", b"1")) == [(b"A", b"1")], spelling


TWINS = [
    b"Keep_Alive",
    b"X_Forwarded_For",
    b"x_forwarded-for",
    b"X-Forwarded_For",
    b"X_Real_IP",
    b"X_Forwarded_Foo",
    b"Content_Length",
    b"Transfer_Encoding",
    b"Proxy_Connection",
    b"X_Relayd_Worker",
    b"X-Relayd_Worker",
    b"Proxy_Authorization",
    b"X_Api_Key",
    b"X_Request_Id",
    b"Http2_Settings",
    b"Content_Type",
    b"Content_Encoding",
    b"Anthropic_Version",
    b"Accept_Encoding",
]


@pytest.mark.parametrize("name", TWINS)
def test_twins_with_underscores_do_not_pass(name):
    for spelling in (name, name.upper(), name.lower()):
        assert passed((spelling, b"7"), (b"A", b"1")) == [(b"A", b"1")], spelling


def test_a_twin_is_not_taken_for_the_field():
    head = read(
        (b"Content_Length", b"7"),
        (b"Transfer_Encoding", b"chunked"),
        (b"X_Request_Id", b"a"),
        (b"X_Api_Key", b"k"),
    )
    assert (head.content_length, head.chunked, head.api_key) == (-1, False, None)
    assert head.request_id != b"a"


def test_repeated_lines_stay_repeated_and_in_order():
    lines = [(b"X-A", b"1"), (b"Cookie", b"a=1"), (b"x-a", b"2"), (b"Cookie", b"b=2")]
    assert passed(*lines) == lines


def test_what_connection_names_does_not_pass():
    lines = [
        (b"X-Hop", b"1"),
        (b"Connection", b"close, x-hop ,X-Other"),
        (b"x-other", b"2"),
        (b"X-Stay", b"3"),
    ]
    assert passed(*lines) == [(b"X-Stay", b"3")]


def test_connection_lines_add_up():
    lines = [(b"Connection", b"x-a"), (b"X-A", b"1"), (b"X-B", b"1"), (b"connection", b"x-b")]
    assert passed(*lines) == []


NEEDED = [
    b"Content-Type",
    b"Content-Encoding",
    b"Authorization",
    b"X-Api-Key",
    b"Api-Key",
    b"Accept",
    b"Anthropic-Version",
    b"tracestate",
]


@pytest.mark.parametrize("name", NEEDED)
def test_connection_cannot_take_away_what_a_worker_needs(name):
    assert passed((name, b"v"), (b"Connection", name)) == [(name, b"v")]


def test_connection_cannot_take_away_the_framing():
    head = read((b"Content-Length", b"5"), (b"Connection", b"content-length, host, transfer-encoding"))
    assert head.content_length == 5
    assert b"Content-Length: 5\r\n" in head.for_worker(b"w", b"", False, True, 5)


def test_credentials_go_on_only_when_asked_to():
    credentials = [(b"Authorization", b"Bearer k"), (b"X-API-Key", b"k2"), (b"api-key", b"k3")]
    assert passed(*credentials, credentials=True) == credentials
    assert passed(*credentials, credentials=False) == []


def test_streams_are_asked_for_without_a_coding():
    asked = (b"Accept-Encoding", b"gzip, br")
    assert passed(asked, stream=False) == [asked]
    assert passed(asked, stream=True) == [(b"Accept-Encoding", b"identity")]
    assert passed(stream=False) == []


def test_expect_is_answered_here():
    assert passed((b"Expect", b"100-continue")) == []


@pytest.mark.parametrize(
    ("length", "framing"),
    [
        (0, b"Content-Length: 0\r\n"),
        (12, b"Content-Length: 12\r\n"),
        (-1, b"Transfer-Encoding: chunked\r\n"),
        (-2, b""),
    ],
)
def test_framing_is_made_anew(length, framing):
    names = [(b"X-Request-Id", b"r1"), (b"Traceparent", TRACE)]
    wire = read((b"Transfer-Encoding", b"chunked"), *names).for_worker(b"w:9", CLIENT, False, True, length)
    own = CLIENT + b"X-Request-Id: r1\r\nTraceparent: " + TRACE + b"\r\n"
    assert wire == b"POST /v1/chat/completions HTTP/1.1\r\nHost: w:9\r\n" + own + framing + b"\r\n"


# --- whatever comes in --------------------------------------------------------------------------------

TCHARS = string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~"
KNOWN = [
    *PASSES,
    *DENIED,
    *TWINS,
    b"Host",
    b"Content-Length",
    b"Transfer-Encoding",
    b"Expect",
    b"Connection",
    b"Authorization",
]
NAMES = (
    st.sampled_from(KNOWN) | st.text(TCHARS, min_size=1, max_size=12).map(str.encode) | st.binary(max_size=6)
)
VALUES = (
    st.sampled_from(
        [b"chunked", b"5", b"100-continue", b"a\r\nb: c", b"close, host, x-a", b"gzip", b" padded "]
    )
    | st.text(string.printable, max_size=20).map(str.encode)
    | st.binary(max_size=12)
)
PATHS = st.sampled_from([b"/", b"/v1/a?b", b"http://relay.test/x"]) | st.binary(max_size=12).map(
    lambda path: b"/" + path
)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]),
    PATHS,
    st.sampled_from([0, 1]),
    HEADERS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_whatever_comes_in_what_goes_out_is_one_clean_request(
    method, target, minor, headers, with_host, stream, credentials
):
    head = RequestHead(method, target, minor, [*([HOST] if with_host else []), *headers])
    if head.fault:
        return
    for length in (head.content_length if head.content_length >= 0 else -2, -1, -2, 3):
        wire = head.for_worker(b"w:1", CLIENT, stream, credentials, length)
        assert_one_clean_request(wire, method, length)


def assert_one_clean_request(wire, method, length):
    body = b"2\r\nab\r\n0\r\n\r\n" if length == -1 else b"x" * max(0, min(length, 64))
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    server.receive_data(wire + body)
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.http_version) == (method.encode(), b"1.1")
    names = [name for name, _ in request.headers]
    assert names.count(b"host") == 1
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert b"connection" not in names
    assert b"expect" not in names
    assert names.count(b"x-forwarded-for") == names.count(b"x-request-id") == 1
    assert not any(
        b"_" in name and name.replace(b"_", b"-") in (b"content-length", b"transfer-encoding")
        for name in names
    )
    rest = wire.replace(b"\r\n", b"").replace(b"\t", b"")
    assert not any(byte < 32 or byte == 127 for byte in rest)
    if length > 64:
        return
    got = b""
    while isinstance(event := server.next_event(), h11.Data):
        got += event.data
    assert isinstance(event, h11.EndOfMessage), event
    assert got == (b"ab" if length == -1 else body)
    assert server.trailing_data == (b"", False)


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=30))
def test_only_tokens_are_names(names):
    for name in names:
        is_token = all(chr(byte) in TCHARS for byte in name)
        fault = RequestHead("GET", b"/", 0, [(name, b"1")]).fault
        assert (fault == HeadFault.HEAD_BAD_NAME) is not is_token


@given(st.binary(max_size=40))
@example(b"\t" * 9)
@example(bytes(range(32, 127)) + bytes(range(128, 256)))
def test_only_values_without_control_bytes_are_values(value):
    is_clean = all(byte == 9 or 32 <= byte != 127 for byte in value)
    assert (RequestHead("GET", b"/", 0, [(b"X-A", value)]).fault == HeadFault.HEAD_OK) is is_clean


def test_a_control_byte_is_found_at_every_place():
    for size in range(1, 26):
        for at in range(size):
            for byte in (*range(32), 127, 128, 255):
                for after in (b"~", b"\xff"):
                    value = b"\xff" * at + bytes([byte]) + after * (size - at - 1)
                    fault = RequestHead("GET", b"/", 0, [(b"X-A", value)]).fault
                    assert (fault == HeadFault.HEAD_BAD_VALUE) is (byte not in (9, 128, 255))


def test_a_flood_of_spellings_changes_nothing():
    """The memory of spellings is bounded; what does not fit is looked up the long way."""
    for number in range(5000):
        read((b"X-Flood-%d" % number, b"1"))
    assert passed((b"tRaNsFeR_eNcOdInG", b"1"), (b"x-ReAl-iP", b"1"), (b"X-NeW", b"1")) == [(b"X-NeW", b"1")]
    assert read((b"TrAnSfEr-EnCoDiNg", b"chunked")).chunked


# --- small things -------------------------------------------------------------------------------------

POST = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"
ONE = [
    (b"", True),
    (b"GET / HT", True),
    (b"GET / HTTP/1.1\r\nHost: a\r\n", True),
    (b"GET / HTTP/1.1\r\nHost: a\r\n\r", True),
    (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", True),
    (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nG", False),
    (b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", True),
    (b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n", False),
    (POST, True),
    (POST + b"hell", True),
    (POST + b"hello", True),
    (POST + b"hello!", False),
    (POST.replace(b"Content-Length: ", b"content-LENGTH:\t"), True),
    (POST.replace(b"Content-Length: 5", b"Content-Length: 0") + b"G", False),
    (POST.replace(b": 5", b": " + b"9" * 40) + b"hello", True),
    (POST.replace(b": 5", b": x") + b"hello", False),
    (POST.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"), True),
    (POST.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", False),
    (POST.replace(b"Content-Length", b"X-Content-Length") + b"hello", False),
]


@pytest.mark.parametrize(("data", "answer"), ONE)
def test_sees_whether_more_than_one_message_has_come(data, answer):
    assert is_one_message(data) is answer


def test_ids_are_hexadecimal_and_differ():
    ids = {random_hex(2) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(one) == 32 and not one.strip(b"0123456789abcdef") for one in ids)
    assert random_hex(0) == b""


def test_the_two_directions_have_their_own_lists():
    assert head_module.REQUEST_ACTIONS is not head_module.RESPONSE_ACTIONS


def test_how_long_a_client_waits_is_for_relayd_alone():
    head = read((b"X-Relayd-Timeout-Ms", b"2500"), (b"X-Relayd-Other", b"1"))
    assert (head.fault, head.timeout_ms) == (HeadFault.HEAD_OK, 2500)
    assert b"x-relayd" not in head.for_worker(b"w", b"", False, True, -2).lower()
    assert read().timeout_ms == 0


@pytest.mark.parametrize("text", [b"0", b"-1", b"1.5", b"", b"604800001", b"1s", b"9" * 40])
def test_a_wait_that_is_no_number_of_milliseconds_is_refused(text):
    assert read((b"X-Relayd-Timeout-Ms", text)).fault == HeadFault.HEAD_BAD_WISH


def test_how_much_a_request_matters_is_for_relayd_alone():
    assert read().priority == Priority.PRIORITY_DEFAULT
    for priority in Priority:
        name = priority.name.removeprefix("PRIORITY_").lower().encode()
        head = read((b"x-relayd-priority", name))
        assert (head.fault, head.priority) == (HeadFault.HEAD_OK, priority)
        assert b"x-relayd" not in head.for_worker(b"w", b"", False, True, -2).lower()
    for text in (b"", b"high", b"0", b"Batch", b"batch, critical"):
        head = read((b"X-Relayd-Priority", text))
        assert (head.fault, head.bad_name) == (HeadFault.HEAD_BAD_WISH, b"X-Relayd-Priority")
