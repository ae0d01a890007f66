"""Neither side is read faster than the other takes it, and a slow client is not blamed on its worker."""

from __future__ import annotations

import pytest

from relayd._fast.leg import LegOutcome, LegState, Sweeper, now_ns
from relayd._fast.sink import HttpSink, Sink, SinkState
from relayd._fast.sse import Terminator
from relayd._fast.turn import Outlet, Turn
from tests.fast.stage import CHUNKED, FIRST_TOKEN_S, IDLE_S, NS, FakeTransport, Stage, chunks, reply, stream

pytestmark = pytest.mark.usefixtures("both_ways")

O = LegOutcome  # noqa: E741
DONE = Terminator.TERMINATOR_DONE
EVENT = b"data: a\n\n"


def relaying(**options) -> tuple[Stage, object]:
    """Return (stage, leg) in the middle of a stream."""
    stage = Stage(**options)
    leg = stage.ask()
    stage.worker_says(stream(EVENT, last=False))
    assert leg.state == LegState.LEG_RELAYING
    return stage, leg


# --- a slow client ------------------------------------------------------------------------------------


def test_a_client_that_does_not_keep_up_stops_the_worker():
    stage, leg = relaying()
    leg.sink.pause()
    assert not stage.transports[-1].reading
    leg.sink.resume()
    assert stage.transports[-1].reading
    stage.worker_says(chunks([EVENT]))
    assert (leg.outcome, bytes(stage.answer().body)) == (O.LEG_COMPLETE, EVENT * 2)


def test_a_pause_before_the_connection_is_made_holds_when_it_is():
    stage = Stage(connects=False)
    leg = stage.ask()
    leg.sink.pause()
    stage.connect()
    assert not stage.transports[-1].reading
    leg.sink.resume()
    assert stage.transports[-1].reading
    stage.worker_says(reply(body=b"x"))
    assert leg.outcome == O.LEG_COMPLETE


def test_a_client_that_was_slow_before_is_slow_still():
    """The next answer of a connection whose client has not yet taken the last one waits as well."""
    for is_reused in (False, True):
        stage = Stage()
        if is_reused:
            stage.ask()
            stage.worker_says(reply(body=b"x"))
        sink = HttpSink(Outlet(stage.client, stage.turn), 1, False, True)
        sink.pause()
        leg = stage.ask(sink=sink)
        assert not stage.transports[-1].reading
        sink.resume()
        stage.worker_says(reply(body=b"y"))
        assert leg.outcome == O.LEG_COMPLETE


def test_a_stale_connection_replaced_while_paused_stays_paused():
    stage = Stage()
    stage.ask()
    stage.worker_says(reply(body=b"x"))
    leg = stage.ask()
    leg.sink.pause()
    stage.worker_closes(on=0)
    assert len(stage.connections) == 2
    assert not stage.transports[-1].reading
    leg.sink.resume()
    assert stage.transports[-1].reading


def test_a_paused_answer_gives_its_connection_back_readable():
    """An answer whose last bytes fill its client's buffer must not leave a deaf connection in the pool."""
    stage = Stage()
    leg = stage.ask(sink=pausing_sink())
    stage.worker_says(reply(b"Content-Length: 4") + b"abcd")
    assert (leg.outcome, stage.pool.idle_count) == (O.LEG_COMPLETE, 1)
    assert stage.transports[-1].reading
    again = stage.ask()
    stage.worker_says(reply(body=b"z"))
    assert (again.outcome, again.reused) == (O.LEG_COMPLETE, True)


