"""Clients that send what they should not, or what is right in an unusual way.

Each test is something that once went wrong.  What workers say is in `test_attacks.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.cases import request_cases
from tests.conformance.exceptions import known_exceptions
from tests.support import procs
from tests.support.dialects import OPENAI
from tests.support.upstream import Gate, Request, Script, reply
from tests.support.waiting import eventually
from tests.support.wire import CLOSED, SILENT, Client, ask, request
from tests.whole.conftest import Relay, question

MIB = 1 << 20
FORM = ("Content-Type", "multipart/form-data; boundary=x")
FORM_PATH = "/v1/audio/transcriptions"
UPGRADE = (("Connection", "Upgrade"), ("Upgrade", "websocket"))


def _tell(seen: Request) -> Script:
    """An answer that says which request it is for."""
    return reply({"to": seen.target, "size": len(seen.body)})


def _cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Forms


def test_a_form_full_of_beginnings_does_not_stop_the_gateway(relay: Relay) -> None:
    relay.upstream.play_by(_tell)
    before = _cpu_s(relay.gateway.pid)
    with relay.connect() as client:
        client.send(request("POST", FORM_PATH, FORM, body=b"content-disposition:" * 5000))
        assert ask(relay.gateway, request("GET", "/other"), wait_s=5).status == 200
        assert client.read().json() == {"to": FORM_PATH, "size": 100_000}
    assert _cpu_s(relay.gateway.pid) - before < 1


def test_a_form_that_comes_in_small_pieces_is_not_searched_for_each(relay: Relay) -> None:
    relay.upstream.play_by(_tell)
    with relay.connect() as client:
        client.send(request("POST", FORM_PATH, FORM, ("Content-Length", "1001000"), body=b"x" * 1_000_000))
        before = _cpu_s(relay.gateway.pid)
        client.send(*[b"y"] * 1000, gap_s=0.001)  # or they would arrive together
        assert client.read().json() == {"to": FORM_PATH, "size": 1_001_000}
    assert _cpu_s(relay.gateway.pid) - before < 0.5


# Pipelined heads


def test_a_pipelined_head_is_as_large_as_another(relay: Relay) -> None:
    gate = Gate()
    relay.upstream.play([{"gate": gate}, *reply({})], reply({}))
    with relay.connect() as client:
        client.send(request("GET", "/first"))
        eventually(lambda: relay.upstream.requests)
        client.send(request("GET", "/second", *[(f"X-{n}", "v" * 60_000) for n in range(5)]))
        time.sleep(0.1)  # time to read it, behind a request that is being served
        gate.open()
        assert client.read().status == 200
        assert client.read().status == 431
        assert client.wait_closed() != SILENT
    assert [seen.target for seen in relay.upstream.requests] == ["/first"]


def test_pipelined_heads_do_not_fill_the_memory(relay: Relay) -> None:
    gate = Gate()
    relay.upstream.play([{"gate": gate}, *reply({})], reply({}))
    huge = request("GET", "/next", *[(f"X-{n}", "v" * 60_000) for n in range(240)])
    client = relay.connect(wait_s=0.5)
    client.send(request("GET", "/first"))
    eventually(lambda: relay.upstream.requests)
    before = procs.resident_kib(relay.gateway.pid)
    taken = client.send_until_held_back(huge, 128 * MIB)
    grown = procs.resident_kib(relay.gateway.pid) - before
    print(f"{grown} KiB more, {taken // MIB} MiB taken")
    assert taken < 16 * MIB
    assert grown < 8 * 1024
    client.reset()


def _send_behind(relay: Relay, client: Client, beginning: bytes, way: str) -> None:
    """Send a request and the beginning of another in one of `WAYS`; read the first's answer."""
    gate = Gate()
    relay.upstream.play([{"gate": gate}, *reply({"to": "/first"})], reply({"to": "/second"}))
    if way == "in the same read":
        client.send(request("GET", "/first") + beginning)
    elif way == "in a later read":
        client.send(request("GET", "/first"))
        eventually(lambda: relay.upstream.requests)
        client.send(beginning)
        time.sleep(0.1)  # time to read it
    else:
        client.send(request("POST", "/first", ("Content-Length", "5")))
        eventually(lambda: relay.gateway.in_flight() == 1)
        client.send(b"12345" + beginning)
    gate.open()
    assert client.read().json() == {"to": "/first"}


WAYS = pytest.mark.parametrize("way", ["in the same read", "in a later read", "behind a body"])


