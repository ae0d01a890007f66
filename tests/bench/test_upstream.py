"""The fast upstream speaks enough HTTP and enough of the OpenAI API to stand behind any gateway."""

import http.client
import json
import socket

import pytest

from bench.wire import ANSWER_BYTES, STREAM_EVENTS, STREAM_SENDS


def ask(upstream, body, headers=None):
    link = http.client.HTTPConnection(upstream.address.host, upstream.address.port, timeout=10)
    link.request("POST", "/v1/chat/completions", body=body, headers=headers or {})
    answer = link.getresponse()
    data = answer.read()
    link.close()
    return answer, data


def events_of(data):
    return [line.removeprefix(b"data: ") for line in data.splitlines() if line]


def test_a_plain_answer_has_the_size_the_load_expects(upstream):
    answer, data = ask(upstream, b'{"model": "bench"}')
    assert (answer.status, len(data)) == (200, ANSWER_BYTES)
    assert json.loads(data)["choices"][0]["message"]["role"] == "assistant"


def test_a_stream_has_the_events_the_load_expects(upstream):
    _, data = ask(upstream, b'{"stream": true, "bench_gap_ms": 0}')
    events = events_of(data)
    assert len(events) == STREAM_EVENTS + 1
    assert events[-1] == b"[DONE]"
    first, *others = [json.loads(event) for event in events[:-1]]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [event["choices"][0]["finish_reason"] for event in others]
    assert reasons == [None] * (STREAM_SENDS - 1) + ["stop"]
    stamps = [int(event["id"].removeprefix("chatcmpl-"), 16) for event in (first, *others)]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("sends", [1, 2, 5])
def test_the_body_says_how_many(upstream, sends):
    _, data = ask(upstream, b'{"stream":true,"bench_gap_ms":1,"max_tokens":%d}' % sends)
    assert len(events_of(data)) == max(2, sends) + 2


def test_a_chunked_body_is_read(upstream):
    answer, data = ask(upstream, iter([b'{"stream"', b": true, ", b'"max_tokens":2}']))
    assert answer.status == 200
    assert events_of(data)[-1] == b"[DONE]"


def test_requests_cut_anywhere_and_sent_together_are_answered_in_order(upstream):
    request = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
    both = request + request.replace(b"POST", b"PUT")
    with socket.create_connection((upstream.address.host, upstream.address.port), timeout=10) as link:
        for place in range(len(both)):
            link.sendall(both[place : place + 1])
        heard = b""
        while b"no such path" not in heard:
            more = link.recv(4096)
            assert more, heard
            heard += more
    assert heard.startswith(b"HTTP/1.1 200")
    assert heard.count(b"HTTP/1.1 404") == 1


def test_what_is_not_http_is_refused(upstream):
    with socket.create_connection((upstream.address.host, upstream.address.port), timeout=10) as link:
        link.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 400")
