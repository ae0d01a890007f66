"""The raw client notices what it must, and makes the same of an answer however it was cut."""

from __future__ import annotations

import pytest

from tests.support.upstream import Upstream, chunk, reply, send, silence, stream_head
from tests.support.wire import (
    CLOSED,
    COMPLETE,
    RESET,
    SILENT,
    WAITING,
    Answer,
    Client,
    WireError,
    ask,
    chunked,
    every_way,
    request,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

WHOLE = [
    # what                     bytes                                                        body
    ("a length", HEAD + b"Content-Length: 5\r\n\r\nhello", b"hello"),
    ("no body", HEAD + b"Content-Length: 0\r\n\r\n", b""),
    ("chunks", CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", b"hello world"),
    ("a status without a body", b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ("an interim answer", b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 1\r\n\r\nx", b"x"),
]


@pytest.mark.parametrize(("what", "data", "body"), WHOLE)
def test_whole_answers_are_complete(what: str, data: bytes, body: bytes) -> None:
    for segments in every_way(data):
        answer = Answer()
        for segment in segments:
            answer.feed(segment)
        assert (answer.ending, bytes(answer.body), answer.rest) == (COMPLETE, body, b""), (what, segments)


@pytest.mark.parametrize(("what", "data", "body"), WHOLE)
def test_a_part_of_one_is_not(what: str, data: bytes, body: bytes) -> None:
    for end in range(len(data)):
        answer = Answer()
        answer.feed(data[:end])
        assert answer.ending == WAITING, (what, data[:end])
        answer.feed_end(CLOSED)
        assert answer.ending == CLOSED


def test_a_body_without_framing_ends_with_the_connection_only() -> None:
    for how, ending in ((CLOSED, COMPLETE), (RESET, RESET), (SILENT, SILENT)):
        answer = Answer()
        answer.feed(HEAD + b"\r\nhello")
        answer.feed_end(how)
        assert (answer.ending, bytes(answer.body)) == (ending, b"hello")


UNCLEAN = [
    b"hello\r\n",
    b"HTTP/2.0 200 OK\r\n",
    b"HTTP/1.1 099 X\r\n",
    HEAD + b"no colon\r\n",
    HEAD + b"X A: b\r\n",
    HEAD + b" folded\r\n",
    HEAD + b"X-A: a\rb\r\n",
    HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
    HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD + b"Content-Length: +5\r\n\r\n",
    HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    CHUNKED + b"zz\r\n",
    CHUNKED + b"5;extension\r\n",
    CHUNKED + b"5\r\nhelloXX\r\n",
    CHUNKED + b"0\r\nX-Trailer: a\r\n\r\n",
]


@pytest.mark.parametrize("data", UNCLEAN)
def test_what_is_not_clean_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        Answer().feed(data)


def test_bytes_behind_an_answer_are_the_next_ones() -> None:
    with Upstream(reply({"n": 1}), reply({"n": 2})) as upstream, Client.to(upstream) as client:
        client.send(request("GET", "/a") + request("GET", "/b"))
        assert [client.read().json()["n"] for _ in range(2)] == [1, 2]


def test_a_reader_stops_where_it_is_told_and_goes_on() -> None:
    script = [stream_head(), chunk("one"), chunk("two"), {"end": True}]
    with Upstream(script) as upstream, Client.to(upstream) as client:
        client.send(request("GET", "/"))
        answer = client.read(enough=b"one")
        client.read_on(answer)
        assert (answer.ending, bytes(answer.body)) == (COMPLETE, b"onetwo")


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        ([send(HEAD + b"Content-Length: 5\r\n\r\nhe"), {"sleep": 0.05}, {"fin": True}], CLOSED),
        ([send(HEAD + b"Content-Length: 5\r\n\r\nhe"), {"sleep": 0.05}, {"rst": True}], RESET),
        ([send(HEAD + b"Content-Length: 5\r\n\r\nhe"), silence(5)], SILENT),
    ],
)
def test_the_ways_an_answer_can_stop_are_told_apart(script: list[dict[str, object]], ending: str) -> None:
    with Upstream(script) as upstream:
        answer = ask(upstream, request("GET", "/"), wait_s=0.3)
    assert (answer.ending, bytes(answer.body)) == (ending, b"he")


def test_requests_are_framed_once() -> None:
    assert request("POST", "/", body=b"abc").endswith(b"Content-Length: 3\r\n\r\nabc")
    assert b"Content-Length" not in request("POST", "/", ("Transfer-Encoding", "chunked"))
    assert chunked(b"ab", b"c") == b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
