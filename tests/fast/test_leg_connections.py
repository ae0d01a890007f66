"""Which connection serves which leg, when one is made, and what happens to one that had died."""

from __future__ import annotations

import pytest

from relayd._fast.leg import LegOutcome, LegState, RequestBody, now_ns
from tests.fast.stage import NS, Stage, chunks, reply
from tests.support.wire import every_way

pytestmark = pytest.mark.usefixtures("both_ways")

O = LegOutcome  # noqa: E741
POST = b"POST / HTTP/1.1\r\nHost: w\r\nContent-Length: 4\r\n\r\n"
CHUNKED_POST = b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n"


def answered(stage: Stage, on: int = -1, **ask) -> object:
    """Ask and answer once; return the leg."""
    leg = stage.ask(**ask)
    stage.worker_says(reply(body=b"x"), on=on)
    return leg


def with_idle(count: int, **options) -> Stage:
    """Return a stage with `count` idle connections, the last one the youngest."""
    stage = Stage(**options)
    legs = [stage.ask() for _ in range(count)]
    for index in range(count):
        stage.worker_says(reply(body=b"x"), on=index)
    assert all(leg.outcome == O.LEG_COMPLETE for leg in legs)
    assert stage.pool.idle_count == count
    return stage


# --- the pool -----------------------------------------------------------------------------------------


def test_a_leg_without_an_idle_connection_gets_a_new_one():
    stage = Stage()
    stage.ask()
    stage.ask()
    assert (stage.pool.open, stage.pool.dials, stage.pool.reuses) == (2, 2, 0)


def test_the_youngest_connection_is_used_first():
    stage = with_idle(3)
    sent = [len(transport.written) for transport in stage.transports]
    stage.ask()
    assert [len(t.written) > before for t, before in zip(stage.transports, sent, strict=True)] == [
        False,
        False,
        True,
    ]
    stage.ask()
    assert [len(t.written) > before for t, before in zip(stage.transports, sent, strict=True)] == [
        False,
        True,
        True,
    ]


def test_a_connection_that_is_closing_is_passed_over():
    stage = with_idle(2)
    stage.transports[1].ending = "closed"
    leg = stage.ask()
    assert leg.state == LegState.LEG_WAITING
    assert b"GET" in stage.transports[0].written[10:]


def test_an_idle_connection_that_the_worker_closes_is_forgotten():
    stage = with_idle(2)
    stage.worker_closes(on=1)
    assert (stage.pool.idle_count, stage.pool.open) == (1, 1)
    stage.worker_resets(on=0)
    assert (stage.pool.idle_count, stage.pool.open) == (0, 0)


def test_what_a_worker_said_in_the_turn_in_which_it_left_counts():
    for said, outcome in (
        (reply(body=b"abc"), LegOutcome.LEG_COMPLETE),
        (reply() + b"until the end", LegOutcome.LEG_COMPLETE),
        (reply(b"Content-Length: 9") + b"abc", LegOutcome.LEG_CUT),
        (b"HTTP/1.1 200", LegOutcome.LEG_RESET),
    ):
        stage = Stage()
        leg = stage.ask()
        for piece in (said[:20], said[20:]):
            stage.worker_says(piece, ends_turn=False)
        stage.worker_closes()
        assert leg.outcome == outcome
        stage.assert_nothing_left()


def test_what_came_for_a_cancelled_leg_goes_nowhere():
    stage = Stage()
    leg = stage.ask()
    stage.worker_says(reply(body=b"abc"), ends_turn=False)
    if leg.state == LegState.LEG_ENDED:  # not put off: it had come before
        assert leg.outcome == LegOutcome.LEG_COMPLETE
        return
    leg.cancel()
    stage.end_turn()
    assert (stage.client.written, stage.owner.ended) == (b"", [])
    stage.assert_nothing_left()


def test_old_idle_connections_are_closed():
    stage = with_idle(2)
    stage.sweeper.watch(stage.pool)
    stage.pass_time(59)
    assert stage.pool.idle_count == 2
    stage.pass_time(61)
    stage.end_turn()
    assert (stage.pool.idle_count, stage.pool.open) == (0, 0)
    assert {transport.ending for transport in stage.transports} == {"aborted"}


def test_a_pool_that_is_not_watched_any_more_is_left_alone():
    stage = with_idle(1)
    stage.sweeper.watch(stage.pool)
    stage.sweeper.forget(stage.pool)
    stage.pass_time(100)
    assert stage.pool.idle_count == 1


