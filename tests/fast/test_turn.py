"""What one turn of the loop brought is handled in step, and what it writes goes out last."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd._fast.turn import ARRIVALS_AT_MOST as AT_MOST
from relayd._fast.turn import KEPT_AT_MOST, Outlet, Step, Turn
from tests.fast.stage import FakeLoop, FakeTransport


class Scene:
    """A loop, its turns, and what was done."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.turn = Turn(self.loop)
        self.done: list[object] = []

    def put_off(self, step: int, *names: str) -> None:
        for name in names:
            self.turn.put_off(step, self.done.append, name)


def test_all_of_a_step_comes_before_the_next_step():
    scene = Scene()
    scene.put_off(Step.STEP_PHASES, "p1")
    scene.put_off(Step.STEP_REQUESTS, "r1", "r2")
    scene.put_off(Step.STEP_ANSWERS, "a1")
    scene.put_off(Step.STEP_PHASES, "p2")
    assert scene.done == []
    scene.loop.end_turn()
    assert scene.done == ["a1", "r1", "r2", "p1", "p2"]


def test_what_a_step_leads_to_waits_for_its_own_step():
    scene = Scene()

    def receive(name: str) -> None:
        scene.done.append(name)
        scene.turn.in_step(Step.STEP_HEADS, scene.done.append, name + " head")
        scene.turn.in_step(Step.STEP_ANSWERS, scene.done.append, name + " answer")

    for name in ("r1", "r2"):
        scene.turn.put_off(Step.STEP_REQUESTS, receive, name)
    scene.loop.end_turn()
    assert scene.done == ["r1", "r2", "r1 head", "r2 head", "r1 answer", "r2 answer"]
    assert not scene.turn.running


def test_between_turns_a_step_is_taken_at_once():
    scene = Scene()
    scene.turn.in_step(Step.STEP_PHASES, scene.done.append, "p")
    assert scene.done == ["p"]
    assert scene.loop.calls == []


def test_the_loop_is_asked_once_a_turn():
    scene = Scene()
    scene.put_off(Step.STEP_ANSWERS, "a1", "a2", "a3")
    assert len(scene.loop.calls) == 1
    scene.loop.end_turn()
    scene.put_off(Step.STEP_ANSWERS, "a4")
    assert len(scene.loop.calls) == 1
    scene.loop.end_turn()
    assert scene.done == ["a1", "a2", "a3", "a4"]


def test_a_turn_takes_in_only_so_much():
    """The first of many must not wait until all of them have come."""
    scene = Scene()
    scene.put_off(Step.STEP_ANSWERS, *[str(n) for n in range(AT_MOST - 1)])
    assert scene.done == []
    scene.put_off(Step.STEP_ANSWERS, "last", "next")
    assert len(scene.done) == AT_MOST
    scene.loop.end_turn()
    assert scene.done[-1] == "next"


def test_settling_handles_what_was_put_off_and_leaves_nothing_for_the_loop():
    scene = Scene()
    scene.put_off(Step.STEP_ANSWERS, "a")
    scene.turn.settle()
    assert scene.done == ["a"]
    scene.loop.end_turn()
    assert scene.done == ["a"]


def test_settling_inside_a_turn_changes_nothing():
    scene = Scene()
    scene.turn.put_off(Step.STEP_ANSWERS, lambda _: scene.turn.settle(), None)
    scene.put_off(Step.STEP_ANSWERS, "a")
    scene.put_off(Step.STEP_ENDS, "e")
    scene.loop.end_turn()
    assert scene.done == ["a", "e"]


def test_without_a_loop_nothing_is_put_off():
    done: list[str] = []
    Turn().put_off(Step.STEP_PHASES, done.append, "p")
    assert done == ["p"]


class Dropped:
    """Something whose handling fails."""

    def __init__(self) -> None:
        self.drops = 0

    def drop(self) -> None:
        self.drops += 1


@pytest.mark.parametrize("one", [Dropped(), "no drop()"])
def test_a_failure_is_told_and_takes_nobody_else_along(one):
    scene = Scene()

    def fail(argument: object) -> None:
        raise ValueError("ours")

    transport = FakeTransport()
    outlet = Outlet(transport, scene.turn)
    scene.turn.put_off(Step.STEP_ANSWERS, outlet.write, b"before")
    scene.turn.put_off(Step.STEP_ANSWERS, fail, one)
    scene.put_off(Step.STEP_ANSWERS, "after")
    scene.put_off(Step.STEP_ENDS, "later")
    with pytest.raises(AssertionError):
        scene.loop.end_turn()
    assert [str(error) for error in scene.loop.failures] == ["ours"]
    assert scene.done == ["after", "later"]
    assert transport.written == b"before"
    assert not isinstance(one, Dropped) or one.drops == 1
    assert not scene.turn.running


# --- outlets --------------------------------------------------------------------------------------------


def write_in_a_turn(scene: Scene, *writes: tuple[Outlet, bytes]) -> None:
    for outlet, data in writes:
        scene.turn.put_off(Step.STEP_ANSWERS, outlet.write, data)
    scene.loop.end_turn()


def test_writes_of_a_turn_go_out_together_when_all_is_done():
    scene = Scene()
    one, other = FakeTransport(), FakeTransport()
    outlets = Outlet(one, scene.turn), Outlet(other, scene.turn)
    scene.turn.put_off(Step.STEP_PHASES, lambda _: scene.done.append(list(one.writes)), None)
    write_in_a_turn(scene, (outlets[0], b"a"), (outlets[1], b"x"), (outlets[0], b"b"))
    assert (one.writes, other.writes, scene.done) == ([b"ab"], [b"x"], [[]])