@WAYS
def test_a_pipelined_head_that_does_not_end_is_timed(start: Callable[..., Relay], way: str) -> None:
    relay = start(1, {"front.head_timeout": "500ms", "front.keepalive": "60s"})
    with relay.connect(wait_s=3) as client:
        _send_behind(relay, client, b"GET /second HTTP/1.1\r\nX: ", way)
        # Behind a body only the parser knows how the head begins, so there it closes without a word.
        assert client.read().status == (0 if way == "behind a body" else 408)
        assert client.wait_closed() == CLOSED


@WAYS
def test_a_first_line_that_began_behind_the_last_request_is_whole(relay: Relay, way: str) -> None:
    with relay.connect() as client:
        _send_behind(relay, client, b"GET /second HT", way)
        client.send(b"TP/1.1\r\nHost: x\r\n", b"\r\n", gap_s=0.05)
        assert client.read().json() == {"to": "/second"}


def test_what_follows_a_body_is_not_its_framing(relay: Relay) -> None:
    relay.upstream.play_by(_tell)
    small, large = question(OPENAI), question(OPENAI, more="y" * 30_000)
    lines, blank, body = small.partition(b"\r\n\r\n")
    with relay.connect() as client:
        client.send(lines + blank)
        eventually(lambda: relay.gateway.in_flight() == 1)
        client.send(body + large)
        assert [client.read().json()["size"] for _ in range(2)] == [len(body), _body_size(large)]


def _body_size(data: bytes) -> int:
    return len(data.partition(b"\r\n\r\n")[2])


# Upgrade, Expect


def test_after_a_declined_upgrade_the_connection_serves_on(relay: Relay) -> None:
    relay.upstream.play_by(_tell)
    with relay.connect(wait_s=5) as client:
        for target, headers in (("/a", UPGRADE), ("/b", ()), ("/c", UPGRADE), ("/d", ())):
            assert client.ask(request("GET", target, *headers)).json()["to"] == target


def test_what_is_pipelined_behind_an_upgrade_is_served(relay: Relay) -> None:
    relay.upstream.play_by(_tell)
    with relay.connect(wait_s=5) as client:
        client.send(request("GET", "/a") + request("GET", "/b", *UPGRADE) + request("GET", "/c"))
        assert [client.read().json()["to"] for _ in range(3)] == ["/a", "/b", "/c"]


def test_HTTP_1_0_knows_no_100(relay: Relay) -> None:
    relay.upstream.play_by(_tell)
    with relay.connect() as client:
        expecting = ("Expect", "100-continue"), ("Content-Length", "5")
        client.send(request("POST", "/a", *expecting, version="1.0"))
        eventually(lambda: relay.gateway.in_flight() == 1)
        client.send(b"12345")
        answer = client.read()
    assert (answer.interim, answer.json()) == ([], {"to": "/a", "size": 5})


# Chunks


def _broken_chunks() -> Iterator[tuple[str, bytes]]:
    """Yield the bodies of all cases whose short chunked body is wrong whatever follows it."""
    cases = {case.name: case for case in request_cases()}
    for case in [cases[name] for name in cases.keys() - known_exceptions(set(cases))]:
        data = b"".join(data for _, data in case.segments)
        is_broken = case.expect == "reject-400" and not case.half_closes
        if case.name.startswith("ck-") and is_broken and len(data) < 200:
            yield case.name, data.partition(b"\r\n\r\n")[2]


def _begun(relay: Relay) -> float:
    """Return how many requests the gateway has begun."""
    metrics = relay.gateway.metrics()
    return metrics.total("relayd_in_flight") + metrics.total("relayd_requests_total")


@pytest.mark.parametrize("path", ["/echo", OPENAI.path])
def test_broken_chunks_in_a_later_read_than_the_head_are_refused_at_once(relay: Relay, path: str) -> None:
    lines = request("POST", path, ("Transfer-Encoding", "chunked"), ("Content-Type", "application/json"))
    before = _begun(relay)
    asked = [
        (name, cut, body, relay.connect(wait_s=5))
        for name, body in _broken_chunks()
        for cut in range(len(body))
    ]
    for _, cut, body, client in asked:
        client.send(lines + body[:cut])
    eventually(lambda: _begun(relay) == before + len(asked), what="all heads are read")
    for _, cut, body, client in asked:
        try:
            client.send(body[cut:])
        except ConnectionError:
            pass  # what came before was wrong already
    seen = {(name, cut): client.read().status for name, cut, _, client in asked}
    for *_, client in asked:
        client.close()
    assert len(asked) > 100
    assert not {where: status for where, status in seen.items() if status != 400}
