"""The scripted upstream does what it is told and sees what is done to it."""

from __future__ import annotations

import socket

import pytest

from tests.support.upstream import Gate, Upstream, bound, chunk, reply, silence, stream, stream_head
from tests.support.waiting import eventually
from tests.support.wire import COMPLETE, Client, ask, chunked, request

GET = request("GET", "/any")


def test_scripts_are_played_in_turn_and_the_last_again() -> None:
    with Upstream(reply({"n": 1}), reply({"n": 2})) as upstream:
        assert [ask(upstream, GET).json()["n"] for _ in range(3)] == [1, 2, 2]
        assert [seen.target for seen in upstream.requests] == ["/any"] * 3


def test_bodies_are_recorded_whatever_their_framing() -> None:
    with Upstream() as upstream:
        ask(upstream, request("POST", "/", body=b"whole"))
        ask(upstream, request("POST", "/", ("Transfer-Encoding", "chunked")) + chunked(b"in ", b"chunks"))
        assert [bytes(seen.body) for seen in upstream.requests] == [b"whole", b"in chunks"]
        assert all(seen.is_whole for seen in upstream.requests)


def test_a_script_may_depend_on_the_request() -> None:
    with Upstream() as upstream:
        upstream.play_by(lambda seen: reply({"body": seen.body.decode()}))
        assert ask(upstream, request("POST", "/", body=b"hi")).json() == {"body": "hi"}


def test_a_script_may_start_before_the_body() -> None:
    early = [{"read": "head"}, *reply({"early": True}), {"read": "body"}]
    with Upstream(early) as upstream, Client.to(upstream) as client:
        client.send(request("POST", "/", ("Content-Length", "4")))
        assert client.read().json() == {"early": True}
        client.send(b"late")
        eventually(lambda: upstream.requests[0].is_whole)
        assert upstream.requests[0].body == b"late"


def test_operations_repeat() -> None:
    script = [stream_head(), {"chunk_parts": [["a", 3], ["b", 1]], "repeat": 2}, {"end": True}]
    with Upstream(script) as upstream:
        assert ask(upstream, GET).body == b"aaabaaab"


def test_a_gate_holds_a_script_until_it_is_opened() -> None:
    gate = Gate()
    script = [stream_head(), chunk("a"), {"gate": gate}, chunk("b"), {"end": True}]
    with Upstream(script) as upstream, Client.to(upstream) as client:
        client.send(GET)
        answer = client.read(enough=b"a")
        assert answer.body == b"a"
        gate.open()
        assert client.read_on(answer).body == b"ab"


@pytest.mark.parametrize(
    "script",
    [
        [silence()],
        [{"sleep": 30}],
        [stream_head(), {**chunk("x"), "repeat": 10_000, "gap": 0.01}],
        [{"gate": Gate()}],
    ],
    ids=["awaiting it", "asleep", "writing", "at a gate"],
)
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_peer_that_leaves_is_seen_at_once(script: list[dict[str, object]], how: str) -> None:
    with Upstream(script) as upstream:
        client = Client.to(upstream)
        client.send(GET)
        eventually(lambda: upstream.requests)
        left_at = client.half_close() if how == "fin" else client.reset()
        connection = upstream.requests[0].connection
        closed_at = eventually(lambda: connection.closed_at)
        assert closed_at >= left_at
        assert connection.how == how
        client.close()


def test_a_port_is_kept_while_connections_are_refused() -> None:
    with Upstream(listening=False) as upstream:
        with pytest.raises(ConnectionRefusedError):
            Client.to(upstream)
        upstream.listen()
        with Client.to(upstream) as client:
            assert client.ask(GET).status == 200
            upstream.refuse()
            with pytest.raises(ConnectionRefusedError):
                Client.to(upstream)
            assert client.ask(GET).status == 200, "what is open stays open"
            upstream.kill()
            assert client.wait_closed(2) == "reset"


def test_questions_of_gateways_are_kept_apart() -> None:
    with Upstream(models=["a", "b"]) as upstream:
        answer = ask(upstream, request("GET", "/v1/models"))
        assert [model["id"] for model in answer.json()["data"]] == ["a", "b"]
        assert (len(upstream.probes), len(upstream.requests)) == (1, 0)


def test_a_peer_that_is_not_read_is_held_up() -> None:
    with Upstream([{"read": "head"}, {"read": "nothing"}]) as upstream:
        client = Client.to(upstream, wait_s=0.5)
        client.send(request("POST", "/", ("Content-Length", "100000000")))
        sent = 0
        with pytest.raises(TimeoutError):
            sent = client.sock.sendall(b"x" * 100_000_000) or 0
        assert sent == 0
        client.reset()


def test_small_writes_are_not_held_back() -> None:
    """asyncio switches Nagle's algorithm off only where the protocol is named; without, 40 ms are lost."""
    with bound() as sock:
        assert sock.proto == socket.IPPROTO_TCP


def test_a_stream_is_whole() -> None:
    with Upstream(stream("data: a\n\n", "data: b\n\n")) as upstream:
        answer = ask(upstream, GET)
    assert (answer.ending, bytes(answer.body)) == (COMPLETE, b"data: a\n\ndata: b\n\n")