def test_between_turns_a_write_goes_out_at_once():
    scene = Scene()
    transport = FakeTransport()
    outlet = Outlet(transport, scene.turn)
    outlet.write(b"a")
    assert transport.writes == [b"a"]


@given(st.lists(st.tuples(st.integers(0, 30_000), st.sampled_from(["in", "between", "flush"])), max_size=20))
def test_bytes_keep_their_order(writes):
    scene = Scene()
    transport = FakeTransport()
    outlet = Outlet(transport, scene.turn)
    sent = b""
    for number, (size, how) in enumerate(writes):
        data = bytes([number]) * size
        sent += data
        if how == "in":
            scene.turn.put_off(Step.STEP_ANSWERS, outlet.write, data)
        elif how == "between":
            scene.loop.end_turn()
            outlet.write(data)
        else:
            scene.turn.put_off(Step.STEP_ANSWERS, outlet.write, data)
            scene.turn.put_off(Step.STEP_ANSWERS, lambda _: outlet.flush(), None)
    scene.loop.end_turn()
    assert transport.written == sent


def test_a_transport_that_is_full_says_so_within_a_turn():
    scene = Scene()
    transport = FakeTransport()
    outlet = Outlet(transport, scene.turn)
    seen = []

    def write(data: bytes) -> None:
        outlet.write(data)
        seen.append(len(transport.written))

    for _ in range(4):
        scene.turn.put_off(Step.STEP_ANSWERS, write, b"x" * 30_000)
    scene.loop.end_turn()
    assert KEPT_AT_MOST < seen[2] == 90_000
    assert len(transport.written) == 120_000


def test_what_was_written_comes_before_the_end():
    scene = Scene()
    transport = FakeTransport()
    outlet = Outlet(transport, scene.turn)
    scene.turn.put_off(Step.STEP_ANSWERS, outlet.write, b"a")
    scene.turn.put_off(Step.STEP_ANSWERS, lambda _: outlet.close(), None)
    scene.loop.end_turn()
    assert (transport.written, transport.ending) == (b"a", "closed")


def test_nothing_is_written_to_a_connection_that_is_gone():
    scene = Scene()
    transport = FakeTransport()
    outlet = Outlet(transport, scene.turn)
    scene.turn.put_off(Step.STEP_ANSWERS, outlet.write, b"a")
    scene.turn.put_off(Step.STEP_ANSWERS, lambda _: outlet.lost(), None)
    scene.turn.put_off(Step.STEP_ANSWERS, outlet.write, b"b")
    scene.loop.end_turn()
    outlet.write(b"c")
    outlet.close()
    assert (transport.written, outlet.transport) == (b"", None)


def test_one_that_cannot_be_written_to_keeps_nobody_else_from_it():
    class BrokenTransport(FakeTransport):
        def write(self, data: bytes) -> None:
            raise RuntimeError("closed")

    scene = Scene()
    transport = FakeTransport()
    outlets = Outlet(BrokenTransport(), scene.turn), Outlet(transport, scene.turn)
    with pytest.raises(AssertionError):
        write_in_a_turn(scene, (outlets[0], b"a"), (outlets[1], b"b"))
    assert [str(error) for error in scene.loop.failures] == ["closed"]
    assert transport.written == b"b"


# --- past the transport ---------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return two ends of a real connection; the first one's buffers are small."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield ends
    for end in ends:
        end.close()


def read_all(end: socket.socket) -> bytes:
    found = b""
    while True:
        try:
            piece = end.recv(1 << 16)
        except BlockingIOError:
            return found
        if not piece:
            return found
        found += piece


def test_a_plain_socket_is_written_to_directly(pair):
    transport = FakeTransport(pair[0].fileno())
    outlet = Outlet(transport, Turn())
    outlet.write(b"one")
    outlet.write(b"two")
    assert (read_all(pair[1]), transport.writes) == (b"onetwo", [])


def test_what_the_socket_does_not_take_is_the_transports(pair):
    """Nothing is lost, nothing goes twice, and nothing overtakes what the transport holds back."""
    transport = FakeTransport(pair[0].fileno())
    outlet = Outlet(transport, Turn())
    data = bytes(range(256)) * 2000
    outlet.write(data)
    assert transport.writes
    transport.held = len(transport.written)
    outlet.write(b"behind")
    assert read_all(pair[1]) + transport.written == data + b"behind"
    transport.held = 0
    outlet.write(b"later")
    assert read_all(pair[1]) == b"later"


def test_a_socket_that_is_full_is_the_transports_affair(pair):
    transport = FakeTransport(pair[0].fileno())
    outlet = Outlet(transport, Turn())
    while not transport.writes:
        outlet.write(b"x" * 1000)
    assert len(transport.written) <= 1000


def test_a_socket_whose_peer_is_gone_is_the_transports_affair(pair):
    """It meets the same error, and tells its protocol."""
    transport = FakeTransport(pair[0].fileno())
    outlet = Outlet(transport, Turn())
    pair[1].close()
    outlet.write(b"x")
    assert transport.writes == [b"x"]


def test_a_transport_that_is_closing_keeps_its_socket_to_itself(pair):
    """Its descriptor may belong to another connection by now."""
    transport = FakeTransport(pair[0].fileno())
    outlet = Outlet(transport, Turn())
    transport.close()
    outlet.write(b"x")
    assert read_all(pair[1]) == b""


def test_tls_is_written_through_its_transport(pair):
    class TlsTransport(FakeTransport):
        def get_extra_info(self, name):
            return "TLS" if name == "ssl_object" else super().get_extra_info(name)

    transport = TlsTransport(pair[0].fileno())
    Outlet(transport, Turn()).write(b"secret")
    assert (read_all(pair[1]), transport.writes) == (b"", [b"secret"])
