"""A slow side slows the other down; memory stays where it was.

Memory is the gateway's resident set as the kernel reports it, after a warm-up of the same kind, since
the first large answer makes any allocator grow.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import pytest

from tests.support import procs
from tests.support.dialects import OPENAI
from tests.support.upstream import Script, chunk, head, reply, send, silence, stream_head
from tests.support.waiting import eventually, settled
from tests.support.wire import CLOSED, COMPLETE, RESET, SILENT, Client, request
from tests.whole.conftest import Relay, question

MIB = 1 << 20
GIB = 1 << 30


def _plain(size: int) -> Script:
    """An answer of `size` bytes, a whole number of MiB."""
    return [head(200, ("content-length", str(size))), {**send(b"x" * MIB), "repeat": size // MIB}]


def _stream(size: int) -> Script:
    """A stream of about `size` bytes."""
    event = OPENAI.text("w" * 32_000)
    return [
        stream_head(),
        {**chunk(event), "repeat": size // len(event)},
        chunk(OPENAI.terminator),
        {"end": True},
    ]


ANSWERS = {
    "a plain answer": (_plain, request("GET", "/file")),
    "a stream": (_stream, question(OPENAI, stream=True)),
}


def _stall(relay: Relay, ask: bytes) -> Client:
    """Ask, read the first MiB, then nothing; return once the upstream has come to a halt."""
    client = relay.connect(receive_buffer=65536)
    client.send(ask)
    client.read(enough=MIB)
    eventually(lambda: relay.upstream.requests)
    settled(lambda: relay.upstream.requests[-1].connection.sent)
    return client


@pytest.mark.parametrize(("script", "ask"), ANSWERS.values(), ids=ANSWERS.keys())
def test_a_gibibyte_to_a_reader_that_stalls(
    relay: Relay, script: Callable[[int], Script], ask: bytes
) -> None:
    relay.upstream.play(script(GIB))
    _stall(relay, ask).reset()
    relay.gateway.wait_idle()
    before = procs.resident_kib(relay.gateway.pid)
    client = _stall(relay, ask)
    grown = procs.resident_kib(relay.gateway.pid) - before
    sent = relay.upstream.requests[-1].connection.sent
    print(f"{grown} KiB more, {sent // MIB} MiB sent by the worker")
    assert grown < 1024
    assert sent < 64 * MIB, "the worker was paused"  # what it wrote is mostly in kernel buffers
    client.reset()


def test_fifty_stalled_readers(relay: Relay) -> None:
    """The bound is for each: 256 KiB of resident memory, fifty times."""
    relay.upstream.play(_stream(64 * MIB))
    ask = question(OPENAI, stream=True)
    _stall(relay, ask).reset()
    relay.gateway.wait_idle()
    before = procs.resident_kib(relay.gateway.pid)
    clients = []
    for _ in range(50):
        client = relay.connect(receive_buffer=4096)
        client.send(ask)
        clients.append(client)
    eventually(lambda: len(relay.upstream.requests) >= 50)
    settled(lambda: sum(seen.connection.sent for seen in relay.upstream.requests))
    grown = procs.resident_kib(relay.gateway.pid) - before
    print(f"{grown / 50:.0f} KiB for each")
    assert grown < 50 * 256
    for client in clients:
        client.reset()


def test_a_slow_reader_gets_everything(relay: Relay) -> None:
    body = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(1 << 17))  # 4 MiB, no two parts alike
    relay.upstream.play([head(200, ("content-length", str(len(body)))), send(body)])
    with relay.connect(receive_buffer=16384) as client:
        client.send(request("GET", "/file"))
        answer = client.read(enough=1)
        while len(answer.body) < len(body) - 65536 * 8:
            time.sleep(0.01)  # what makes the reader slow
            client.read_on(answer, enough=len(answer.body) + 65536 * 4)
        client.read_on(answer)
    assert answer.ending == COMPLETE
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest()


def test_a_reader_that_comes_back_gets_the_rest(relay: Relay) -> None:
    relay.upstream.play(_plain(32 * MIB))
    with relay.connect(receive_buffer=65536) as client:
        client.send(request("GET", "/file"))
        answer = client.read(enough=MIB)
        settled(lambda: relay.upstream.requests[-1].connection.sent)
        client.read_on(answer)
    assert answer.ending == COMPLETE
    assert len(answer.body) == 32 * MIB


def test_a_client_that_takes_nothing_is_let_go(start: Callable[..., Relay]) -> None:
    relay = start(1, {"resilience.timeouts.write": "1s"})
    relay.upstream.play(_stream(256 * MIB))
    client = relay.connect(receive_buffer=4096)
    client.send(question(OPENAI, stream=True))
    eventually(lambda: relay.upstream.requests)
    connection = relay.upstream.requests[0].connection
    closed_at = eventually(lambda: connection.closed_at, 6, "the worker sees the close")
    assert closed_at - relay.upstream.requests[0].at < 4
    relay.gateway.wait_idle()
    assert client.wait_closed() in (CLOSED, RESET)


def test_a_client_that_takes_a_little_is_kept(start: Callable[..., Relay]) -> None:
    """The write timeout is about progress; and it is never the worker who is blamed."""
    relay = start(1, {"resilience.timeouts.write": "1s", "resilience.timeouts.idle": "600ms"})
    relay.upstream.play(_plain(24 * MIB))
    with relay.connect(receive_buffer=65536) as client:
        client.send(request("GET", "/file"))
        answer = client.read(enough=1)
        for _ in range(8):
            time.sleep(0.3)  # longer in all than either limit, shorter each time
            client.read_on(answer, enough=len(answer.body) + MIB)
        client.read_on(answer)
    assert answer.ending == COMPLETE


# Towards the worker


def test_an_upload_to_a_worker_that_does_not_read_is_held_back(start: Callable[..., Relay]) -> None:
    relay = start(1, {"max_body": "512MiB"})
    relay.upstream.play([{"read": "head"}, {"read": "nothing"}])
    before = procs.resident_kib(relay.gateway.pid)
    client = relay.connect(wait_s=1.0)
    client.send(request("POST", "/upload", ("Content-Length", str(256 * MIB))))
    taken = client.send_until_held_back(b"x" * MIB, 256 * MIB)
    grown = procs.resident_kib(relay.gateway.pid) - before
    print(f"{grown} KiB more, {taken // MIB} MiB taken")
    assert taken < 256 * MIB
    assert grown < 8 * 1024
    client.reset()
    relay.gateway.wait_idle(2)  # leaving is noticed although nothing is being read


def test_a_large_upload_arrives_whole(relay: Relay) -> None:
    relay.upstream.play(reply({"ok": True}))
    body = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(1 << 19))  # 16 MiB
    with relay.connect() as client:
        answer = client.ask(request("POST", "/upload", body=body))
    assert answer.status == 200
    assert hashlib.sha256(relay.upstream.requests[0].body).digest() == hashlib.sha256(body).digest()


def test_a_worker_that_reads_slowly_gets_all_of_it(relay: Relay) -> None:
    relay.upstream.play([{"read": "head"}, {"sleep": 0.5}, {"read": "body"}, *reply({"ok": True})])
    body = b"y" * (16 * MIB)
    with relay.connect() as client:
        answer = client.ask(request("POST", "/upload", body=body))
    assert answer.status == 200
    assert relay.upstream.requests[0].body == body


def test_a_pipelining_client_is_not_read_without_end(relay: Relay) -> None:
    """Requests that wait behind a slow one are bounded as well."""
    relay.upstream.play([silence(3)])
    client = relay.connect(wait_s=0.5)
    before = procs.resident_kib(relay.gateway.pid)
    taken = client.send_until_held_back(request("GET", "/next") * 1000, 64 * MIB)
    grown = procs.resident_kib(relay.gateway.pid) - before
    print(f"{grown} KiB more, {taken // 1024} KiB taken")
    assert taken < 64 * MIB
    assert grown < 16 * 1024
    client.reset()
    relay.gateway.wait_idle(10)


def test_a_silent_stall_is_not_an_end(relay: Relay) -> None:
    """While nothing is read nothing is reset either: a pause of a second is nobody's fault."""
    relay.upstream.play(_plain(8 * MIB))
    with relay.connect(receive_buffer=4096, wait_s=1.0) as client:
        client.send(request("GET", "/file"))
        answer = client.read(enough=1)
        time.sleep(1.0)
        assert client.read_on(answer).ending in (COMPLETE, SILENT)
