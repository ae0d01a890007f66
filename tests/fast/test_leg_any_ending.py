"""Whatever happens, and in whatever order: a leg ends once, and the worker's load is back where it was."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from relayd._fast.leg import LegOutcome, LegState, RequestBody, now_ns
from relayd._fast.sink import HttpSink, Sink
from relayd._fast.sse import Terminator
from relayd._fast.turn import Outlet
from relayd.dialects.openai import OpenAI
from tests.fast.stage import CHUNKED, EVENT_STREAM, NS, FakeTransport, Stage, chunks, reply, stream
from tests.support.dialects import CHAT_STOP, OPENAI, chat_usage

pytestmark = pytest.mark.usefixtures("both_ways")

CHUNKED_POST = b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n"
SAYINGS = st.sampled_from(
    [
        reply(body=b"hello"),
        reply(CHUNKED) + chunks([b"a", b"b"]),
        reply(CHUNKED) + b"5\r\nab",
        reply(b"Content-Length: 100") + b"part",
        reply() + b"until the end",
        reply(status=b"204 No Content"),
        reply(body=b"{}", status=b"503 Busy"),
        reply(b"Content-Length: 50", status=b"500 Oops") + b"slow",
        reply(body=b"{}", status=b"429 Slow"),
        reply(EVENT_STREAM, CHUNKED),
        stream(OPENAI.preamble, last=False),
        stream(*OPENAI.events("a", "b")),
        chunks([OPENAI.text("a").encode()], last=False),
        chunks([OPENAI.text("a").encode()[:30]], last=False),
        chunks([OPENAI.error(500, "no").encode()], last=False),
        chunks([chat_usage(1, 2).encode(), (CHAT_STOP + "data: [DONE]\n\n").encode()]),
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200",
        b"\r\n",
        b"garbage\r\n\r\n",
        b"\x16\x03\x01",
        b"0\r\n\r\n",
        b"x" * 70_000,
    ]
)


class Tale(RuleBasedStateMachine):
    """Legs begin, workers say things, clients leave, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(Terminator.TERMINATOR_DONE, judge=OpenAI().judge, keepalive_s=15, connects=False)
        self.legs = []
        self.bodies = []
        self.cancelled = set()
        self.committed = set()

    def draw(self, data: st.DataObject, items: list) -> object:
        return items[data.draw(st.integers(0, len(items) - 1))]

    @rule(
        prompt=st.integers(0, 1000), output=st.integers(0, 30), strip=st.booleans(), chunked=st.booleans(),
        late=st.booleans(), head=st.booleans(), elsewhere=st.booleans(),
    )  # fmt: skip
    def begin(self, prompt, output, strip, chunked, late, head, elsewhere) -> None:
        self.stage.owner.elsewhere = elsewhere
        sink = HttpSink(Outlet(FakeTransport(), self.stage.turn), 1, head, True)
        body = RequestBody(-1, 50) if chunked else RequestBody(-2, 50)
        leg = self.stage.ask(
            head=CHUNKED_POST if chunked else b"GET / HTTP/1.1\r\nHost: w\r\n\r\n",
            method="HEAD" if head else "POST",
            body=body,
            sink=sink,
            strip_usage=strip,
            may_wait=late,
            tokens=(prompt, output),
            deadline_ns=now_ns() + 3600 * NS,
        )
        self.legs.append(leg)
        self.bodies.append(body)

    @precondition(lambda self: self.legs)
    @rule(data=st.data(), size=st.integers(1, 60), last=st.booleans())
    def more_body(self, data, size, last) -> None:
        body = self.draw(data, self.bodies)
        if not body.complete:
            body.feed(b"b" * size)
            if last:
                body.finish()

    @precondition(lambda self: self.stage.pool.dialing)
    @rule(well=st.booleans())
    def dial_ends(self, well) -> None:
        if well:
            self.stage.connect()
        else:
            self.stage.pool.dial_failed(LegOutcome.LEG_CONNECT, "refused")

    @precondition(lambda self: self.stage.connections)
    @rule(data=st.data(), said=SAYINGS, cut=st.integers(0, 40), ends_turn=st.booleans())
    def worker_says(self, data, said, cut, ends_turn) -> None:
        on = data.draw(st.integers(0, len(self.stage.connections) - 1))
        pieces = [said[:cut], said[cut:]] if 0 < cut < len(said) else [said]
        self.stage.worker_says(*pieces, on=on, ends_turn=ends_turn)

    @precondition(lambda self: self.stage.connections)
    @rule(data=st.data(), resets=st.booleans())
    def worker_goes(self, data, resets) -> None:
        on = data.draw(st.integers(0, len(self.stage.connections) - 1))
        (self.stage.worker_resets if resets else self.stage.worker_closes)(on=on)

    @precondition(lambda self: self.stage.connections)
    @rule(data=st.data(), full=st.booleans())
    def worker_takes(self, data, full) -> None:
        on = data.draw(st.integers(0, len(self.stage.connections) - 1))
        if on not in self.stage.lost:
            connection = self.stage.connections[on]
            (connection.pause_writing if full else connection.resume_writing)()

    @precondition(lambda self: self.legs)
    @rule(data=st.data())
    def client_leaves(self, data) -> None:
        leg = self.draw(data, self.legs)
        if leg.state != LegState.LEG_ENDED:
            leg.cancel()
            self.cancelled.add(leg)

    @precondition(lambda self: self.legs)
    @rule(data=st.data())
    def client_leaves_and_the_worker_may_finish(self, data) -> None:
        leg = self.draw(data, self.legs)
        if leg.state != LegState.LEG_ENDED:
            leg.go_on_without_client(Sink(), now_ns() + 100 * NS)

    @precondition(lambda self: self.legs)
    @rule(data=st.data(), slow=st.booleans())
    def client_is_slow(self, data, slow) -> None:
        sink = self.draw(data, self.legs).sink
        (sink.pause if slow else sink.resume)()

    @rule(seconds=st.sampled_from([1, 3, 16, 301, 601, 3601]))
    def time_passes(self, seconds) -> None:
        self.stage.pass_time(seconds)

    @rule()
    def a_turn_passes(self) -> None:
        self.stage.end_turn()

    @invariant()
    def a_leg_ends_once(self) -> None:
        ended = [leg for leg in self.legs if leg.state == LegState.LEG_ENDED]
        told = self.stage.owner.ended
        assert len(told) == len(set(told))
        assert set(told) | self.cancelled == set(ended)
        assert not set(told) & self.cancelled
        assert all(leg.outcome != LegOutcome.LEG_RUNNING for leg in ended)

    @invariant()
    def the_load_is_what_is_open(self) -> None:
        legs = [leg for leg in self.legs if leg.state != LegState.LEG_ENDED]
        flying, prompt, output = self.stage.load
        assert flying == len(legs) == len(self.stage.sweeper)
        assert prompt >= 0
        assert output >= 0
        if not legs:
            assert (prompt, output) == (0, 0)

    @invariant()
    def what_was_committed_stays_so(self) -> None:
        now = {leg for leg in self.legs if leg.committed}
        assert self.committed <= now
        self.committed = now

    @invariant()
    def connections_are_counted(self) -> None:
        pool = self.stage.pool
        assert pool.open == len(self.stage.connections) - len(self.stage.lost)
        assert 0 <= pool.idle_count <= pool.open

    def teardown(self) -> None:
        for leg in self.legs:
            leg.cancel()
        assert self.stage.load == (0, 0, 0)
        assert len(self.stage.sweeper) == 0
        for body in self.bodies:
            if not body.complete:
                body.finish()
        while self.stage.pool.dialing:
            self.stage.connect()
        self.stage.end_turn()
        # What is open is idle, or reads the rest of an answer that nobody wanted.
        for index, transport in enumerate(self.stage.transports):
            if not transport.ending:
                self.stage.worker_closes(on=index)
        self.stage.assert_nothing_left()


def test_any_ending():
    run_state_machine_as_test(
        Tale, settings=settings(max_examples=120, stateful_step_count=30, deadline=None)
    )
