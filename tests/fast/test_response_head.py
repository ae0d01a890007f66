"""Which answers may be relayed for their head, and what of it the client gets."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.head import read_response_head
from tests.fast.test_request_head import NAMES, VALUES

LENGTH, CHUNKED = (b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")

VALID = [
    [],
    [LENGTH],
    [CHUNKED],
    [(b"transfer-encoding", b"CHUNKED")],
    [(b"transfer-encoding", b"chunked \t")],
    [(b"Content-Length", b"5 ")],
    [(b"X-A", b"\xff\t")],
    [(b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")],
]
INVALID = [
    [LENGTH, LENGTH],
    [LENGTH, (b"content-length", b"6")],
    [LENGTH, CHUNKED],
    [CHUNKED, LENGTH],
    [CHUNKED, CHUNKED],
    [(b"Transfer-Encoding", b"gzip, chunked")],
    [(b"Transfer-Encoding", b"gzip")],
    [(b"Transfer-Encoding", b"identity")],
    [(b"Transfer-Encoding", b"")],
    [(b"Content-Length", b"5, 5")],
    [(b"Content-Length", b"-5")],
    [(b"Content-Length", b"+5")],
    [(b"Content-Length", b"")],
    [(b"Content-Length", b"5 5")],
    [(b"Content-Length", b"1" * 19)],
    [(b"X A", b"1")],
    [(b"", b"1")],
    [(b"X-A", b"a\x00b")],
    [(b"X-A", b"a\rb")],
    [(b"X-A", b"a\nb")],
    [(b"X-A\x01", b"a")],
]


@pytest.mark.parametrize("headers", VALID)
def test_may_be_relayed(headers):
    assert read_response_head(headers).valid


@pytest.mark.parametrize("headers", INVALID)
def test_may_not_be_relayed(headers):
    assert not read_response_head(headers).valid


def test_notes_what_relayd_acts_on():
    head = read_response_head(
        [
            (b"Content-Type", b"text/event-stream; charset=utf-8"),
            (b"Content-Encoding", b"gzip"),
            (b"Retry-After", b"3"),
            (b"Retry-After-Ms", b"3000"),
            (b"X-Request-Id", b"abc"),
            (b"Request-Id", b"req_1"),
            (b"X-Accel-Buffering", b"no"),
            (b"Date", b"now"),
            LENGTH,
        ]
    )
    assert head.valid
    assert head.event_stream
    assert head.content_encoding == b"gzip"
    assert (head.retry_after, head.retry_after_ms) == (b"3", b"3000")
    assert (head.request_id, head.has_plain_id) == (b"abc", True)
    assert head.accel_buffering
    assert head.has_date
    assert (head.content_length, head.chunked) == (5, False)


def test_says_nothing_of_what_was_not_said():
    head = read_response_head([])
    assert (head.content_encoding, head.retry_after, head.retry_after_ms, head.request_id) == (None,) * 4
    facts = ("event_stream", "has_plain_id", "accel_buffering", "has_date", "chunked")
    assert [getattr(head, name) for name in facts] == [False] * len(facts)
    assert head.content_length == -1


@pytest.mark.parametrize(
    ("content_type", "is_stream"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream;charset=utf-8", True),
        (b"application/json", False),
        (b"text/plain", False),
        (b"", False),
    ],
)
def test_knows_an_event_stream(content_type, is_stream):
    assert read_response_head([(b"Content-Type", content_type)]).event_stream is is_stream


PASSES = [
    b"Content-Type",
    b"Content-Encoding",
    b"Retry-After",
    b"retry-after-ms",
    b"X-Request-Id",
    b"request-id",
    b"Date",
    b"Server",
    b"Set-Cookie",
    b"X-RateLimit-Remaining-Requests",
    b"anthropic-ratelimit-tokens-reset",
    b"ETag",
    b"openai-processing-ms",
    b"Location",
    b"WWW-Authenticate",
    b"Cache-Control",
    b"X-Accel-Buffering",
    b"Vary",
]
DENIED = [
    b"Connection",
    b"Keep-Alive",
    b"Proxy-Connection",
    b"Proxy-Authenticate",
    b"TE",
    b"Trailer",
    b"Upgrade",
    b"Content-Length",
    b"Transfer-Encoding",
    b"Alt-Svc",
    b"X-Relayd-Worker",
    b"x-relayd-anything",
    b"Transfer_Encoding",
    b"Content_Length",
]


@pytest.mark.parametrize("name", PASSES)
def test_what_is_not_denied_passes(name):
    for spelling in (name, name.lower(), name.upper()):
        assert read_response_head([(spelling, b"v")]).block == spelling + b": v\r\n"


@pytest.mark.parametrize("name", DENIED)
def test_what_is_denied_does_not(name):
    value = b"chunked" if name == b"Transfer-Encoding" else b"5"
    for spelling in (name, name.lower(), name.upper()):
        assert read_response_head([(spelling, value), (b"A", b"1")]).block == b"A: 1\r\n"


def test_what_connection_names_does_not_pass():
    headers = [(b"X-Hop", b"1"), (b"Connection", b"keep-alive, X-HOP"), (b"X-Stay", b"2")]
    assert read_response_head(headers).block == b"X-Stay: 2\r\n"


def test_connection_cannot_take_the_type_away():
    headers = [(b"Content-Type", b"a/b"), (b"Connection", b"content-type")]
    assert read_response_head(headers).block == b"Content-Type: a/b\r\n"


def test_repeated_lines_stay_repeated():
    headers = [(b"Set-Cookie", b"a"), (b"X", b"1"), (b"Set-Cookie", b"b")]
    assert read_response_head(headers).block == b"Set-Cookie: a\r\nX: 1\r\nSet-Cookie: b\r\n"


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12))
def test_whatever_comes_in_the_block_is_clean(headers):
    head = read_response_head(headers)
    if not head.valid:
        return
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.receive_data(b"HTTP/1.1 200 OK\r\n" + head.block + b"Content-Length: 0\r\n\r\n")
    answer = client.next_event()
    assert isinstance(answer, h11.Response)
    names = [name for name, _ in answer.headers]
    assert names.count(b"content-length") == 1
    assert b"transfer-encoding" not in names
    assert b"connection" not in names
