"""Connections: many, idle, slow, pipelined, reused, stale."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import procs
from tests.support.dialects import OPENAI
from tests.support.upstream import Request, Script, reply, send, silence, stream
from tests.support.waiting import eventually, settled
from tests.support.wire import CLOSED, COMPLETE, RESET, SILENT, Client, ask, chunked, request
from tests.whole.conftest import Relay, question

GET = request("GET", "/any")


# Many


def test_ten_thousand_idle_connections(start: Callable[..., Relay]) -> None:
    wanted = 10_000
    room = procs.raise_descriptor_limit(wanted + 1000) - 500
    if room < wanted:
        print(f"only {room} connections: the descriptor limit of this system allows no more")
    relay = start()
    before = procs.descriptors(relay.gateway.pid)
    memory = procs.resident_kib(relay.gateway.pid)
    clients = [relay.connect() for _ in range(min(wanted, room))]
    eventually(lambda: procs.descriptors(relay.gateway.pid) - before >= len(clients), 30)
    grown = procs.resident_kib(relay.gateway.pid) - memory
    print(f"{grown / len(clients):.1f} KiB for each idle connection")
    for client in clients[:: len(clients) // 50]:
        assert client.ask(GET).status == 200
    assert ask(relay.gateway, GET).status == 200
    for client in clients:
        client.close()
    eventually(lambda: procs.descriptors(relay.gateway.pid) <= before + 5, 30, "descriptors given back")


def test_two_hundred_streams_at_once(relay: Relay) -> None:
    events = OPENAI.events(*("word" for _ in range(20)))
    relay.upstream.play(stream(*events, gap=0.01))
    clients = [relay.connect() for _ in range(200)]
    for client in clients:
        client.send(question(OPENAI, stream=True))
    eventually(lambda: relay.gateway.in_flight() >= 1)
    for client in clients:
        answer = client.read()
        assert (answer.ending, bytes(answer.body)) == (COMPLETE, "".join(events).encode())
        client.close()


# Kept alive


def test_a_clients_connection_serves_many_requests(relay: Relay) -> None:
    with relay.connect() as client:
        for number in range(50):
            relay.upstream.play(reply({"number": number}))
            assert client.ask(request("GET", f"/{number}")).json() == {"number": number}


def test_a_workers_connection_serves_many_clients(relay: Relay) -> None:
    ask(relay.gateway, GET)
    relay.upstream.forget()
    for _ in range(20):
        assert ask(relay.gateway, GET).status == 200
    assert not relay.upstream.connections, "no new connection was made"
    assert len({id(seen.connection) for seen in relay.upstream.requests}) == 1


def test_a_stream_gives_its_connection_back(relay: Relay) -> None:
    relay.upstream.play(stream(*OPENAI.events("a")))
    assert relay.ask(OPENAI, stream=True).is_complete
    relay.upstream.forget()
    assert relay.ask(OPENAI, stream=True).is_complete
    assert not relay.upstream.connections


def test_a_cut_answers_connection_is_not_used_again(relay: Relay) -> None:
    relay.upstream.play([send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok HTTP/1.1 200 OK\r\n\r\n")])
    with relay.connect() as client:
        assert client.ask(GET).body == b"ok"
    relay.upstream.play(reply({"mine": True}))
    assert ask(relay.gateway, GET).json() == {"mine": True}


@pytest.mark.parametrize("header", [("Connection", "close"), None], ids=["Connection: close", "HTTP/1.0"])
def test_a_client_that_wants_to_close_is_closed(relay: Relay, header: tuple[str, str] | None) -> None:
    with relay.connect() as client:
        data = request("GET", "/any", header) if header else request("GET", "/any", version="1.0")
        answer = client.ask(data)
        assert (answer.status, answer.ending) == (200, COMPLETE)
        assert client.wait_closed(2) == CLOSED


def test_an_HTTP_1_0_client_may_ask_to_be_kept(relay: Relay) -> None:
    with relay.connect() as client:
        for _ in range(2):
            answer = client.ask(request("GET", "/any", ("Connection", "keep-alive"), version="1.0"))
            assert answer.status == 200
            if (answer.header("connection") or "").lower() != "keep-alive":
                assert client.wait_closed(2) == CLOSED
                break


# Pipelined


def test_pipelined_requests_are_answered_in_order(relay: Relay) -> None:
    def by_path(seen: Request) -> Script:
        slowness = 0.1 if seen.target == "/0" else 0.0
        return [{"sleep": slowness}, *reply({"path": seen.target})]

    relay.upstream.play_by(by_path)
    with relay.connect() as client:
        client.send(b"".join(request("GET", f"/{number}") for number in range(10)))
        for number in range(10):
            assert client.read().json() == {"path": f"/{number}"}


def test_pipelined_bodies_are_told_apart(relay: Relay) -> None:
    relay.upstream.play_by(lambda seen: reply({"body": seen.body.decode()}))
    with relay.connect() as client:
        client.send(
            request("POST", "/a", body=b"first"),
            request("POST", "/b", ("Transfer-Encoding", "chunked")) + chunked(b"sec", b"ond"),
            request("GET", "/c"),
        )
        assert [client.read().json()["body"] for _ in range(3)] == ["first", "second", ""]


# Expect


def test_100_continue_is_answered_at_once(relay: Relay) -> None:
    relay.upstream.play(reply({"ok": True}))
    body = b'{"model":"m"}'
    headers = (("Content-Length", str(len(body))), ("Expect", "100-continue"))
    with relay.connect(wait_s=3.0) as client:
        client.send(request("POST", OPENAI.path, *headers))
        assert client.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert client.read().json() == {"ok": True}
    assert relay.upstream.requests[0].body == body
    assert relay.upstream.requests[0].header("expect") is None


def test_an_unknown_expectation_is_417(relay: Relay) -> None:
    answer = ask(relay.gateway, request("POST", OPENAI.path, ("Expect", "a-miracle"), body=b"{}"))
    assert answer.status == 417


# Slow


def test_a_head_that_drips_is_not_waited_for(start: Callable[..., Relay]) -> None:
    relay = start(1, {"front.head_timeout": "1s"})
    with relay.connect() as client:
        began = time.monotonic()
        ending = _drip(client, GET[:-2], 0.1)
        assert ending in (CLOSED, RESET)
        assert time.monotonic() - began < 5
    assert not relay.upstream.requests


def _drip(client: Client, data: bytes, gap_s: float) -> str:
    """Send byte by byte until the other side ends the connection; return how it did."""
    client.sock.settimeout(gap_s)
    for byte in data * 2:
        try:
            client.send(bytes([byte]))
            if not client.sock.recv(1000):
                return CLOSED
        except TimeoutError:
            continue
        except ConnectionError:
            return RESET
    return SILENT


def test_a_client_is_told_why(start: Callable[..., Relay]) -> None:
    relay = start(1, {"front.head_timeout": "500ms"})
    with relay.connect() as client:
        client.send(GET[:20])
        answer = client.read()
        assert answer.status == 408
        assert client.wait_closed(3) == CLOSED


def test_a_body_that_stops_is_not_waited_for(start: Callable[..., Relay]) -> None:
    relay = start(1, {"front.body_timeout": "500ms"})
    relay.upstream.play([{"read": "head"}, {"read": "body"}, *reply({})])
    for path in (OPENAI.path, "/upload"):
        with relay.connect() as client:
            client.send(request("POST", path, ("Content-Length", "100")) + b"a few")
            answer = client.read()
            assert answer.status in (0, 408)
            assert client.wait_closed(3) in (CLOSED, RESET)
    relay.gateway.wait_idle()


def test_a_body_that_is_slow_but_comes_is_waited_for(start: Callable[..., Relay]) -> None:
    relay = start(1, {"front.body_timeout": "500ms"})
    relay.upstream.play(reply({"ok": True}))
    body = b'{"model": "m"}'
    with relay.connect() as client:
        client.send(request("POST", OPENAI.path, ("Content-Length", str(len(body)))))
        client.send(*(body[i : i + 1] for i in range(len(body))), gap_s=0.1)
        assert client.read().status == 200


def test_an_idle_connection_is_closed_in_the_end(start: Callable[..., Relay]) -> None:
    relay = start(1, {"front.keepalive": "500ms"})
    with relay.connect() as client:
        assert client.ask(GET).status == 200
        assert client.wait_closed(4) == CLOSED


# Stale connections


def _closes_instead(alive: int) -> Callable[[Request], Script]:
    """Answer `alive` requests on each connection; close it without a byte when another comes."""
    return lambda seen: [{"fin": True}] if seen.connection.requests > alive else reply({"ok": True})


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_dies_unused_is_replaced_unseen(relay: Relay, method: str) -> None:
    """The worker closed it at the moment it was used again: nothing was read, so nothing happens twice."""
    relay.upstream.play_by(_closes_instead(alive=1))
    data = question(OPENAI) if method == "POST" else GET
    for _ in range(5):
        assert ask(relay.gateway, data).json() == {"ok": True}
    bodies = {bytes(seen.body) for seen in relay.upstream.requests}
    assert len(bodies) == 1, "the body was sent whole both times"


def test_one_that_resets_is_as_well(relay: Relay) -> None:
    relay.upstream.play_by(
        lambda seen: [{"rst": True}] if seen.connection.requests > 1 else reply({"ok": True}),
    )
    for _ in range(5):
        assert relay.ask(OPENAI).json() == {"ok": True}


def test_a_fresh_connection_that_dies_is_a_failure(start: Callable[..., Relay]) -> None:
    relay = start()
    relay.upstream.play(reply({"ok": True}), [{"fin": True}])
    assert relay.ask(OPENAI).status == 200
    assert relay.ask(OPENAI).status == 502
    assert len(relay.upstream.requests) == 3, "first answer, then one try on the old connection, one on a new"


def test_a_connection_that_answered_a_byte_is_not_stale(start: Callable[..., Relay]) -> None:
    relay = start()
    relay.upstream.play(reply({"ok": True}), [send("HTTP/1.1 200 O"), {"fin": True}])
    assert relay.ask(OPENAI).status == 200
    assert relay.ask(OPENAI).status == 502
    assert len(relay.upstream.requests) == 2


def test_a_connection_closed_in_the_pool_is_not_used(relay: Relay) -> None:
    relay.upstream.play([*reply({"ok": True}), {"fin": True}])
    for _ in range(5):
        assert ask(relay.gateway, GET).json() == {"ok": True}
        settled(lambda: len(relay.upstream.requests), 0.05)
    assert len(relay.upstream.requests) == 5


def test_an_answer_nobody_asked_for_is_thrown_away(relay: Relay) -> None:
    """A worker that talks on an idle connection loses it; the next client gets its own answer."""
    relay.upstream.play([*reply({"ok": True}), {"sleep": 0.1}, *reply({"stolen": True})])
    assert ask(relay.gateway, GET).json() == {"ok": True}
    connection = relay.upstream.requests[0].connection
    eventually(lambda: connection.closed_at, 3, "the connection is dropped")
    relay.upstream.play(reply({"mine": True}))
    assert ask(relay.gateway, GET).json() == {"mine": True}


# What is not HTTP


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"hello\r\n\r\n",
        b"\0" * 100,
    ],
    ids=["TLS", "HTTP/2", "words", "zeros"],
)
def test_other_protocols_are_turned_away(relay: Relay, data: bytes) -> None:
    with relay.connect() as client:
        client.send(data)
        client.half_close()
        assert client.wait_closed(5) in (CLOSED, RESET)
    assert not relay.upstream.requests


def test_connections_that_say_nothing_cost_nothing(relay: Relay) -> None:
    before = procs.descriptors(relay.gateway.pid)
    for _ in range(200):
        socket.create_connection((relay.gateway.host, relay.gateway.port)).close()
    eventually(lambda: procs.descriptors(relay.gateway.pid) <= before + 2)


def test_a_silent_worker_does_not_hold_up_the_others(start: Callable[..., Relay]) -> None:
    """Of twenty questions at once those of the good worker are answered at once."""
    relay = start(2, {"policy": "round_robin", "resilience.timeouts.first_token": "1s"})
    relay.upstreams[0].play([silence()])
    relay.upstreams[1].play(reply(OPENAI.whole("a")))
    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: relay.ask(OPENAI), range(20)))
    assert {answer.status for answer in answers} == {200}
    assert sum(answer.at[-1][0] - began < 0.8 for answer in answers) >= 10


def test_a_worker_that_is_full_of_connects_is_waited_for(start: Callable[..., Relay]) -> None:
    """Three hundred questions at once for a worker that accepts slowly: every one is answered."""
    relay = start()
    relay.upstream.play([{"sleep": 0.1}, *reply({"ok": True})])
    clients = [relay.connect() for _ in range(300)]
    for client in clients:
        client.send(question(OPENAI))
    assert {client.read().status for client in clients} == {200}
    for client in clients:
        client.close()
