"""Stopping: not ready first, then no new connections, then nothing that is cut; or at once, if told twice."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dialects import OPENAI
from tests.support.upstream import Gate, chunk, reply, silence, stream, stream_head
from tests.support.waiting import eventually
from tests.support.wire import CLOSED, COMPLETE, RESET, Client, ask, request
from tests.whole.conftest import Relay, question

Start = Callable[..., Relay]

TERM, INT = signal.SIGTERM, signal.SIGINT
GET = request("GET", "/any")
EVENTS = OPENAI.events(*("word" for _ in range(30)))


def _streaming(relay: Relay, clients: int) -> list[Client]:
    """Return clients in the middle of a stream that lasts 1.5 s."""
    relay.upstream.play(stream(*EVENTS, gap=0.05))
    connected = [relay.connect() for _ in range(clients)]
    for client in connected:
        client.send(question(OPENAI, stream=True))
    eventually(lambda: len(relay.upstream.requests) == clients)
    return connected


def _was_told(client: Client) -> bool:
    """True if a client knows that it has no whole answer: cut, or refused before it had begun."""
    answer = client.read()
    return answer.ending in (CLOSED, RESET) or answer.status == 503


def test_streams_run_to_their_end(start: Start) -> None:
    relay = start(1, {"drain_delay": "200ms"})
    clients = _streaming(relay, 10)
    relay.gateway.signal(TERM)
    for client in clients:
        answer = client.read()
        assert (answer.ending, bytes(answer.body)) == (COMPLETE, "".join(EVENTS).encode())
    assert relay.gateway.wait() == 0


def test_balancers_are_told_before_anybody_is_refused(start: Start) -> None:
    """While the balancer has not noticed yet, requests are served as ever."""
    relay = start(1, {"drain_delay": "1s"})
    relay.upstream.play(reply({"ok": True}))
    relay.gateway.signal(TERM)
    eventually(lambda: relay.gateway.ask_admin("/readyz")[0] == 503, 1, "not ready")
    assert relay.gateway.ask_admin("/livez")[0] == 200
    for _ in range(20):
        assert ask(relay.gateway, GET).status == 200
    assert relay.gateway.wait() == 0


def test_none_of_a_steady_flow_fails(start: Start) -> None:
    """New connections at 50 a second until readyz says no, as a balancer would; ten streams besides."""
    relay = start(1, {"drain_delay": "500ms"})
    clients = _streaming(relay, 10)
    relay.upstream.play(reply({"ok": True}))
    statuses = []
    for number in range(40):
        if number == 20:
            relay.gateway.signal(TERM)
        if number >= 20 and relay.gateway.ask_admin("/readyz")[0] != 200:
            break
        statuses.append(ask(relay.gateway, GET).status)
        time.sleep(0.02)
    assert set(statuses) == {200}
    assert {client.read().ending for client in clients} == {COMPLETE}
    assert relay.gateway.wait() == 0


def test_kept_connections_are_told_to_close(start: Start) -> None:
    relay = start(1, {"drain_delay": "0"})
    gate = Gate()
    relay.upstream.play([{"gate": gate}, *reply({"ok": True})])
    with relay.connect() as client:
        client.send(GET)
        eventually(lambda: relay.upstream.requests)
        relay.gateway.signal(TERM)
        eventually(lambda: _is_refused(relay), 3, "no new connections")
        gate.open()
        answer = client.read()
        assert answer.status == 200
        assert (answer.header("connection") or "").lower() == "close"
        assert client.wait_closed(3) == CLOSED
    assert relay.gateway.wait() == 0


def _is_refused(relay: Relay) -> bool:
    try:
        relay.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_idle_connections_do_not_hold_it_up(start: Start) -> None:
    relay = start(1, {"drain_delay": "0"})
    clients = [relay.connect() for _ in range(20)]
    for client in clients[:10]:
        client.ask(GET)
    began = time.monotonic()
    relay.gateway.signal(TERM)
    assert relay.gateway.wait() == 0
    assert time.monotonic() - began < 3


def test_an_upload_is_finished(start: Start) -> None:
    relay = start(1, {"drain_delay": "0"})
    relay.upstream.play(reply({"ok": True}))
    body = b'{"model": "m", "x": "' + b"y" * 50_000 + b'"}'
    with relay.connect() as client:
        client.send(request("POST", OPENAI.path, ("Content-Length", str(len(body)))) + body[:30_000])
        eventually(lambda: relay.gateway.metrics().text)
        relay.gateway.signal(TERM)
        time.sleep(0.3)
        client.send(body[30_000:])
        assert client.read().json() == {"ok": True}
    assert relay.gateway.wait() == 0


@pytest.mark.parametrize("number", [TERM, INT], ids=["TERM", "INT"])
def test_what_takes_too_long_is_cut_visibly_and_accounted_for(
    start: Start, number: signal.Signals, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    relay = start(1, {"drain_delay": "0", "drain_timeout": "500ms", "log.sinks": f"file:{log}"})
    relay.upstream.play([stream_head(), chunk(OPENAI.preamble), chunk(OPENAI.text("a")), silence()])
    with relay.connect() as client, relay.connect() as second, relay.connect() as third:
        client.send(question(OPENAI, stream=True))
        answer = client.read(enough=b"a")
        relay.upstream.play([silence()])
        second.send(question(OPENAI))
        eventually(lambda: len(relay.upstream.requests) == 2)
        third.send(request("POST", OPENAI.path, ("Content-Length", "100")) + b'{"model"')
        eventually(lambda: relay.gateway.in_flight() == 3)
        relay.gateway.signal(number)
        assert client.read_on(answer).ending == CLOSED
        assert b'"draining"' in answer.body
        assert b"[DONE]" not in answer.body
        for waiting in (second, third):
            refused = waiting.read()
            assert (refused.status, refused.json()["error"]["code"]) == (503, "draining")
    assert relay.gateway.wait() == 0
    for asked in relay.upstream.requests:
        eventually(lambda connection=asked.connection: connection.closed_at)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted((line["code"], line["outcome"], line["fault"]) for line in lines) == [
        (200, "stream_error", "draining"),
        (503, "refused", "draining"),
        (503, "refused", "draining"),
    ]


@pytest.mark.parametrize("second", [TERM, INT], ids=["TERM", "INT"])
def test_a_second_signal_ends_it_at_once(start: Start, second: signal.Signals) -> None:
    relay = start(1, {"drain_delay": "10s"})
    clients = _streaming(relay, 3)
    relay.gateway.signal(TERM)
    eventually(lambda: relay.gateway.ask_admin("/readyz")[0] == 503, 2)
    began = time.monotonic()
    relay.gateway.signal(second)
    relay.gateway.wait()
    assert time.monotonic() - began < 2
    assert all(_was_told(client) for client in clients)


def test_INT_stops_without_a_drain(start: Start) -> None:
    relay = start(1, {"drain_delay": "10s"})
    clients = _streaming(relay, 3)
    began = time.monotonic()
    relay.gateway.signal(INT)
    assert relay.gateway.wait() in (0, 130, -signal.SIGINT)
    assert time.monotonic() - began < 3
    assert all(_was_told(client) for client in clients)


def test_an_idle_gateway_stops_without_a_word(start: Start) -> None:
    relay = start(1, {"drain_delay": "0"})
    relay.gateway.signal(TERM)
    assert relay.gateway.wait() == 0
    assert "error" not in relay.gateway.stderr.lower()