def test_close_idle_closes_only_what_is_older():
    stage = with_idle(2)
    between = stage.connections[1].idle_since
    assert stage.pool.close_idle(between) == 1
    assert stage.transports[0].ending == "aborted"
    assert stage.transports[1].ending == ""
    assert stage.pool.close_idle(now_ns() + NS) == 1
    assert stage.pool.idle_count == 0


def test_not_more_than_so_many_are_kept():
    stage = Stage()
    stage.pool.max_idle = 2
    for _ in range(3):
        stage.ask()
    for index in range(3):
        stage.worker_says(reply(body=b"x"), on=index)
    stage.end_turn()
    assert (stage.pool.idle_count, stage.pool.open) == (2, 2)


def test_not_more_than_so_many_dials_at_once():
    stage = Stage(connects=False)
    stage.pool.max_dials = 2
    legs = [stage.ask() for _ in range(5)]
    assert (stage.dials, stage.pool.dialing) == (2, 2)
    for made in range(1, 6):
        stage.connect()
        assert [leg.state == LegState.LEG_WAITING for leg in legs] == [True] * made + [False] * (5 - made)
    assert (stage.dials, stage.pool.dialing) == (5, 0)


def test_every_leg_is_told_when_dials_fail():
    stage = Stage(connects=False)
    stage.pool.max_dials = 1
    legs = [stage.ask() for _ in range(4)]
    for failed in range(1, 5):
        stage.pool.dial_failed(O.LEG_CONNECT, "no")
        assert [leg.outcome for leg in legs] == [O.LEG_CONNECT] * failed + [O.LEG_RUNNING] * (4 - failed)
    assert (stage.pool.dialing, stage.dials) == (0, 4)
    stage.assert_nothing_left()


def test_legs_are_served_in_the_order_they_came():
    stage = Stage(connects=False)
    first, second = stage.ask(), stage.ask()
    stage.connect()
    assert (first.state, second.state) == (LegState.LEG_WAITING, LegState.LEG_DIALING)


def test_a_connection_that_comes_free_serves_who_waits():
    stage = Stage(connects=False)
    first = stage.ask()
    stage.connect()
    second = stage.ask()
    stage.worker_says(reply(body=b"x"))
    assert first.outcome == O.LEG_COMPLETE
    assert (second.state, second.reused) == (LegState.LEG_WAITING, True)
    stage.worker_says(reply(body=b"y"))
    assert second.outcome == O.LEG_COMPLETE
    stage.connect()  # the dial that was made for it
    assert (stage.pool.idle_count, stage.pool.dialing) == (2, 0)


def test_a_leg_that_has_left_the_queue_is_passed_over():
    stage = Stage(connects=False)
    first, second = stage.ask(), stage.ask()
    first.cancel()
    stage.connect()
    assert second.state == LegState.LEG_WAITING
    stage.connect()
    assert stage.pool.idle_count == 1


def test_picks_are_numbered_across_pools():
    one, other = Stage(), Stage()
    assert one.pool.last_pick == 0
    one.ask()
    other.ask()
    assert 0 < one.pool.last_pick < other.pool.last_pick
    one.ask()
    assert one.pool.last_pick > other.pool.last_pick


# --- a connection that had died -----------------------------------------------------------------------


@pytest.mark.parametrize("resets", [False, True])
def test_a_reused_connection_that_closes_unanswered_is_replaced_once(resets):
    stage = with_idle(1)
    leg = stage.ask(head=POST, body=whole(b"abcd"), tokens=(3, 4))
    (stage.worker_resets if resets else stage.worker_closes)(on=0)
    assert (stage.dials, stage.pool.stale_retries) == (2, 1)
    assert stage.sent == POST + b"abcd", "all of it again"
    assert stage.owner.ended == stage.owner.ended[:1]
    stage.client.writes.clear()
    stage.worker_says(reply(body=b"y"))
    assert (leg.outcome, leg.stale_retry, bytes(stage.answer().body)) == (O.LEG_COMPLETE, True, b"y")
    stage.assert_nothing_left()


def test_the_second_time_is_the_workers_fault():
    stage = with_idle(1)
    leg = stage.ask()
    stage.worker_closes(on=0)
    stage.worker_closes(on=1)
    assert (leg.outcome, stage.dials) == (O.LEG_RESET, 2)
    stage.assert_nothing_left()


def test_the_replacement_is_a_fresh_one():
    """Whatever closed one idle connection may have closed them all."""
    stage = with_idle(3)
    leg = stage.ask()
    stage.worker_closes(on=2)
    assert (stage.dials, stage.pool.idle_count) == (4, 2)
    stage.worker_says(reply(body=b"y"))
    assert leg.outcome == O.LEG_COMPLETE


