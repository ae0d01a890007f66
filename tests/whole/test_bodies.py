"""Bodies go through byte for byte, are bounded, and need not have come before the worker answers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator

import pytest

from tests.support import procs
from tests.support.dialects import ANTHROPIC, OPENAI, Dialect
from tests.support.upstream import head, reply, send, silence
from tests.support.waiting import eventually
from tests.support.wire import Answer, ask, chunked, every_way, post_json, request
from tests.whole.conftest import Relay, lend, question, serving

JSON = ("Content-Type", "application/json")

# Numbers, escapes and spaces that no JSON library would write like this.
ODD_BODY = (
    b'{"model":"m",  "zeta":1,"alpha":{"b":2,"a":1},"seed":12345678901234567890,"temperature":0.10,'
    b'"x":[1e3,-0],\n"messages":[{"role":"user","content":"\\u00e9\\/ \xf0\x9f\x99\x82"}],"stream":false}'
)


def test_a_request_body_arrives_byte_for_byte(relay: Relay) -> None:
    ask(relay.gateway, request("POST", OPENAI.path, JSON, body=ODD_BODY))
    seen = relay.upstream.requests[0]
    assert seen.body == ODD_BODY
    assert seen.header("content-length") == str(len(ODD_BODY))
    assert seen.header("transfer-encoding") is None


def test_a_chunked_body_arrives_byte_for_byte(relay: Relay) -> None:
    data = request("POST", OPENAI.path, JSON, ("Transfer-Encoding", "chunked"))
    ask(relay.gateway, data + chunked(ODD_BODY[:10], ODD_BODY[10:]))
    assert relay.upstream.requests[0].body == ODD_BODY


def test_it_does_not_matter_how_a_request_is_cut(relay: Relay) -> None:
    relay.upstream.play(reply({"ok": True}))
    body = b'{"model":"m","messages":[]}'
    data = request("POST", OPENAI.path, JSON, body=body)
    for segments in list(every_way(data))[:: len(data) // 40]:
        relay.upstream.forget()
        with relay.connect() as client:
            client.send(*segments)
            assert client.read().json() == {"ok": True}
        assert relay.upstream.requests[0].body == body


def test_it_does_not_matter_how_an_answer_is_cut(relay: Relay) -> None:
    whole = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'5\r\n{"a":\r\n2\r\n1}\r\n0\r\n\r\n'
    )
    with relay.connect() as client:
        for segments in list(every_way(whole))[::4]:
            relay.upstream.play([{**send(segment), "gap": 0.001} for segment in segments])
            assert client.ask(request("GET", "/any")).json() == {"a": 1}


def test_a_model_of_any_name_goes_to_a_worker_that_may_say_no(relay: Relay) -> None:
    relay.upstream.play(reply({"error": {"message": "no such model"}}, 404))
    answer = relay.ask(OPENAI, model="unheard-of")
    assert (answer.status, answer.json()) == (404, {"error": {"message": "no such model"}})


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("body", [b"{", b"[]", b"", b'{"model": 7}', b"\xff\xfe", b'{"model": "m"} x'])
def test_a_body_that_is_no_request_is_refused_or_the_workers_to_judge(
    relay: Relay, dialect: Dialect, body: bytes
) -> None:
    relay.upstream.play(reply({"error": {"message": "bad"}}, 400))
    answer = ask(relay.gateway, request("POST", dialect.path, JSON, *dialect.headers, body=body))
    assert answer.status == 400
    assert answer.json()["error"]["message"]


def test_fields_may_be_null(relay: Relay) -> None:
    relay.upstream.play(reply(OPENAI.whole("a")))
    nothing = dict.fromkeys(("stream", "max_tokens", "max_completion_tokens", "stream_options", "user", "n"))
    assert relay.ask(OPENAI, **nothing).status == 200


# Limits


@pytest.fixture(scope="module")
def _small() -> Iterator[Relay]:
    with serving(1, {"max_body": "64KiB"}) as relay:
        yield relay


@pytest.fixture
def small(_small: Relay) -> Iterator[Relay]:
    """A gateway that takes bodies of 64 KiB."""
    yield from lend(_small)


def _is_too_large(answer: Answer, relay: Relay) -> None:
    assert answer.status == 413, answer
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert "65536" in answer.json()["error"]["message"], "the limit is named"
    assert not relay.upstream.requests


@pytest.mark.parametrize("path", [OPENAI.path, "/upload"])
def test_a_declared_body_over_the_limit_is_refused_before_it_comes(small: Relay, path: str) -> None:
    with small.connect() as client:
        client.send(request("POST", path, JSON, ("Content-Length", "100000")))
        _is_too_large(client.read(), small)


def test_it_is_refused_instead_of_a_100(small: Relay) -> None:
    with small.connect() as client:
        headers = (JSON, ("Content-Length", "100000"), ("Expect", "100-continue"))
        client.send(request("POST", OPENAI.path, *headers))
        answer = client.read()
    assert not answer.interim
    _is_too_large(answer, small)


def test_a_chunked_body_over_the_limit_is_refused_while_it_comes(small: Relay) -> None:
    with small.connect() as client:
        client.send(request("POST", OPENAI.path, JSON, ("Transfer-Encoding", "chunked")))
        client.send(chunked(b"x" * 80_000, last=False))
        _is_too_large(client.read(), small)


def test_the_refusal_is_worded_for_messages_as_well(small: Relay) -> None:
    with small.connect() as client:
        client.send(request("POST", ANTHROPIC.path, JSON, *ANTHROPIC.headers, ("Content-Length", "100000")))
        answer = client.read()
    assert answer.status == 413
    assert answer.json()["type"] == "error"


def test_a_refusal_reaches_a_client_that_goes_on_sending(small: Relay) -> None:
    """Closing at once would reset the connection and take the answer with it."""
    with small.connect() as client:
        data = request("POST", OPENAI.path, JSON, ("Content-Length", str(2_000_000)))
        client.send(data, b"x" * 200_000)
        assert client.read().status == 413


def test_a_body_at_the_limit_passes(small: Relay) -> None:
    small.upstream.play(reply({"ok": True}))
    body = json.dumps({"model": "m", "messages": [], "pad": "x" * 65_000}).encode()
    assert len(body) <= 65536
    assert ask(small.gateway, request("POST", OPENAI.path, JSON, body=body)).status == 200


def test_all_bodies_held_are_bounded_together(start: Callable[..., Relay]) -> None:
    """Ten bodies of 8 MiB with room for 32 MiB: none may cost more, all are answered somehow."""
    relay = start(1, {"max_body": "16MiB", "max_held": "32MiB"})
    relay.upstream.play(reply({"ok": True}))
    body = b'{"model":"m","pad":"' + b"x" * (8 << 20)
    before = procs.resident_kib(relay.gateway.pid)
    clients = [relay.connect() for _ in range(10)]
    for client in clients:
        client.sock.settimeout(0.5)
        client.send(request("POST", OPENAI.path, JSON, ("Content-Length", str(len(body) + 2))))
        try:
            client.send(body)
        except (TimeoutError, ConnectionError):
            continue
    grown = procs.resident_kib(relay.gateway.pid) - before
    print(f"{grown} KiB more")
    assert grown < 64 * 1024
    for client in clients:
        client.reset()
    relay.gateway.wait_idle()


# Answers that come early


EARLY = reply({"error": {"message": "bad key", "code": "invalid_api_key"}}, 401, ("connection", "close"))


def test_an_answer_before_the_end_of_an_upload_is_passed_on(relay: Relay) -> None:
    relay.upstream.play([{"read": "head"}, *EARLY, {"fin": True}])
    part = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n'
    file = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + b"x" * 8_000_000
    body = part + file + b"\r\n--b--\r\n"
    kind = ("Content-Type", "multipart/form-data; boundary=b")
    with relay.connect() as client:
        try:
            client.send(request("POST", "/v1/audio/transcriptions", kind, body=body))
        except ConnectionError:
            pass  # the gateway need not read what nobody wants; the answer is what counts
        answer = client.read()
    assert answer.status == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_an_answer_does_not_wait_for_a_client_that_has_stopped_sending(relay: Relay) -> None:
    relay.upstream.play([{"read": "head"}, *EARLY, {"fin": True}])
    with relay.connect() as client:
        client.send(request("POST", "/upload", ("Content-Length", "1000")) + b"part")
        assert client.read().status == 401


def test_an_early_answer_does_not_poison_the_connection(relay: Relay) -> None:
    """The rest of an upload must not be read as the next request, by either side."""
    early = reply({"early": True})
    relay.upstream.play([{"read": "head"}, *early, silence()], reply({"next": True}))
    with relay.connect() as client:
        client.send(request("POST", "/upload", ("Content-Length", "60")) + b"part")
        assert client.read().json() == {"early": True}
    answer = ask(relay.gateway, request("GET", "/next"))
    assert answer.json() == {"next": True}


def test_multipart_passes_unchanged_and_with_its_boundary(relay: Relay) -> None:
    body = (
        b'--x y\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b'--x y\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\x01\r\n--x y--\r\n'
    )
    kind = ("Content-Type", 'multipart/form-data; boundary="x y"')
    ask(relay.gateway, request("POST", "/v1/audio/transcriptions", kind, body=body))
    seen = relay.upstream.requests[0]
    assert seen.body == body
    assert seen.header("content-type") == kind[1]


# Encodings


def _zipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def test_a_compressed_request_passes_as_it_is(relay: Relay) -> None:
    body = _zipped(json.dumps(OPENAI.ask()))
    ask(relay.gateway, request("POST", OPENAI.path, JSON, ("Content-Encoding", "gzip"), body=body))
    seen = relay.upstream.requests[0]
    assert seen.body == body
    assert seen.header("content-encoding") == "gzip"


def test_a_compressed_plain_answer_passes_as_it_is_and_its_usage_is_read(relay: Relay) -> None:
    body = _zipped(json.dumps(OPENAI.whole("a")))
    headers = (("content-encoding", "gzip"), ("content-type", "application/json"))
    relay.upstream.play([head(200, *headers, ("content-length", str(len(body)))), send(body)])
    before = relay.gateway.metrics().total("relayd_tokens_total", type="input")
    data = post_json(OPENAI.path, OPENAI.ask(), ("Accept-Encoding", "gzip"))
    answer = ask(relay.gateway, data)
    assert answer.body == body
    assert answer.header("content-encoding") == "gzip"
    eventually(lambda: relay.gateway.metrics().total("relayd_tokens_total", type="input") - before == 10)


def test_a_compressed_stream_that_nobody_asked_for_passes_as_it_is(relay: Relay) -> None:
    body = _zipped("".join(OPENAI.events("a", "b")))
    headers = (("content-encoding", "gzip"), ("content-type", "text/event-stream"))
    relay.upstream.play(
        [head(200, *headers, ("transfer-encoding", "chunked")), send(chunked(body[:20], body[20:]))]
    )
    answer = relay.ask(OPENAI, stream=True)
    assert answer.is_complete
    assert answer.body == body
    assert answer.header("content-encoding") == "gzip"


def test_streams_are_asked_for_as_they_are_and_plain_answers_as_the_client_likes(relay: Relay) -> None:
    accepts = ("Accept-Encoding", "gzip, deflate, br")
    ask(relay.gateway, post_json(OPENAI.path, OPENAI.ask(stream=True), accepts))
    ask(relay.gateway, post_json(OPENAI.path, OPENAI.ask(), accepts))
    streamed, plain = relay.upstream.requests
    assert streamed.values("accept-encoding") == ["identity"]
    assert plain.values("accept-encoding") == ["gzip, deflate, br"]


def test_a_bomb_is_not_set_off(relay: Relay) -> None:
    """100 MiB of zeros in 100 KiB: the copy that is decoded for usage is bounded."""
    body = gzip.compress(b"\0" * (100 << 20), mtime=0)
    headers = (("content-encoding", "gzip"), ("content-type", "application/json"))
    relay.upstream.play([head(200, *headers, ("content-length", str(len(body)))), send(body)])
    procs.forget_peak(relay.gateway.pid)
    before = procs.resident_kib(relay.gateway.pid)
    assert relay.ask(OPENAI).body == body
    relay.gateway.wait_idle()
    assert procs.peak_kib(relay.gateway.pid) - before < 16 * 1024


def test_an_answer_without_a_body_has_none(relay: Relay) -> None:
    relay.upstream.play([head(204)])
    with relay.connect() as client:
        answer = client.ask(request("DELETE", "/thing"))
        assert (answer.status, answer.ending, bytes(answer.body)) == (204, "complete", b"")
        relay.upstream.play([head(304, ("etag", '"a"'))])
        assert client.ask(request("GET", "/thing")).status == 304


def test_HEAD_has_a_length_and_no_body(relay: Relay) -> None:
    relay.upstream.play([head(200, ("content-length", "1234"))])
    with relay.connect() as client:
        for _ in range(2):
            answer = client.ask(request("HEAD", "/thing"))
            assert (answer.status, answer.header("content-length"), answer.ending) == (
                200,
                "1234",
                "complete",
            )
    assert len(relay.upstream.requests) == 2


def test_large_questions_pass_at_default_settings(relay: Relay) -> None:
    relay.upstream.play(reply(OPENAI.whole("a")))
    long = [{"role": "user", "content": "word " * 1_000_000}]
    data = question(OPENAI, messages=long)
    assert ask(relay.gateway, data).status == 200
    assert len(relay.upstream.requests[0].body) > 5_000_000