class PausingTransport(FakeTransport):
    """A client's transport that is full after every write."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = None

    def write(self, data: bytes) -> None:
        super().write(data)
        self.sink.pause()


def pausing_sink() -> HttpSink:
    """Return a sink that is paused by whatever is written to it."""
    transport = PausingTransport()
    transport.sink = HttpSink(Outlet(transport, Turn()), 1, False, True)
    return transport.sink


def test_at_most_one_read_goes_to_a_client_that_is_full():
    sink = pausing_sink()
    stage = Stage()
    stage.ask(sink=sink)
    stage.worker_says(reply(b"Content-Length: 1000000000"))
    for _ in range(100):
        stage.worker_says(b"x" * 65536)
    assert sink.bytes_written <= 65536
    assert not stage.transports[-1].reading


def test_a_slow_client_does_not_fire_the_workers_idle_timer():
    stage, leg = relaying()
    leg.sink.pause()
    stage.pass_time(IDLE_S * 3)
    assert leg.state == LegState.LEG_RELAYING
    leg.sink.resume()
    stage.pass_time(IDLE_S - 1)
    assert leg.state == LegState.LEG_RELAYING, "it begins anew when the client takes something again"
    stage.pass_time(IDLE_S + 1)
    assert leg.outcome == O.LEG_IDLE_TIMEOUT


def test_pausing_what_has_ended_does_nothing():
    stage, leg = relaying()
    sink = leg.sink
    stage.worker_says(chunks([EVENT]))
    sink.pause()
    assert stage.transports[-1].reading
    sink.resume()


def test_pausing_a_cancelled_leg_does_nothing():
    stage, leg = relaying()
    leg.cancel()
    leg.sink.pause()
    leg.sink.resume()
    stage.assert_nothing_left()


# --- a client that has left ---------------------------------------------------------------------------


def test_the_worker_may_finish_without_its_client():
    stage, leg = relaying(terminator=DONE)
    client_side = leg.sink
    client_side.pause()  # it was slow, and then it left
    before = stage.client.written
    nowhere = Sink()
    leg.go_on_without_client(nowhere, now_ns() + 60 * NS)
    assert stage.transports[-1].reading
    stage.worker_says(
        chunks([b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n', b"data: [DONE]\n\n"])
    )
    assert (leg.outcome, leg.tokens[:2]) == (O.LEG_COMPLETE, (3, 4))
    assert (stage.client.written, nowhere.state) == (before, SinkState.SINK_ENDED)
    client_side.resume()  # nobody's business any more
    stage.assert_nothing_left()


def test_but_not_for_ever():
    stage, leg = relaying()
    leg.go_on_without_client(Sink(), now_ns() + 60 * NS)
    stage.pass_time(59)
    assert leg.state == LegState.LEG_RELAYING
    stage.pass_time(61)
    assert leg.outcome == O.LEG_TOTAL_TIMEOUT
    stage.assert_nothing_left()


def test_and_not_longer_than_the_exchange_might_have_taken():
    stage = Stage()
    leg = stage.ask(deadline_ns=now_ns() + 10 * NS)
    leg.go_on_without_client(Sink(), now_ns() + 60 * NS)
    stage.pass_time(11)
    assert leg.outcome == O.LEG_TOTAL_TIMEOUT


def test_an_answer_that_begins_without_its_client():
    stage = Stage()
    leg = stage.ask()
    leg.go_on_without_client(Sink(), now_ns() + 60 * NS)
    stage.worker_says(stream(EVENT))
    assert (leg.outcome, stage.client.written) == (O.LEG_COMPLETE, b"")


# --- time ---------------------------------------------------------------------------------------------


def test_the_first_token_is_waited_for_from_the_requests_last_byte():
    stage = Stage()
    leg = stage.ask()
    assert leg.sent_ns >= leg.begun_ns
    stage.pass_time(FIRST_TOKEN_S - 1)
    assert leg.state == LegState.LEG_WAITING


def test_any_byte_shows_that_a_worker_is_there():
    stage, leg = relaying()
    for _ in range(3):
        stage.pass_time(IDLE_S - 1)
        stage.worker_says(b"1")  # a part of a chunk's size
        assert leg.state == LegState.LEG_RELAYING
        stage.worker_says(b"\r\nx\r\n")


def test_a_sweep_that_ends_many_legs_ends_each_once():
    stage = Stage()
    legs = [stage.ask() for _ in range(10)]
    stage.pass_time(FIRST_TOKEN_S + 1)
    assert sorted(map(id, stage.owner.ended)) == sorted(map(id, legs))
    stage.pass_time(FIRST_TOKEN_S + 1)
    assert len(stage.owner.ended) == 10
    stage.assert_nothing_left()


def test_an_owner_may_begin_a_leg_while_another_ends():
    stage = Stage()
    begun = []
    stage.owner.leg_ended = lambda leg: begun.append(stage.ask()) if not begun else None
    stage.ask()
    stage.pass_time(FIRST_TOKEN_S + 1)
    assert begun[0].state == LegState.LEG_WAITING
    stage.worker_says(reply(body=b"x"))
    assert begun[0].outcome == O.LEG_COMPLETE


class FakeLoop:
    """Keeps what it is asked to call."""

    def __init__(self) -> None:
        self.calls = []

    def call_later(self, delay, call):
        self.calls.append((delay, call))
        return self

    def cancel(self) -> None:
        self.calls.clear()


def test_the_sweeper_sleeps_when_there_is_nothing_to_look_after():
    loop = FakeLoop()
    stage = Stage(sweeper=Sweeper(loop, 0.05))
    assert loop.calls == []
    leg = stage.ask()
    assert [delay for delay, _ in loop.calls] == [0.05]
    stage.ask()
    assert len(loop.calls) == 1, "one timer for all"
    loop.calls.pop()[1]()
    assert len(loop.calls) == 1, "it comes again while legs are open"
    leg.cancel()
    stage.worker_says(reply(body=b"x"))
    loop.calls.pop()[1]()
    assert loop.calls == []


def test_a_closed_sweeper_asks_for_nothing_more():
    loop = FakeLoop()
    stage = Stage(sweeper=Sweeper(loop))
    stage.ask()
    stage.sweeper.close()
    assert loop.calls == []
    stage.sweeper.wake()
    assert loop.calls == []


def test_idle_connections_wake_the_sweeper_too():
    loop = FakeLoop()
    stage = Stage(sweeper=Sweeper(loop))
    stage.sweeper.watch(stage.pool)
    stage.ask()
    stage.worker_says(reply(body=b"x"))
    assert stage.pool.idle_count == 1
    loop.calls.pop()[1]()
    assert len(loop.calls) == 1
    stage.sweeper.sweep(now_ns() + 61 * NS)
    stage.end_turn()
    assert stage.pool.open == 0
    loop.calls.pop()[1]()
    assert loop.calls == []


# --- a large answer -----------------------------------------------------------------------------------


def test_a_large_answer_is_passed_on_as_it_comes():
    stage = Stage()
    stage.ask()
    stage.worker_says(reply(CHUNKED))
    for number in range(1, 20):
        stage.worker_says(chunks([b"x" * 50_000], last=False))
        assert len(stage.answer().body) == number * 50_000