def test_a_connection_that_comes_free_is_not_fresh():
    stage = with_idle(2)
    other, leg = stage.ask(), stage.ask()
    stage.connects = False
    stage.worker_closes(on=0)  # leg's
    assert leg.state == LegState.LEG_DIALING
    stage.worker_says(reply(body=b"x"), on=1)
    assert other.outcome == O.LEG_COMPLETE
    assert leg.state == LegState.LEG_DIALING
    stage.connect()
    assert leg.state == LegState.LEG_WAITING
    stage.worker_says(reply(body=b"y"))
    assert leg.outcome == O.LEG_COMPLETE


def test_a_fresh_connection_is_not_replaced():
    stage = Stage()
    leg = stage.ask()
    stage.worker_closes()
    assert (leg.outcome, stage.dials, stage.pool.stale_retries) == (O.LEG_RESET, 1, 0)


def test_an_answer_that_had_begun_is_not_asked_for_again():
    answer = reply(b"Content-Length: 5")
    for size in range(1, len(answer)):
        stage = with_idle(1)
        leg = stage.ask()
        stage.worker_says(answer[:size])
        stage.worker_closes()
        assert (leg.outcome, stage.dials) == (O.LEG_RESET, 1), size


def test_a_body_whose_beginning_is_gone_is_not_sent_again():
    stage = with_idle(1)
    body = RequestBody(-1, 10)
    leg = stage.ask(head=CHUNKED_POST, body=body)
    body.feed(b"x" * 100)
    assert body.lost
    stage.worker_closes(on=0)
    assert (leg.outcome, stage.dials) == (O.LEG_RESET, 1)
    stage.assert_nothing_left()


def test_a_body_that_is_still_coming_is_sent_again_from_the_start():
    stage = with_idle(1)
    body = RequestBody(-1, 1000)
    leg = stage.ask(head=CHUNKED_POST, body=body)
    body.feed(b"one")
    stage.worker_closes(on=0)
    body.feed(b"two")
    body.finish()
    assert stage.sent == CHUNKED_POST + chunks([b"one", b"two"])
    stage.worker_says(reply(body=b"y"))
    assert leg.outcome == O.LEG_COMPLETE


def test_the_fresh_connection_may_fail_to_come():
    stage = with_idle(1, connects=True)
    stage.connects = False
    leg = stage.ask()
    stage.worker_closes(on=0)
    stage.pool.dial_failed(O.LEG_CONNECT, "connection refused")
    assert (leg.outcome, leg.reason) == (O.LEG_CONNECT, "connection refused")
    stage.end_turn()
    assert stage.load == (0, 0, 0)


def test_the_fresh_connection_has_the_connect_timeout():
    stage = with_idle(1)
    stage.connects = False
    leg = stage.ask()
    stage.worker_closes(on=0)
    stage.pass_time(1)
    assert leg.state == LegState.LEG_DIALING
    stage.pass_time(3)
    assert leg.outcome == O.LEG_CONNECT_TIMEOUT


def test_a_reused_connection_answers_like_a_fresh_one():
    answer = reply(b"X-A: 1", body=b"hello")
    for cut in every_way(answer):
        stage = with_idle(1)
        stage.client.writes.clear()
        leg = stage.ask()
        stage.worker_says(*cut)
        assert (bytes(stage.answer().body), stage.answer().values("x-a"), leg.reused) == (
            b"hello",
            ["1"],
            True,
        )


def test_the_parser_remembers_nothing_of_the_last_answer():
    """Trailers, a HEAD's length, a closed body: each leaves llhttp in a state of its own."""
    stage = Stage()
    for _ in range(3):
        stage.ask(method="HEAD")
        stage.worker_says(reply(b"Content-Length: 1000"))
        stage.ask()
        stage.worker_says(reply(b"Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\nX-T: 1\r\n\r\n")
        stage.ask()
        stage.worker_says(b"HTTP/1.1 103 Hints\r\n\r\n" + reply(status=b"204 No"))
        stage.client.writes.clear()
        leg = stage.ask()
        stage.worker_says(reply(body=b"end"))
        assert (leg.outcome, bytes(stage.answer().body)) == (O.LEG_COMPLETE, b"end")
        assert stage.answer().values("x-t") == []
    assert stage.dials == 1


def whole(data: bytes) -> RequestBody:
    """Return a body that has arrived."""
    body = RequestBody(len(data), 1 << 20)
    body.feed(data)
    body.finish()
    return body
