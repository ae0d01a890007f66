"""Every way in which an attempt on a worker can end, and what the client and the connection get of it."""

from __future__ import annotations

import gzip
import socket
import zlib

import pytest

from relayd._fast.leg import LegOutcome, LegState, RequestBody, now_ns
from relayd._fast.sink import SinkState
from relayd._fast.sse import Terminator
from tests.fast.stage import (
    CHUNKED,
    CONNECT_S,
    EVENT_STREAM,
    FIRST_TOKEN_S,
    IDLE_S,
    LIMITS,
    NS,
    Stage,
    chunks,
    reply,
    stream,
)
from tests.support.wire import CLOSED, RESET, every_way

pytestmark = pytest.mark.usefixtures("both_ways")

O = LegOutcome  # noqa: E741
DONE = Terminator.TERMINATOR_DONE

JSON = b"Content-Type: application/json"
HEAD_LIMIT, FRAMING_LIMIT = 65536, 16384


def played(
    answer: bytes,
    *,
    closes: bool = False,
    resets: bool = False,
    elsewhere: bool = False,
    kind: int = 0,
    **ask,
):
    """Return (stage, leg) after a worker has said `answer`."""
    stage = Stage(kind, elsewhere=elsewhere)
    leg = stage.ask(**ask)
    stage.worker_says(answer)
    if closes:
        stage.worker_closes()
    if resets:
        stage.worker_resets()
    return stage, leg


def assert_ended(stage: Stage, leg, outcome: int) -> None:
    """Fail unless `leg` ended once, with `outcome`, and left nothing behind."""
    assert leg.outcome == outcome, leg.reason
    assert leg.state == LegState.LEG_ENDED
    assert stage.owner.ended == [leg]
    assert leg.ended_ns >= leg.begun_ns > 0
    stage.assert_nothing_left()


def test_every_outcome_has_a_test_here():
    """A new outcome must be added to the tests below, and then to this list."""
    assert {outcome.name for outcome in O} == {
        "LEG_RUNNING",
        "LEG_COMPLETE",
        "LEG_CANCELLED",
        "LEG_CONNECT",
        "LEG_CONNECT_TIMEOUT",
        "LEG_TLS",
        "LEG_RESET",
        "LEG_BAD_ANSWER",
        "LEG_REJECTED",
        "LEG_ERROR_EVENT",
        "LEG_CUT",
        "LEG_FIRST_TOKEN_TIMEOUT",
        "LEG_IDLE_TIMEOUT",
        "LEG_TOTAL_TIMEOUT",
    }


# --- complete -----------------------------------------------------------------------------------------

WHOLE = [
    # what, answer, status, body, may the connection serve again
    ("a length", reply(JSON, body=b'{"a":1}'), 200, b'{"a":1}', True),
    ("no body at all", reply(body=b""), 200, b"", True),
    ("chunks", reply(CHUNKED) + chunks([b"ab", b"c" * 300]), 200, b"ab" + b"c" * 300, True),
    ("no chunk", reply(CHUNKED) + chunks([]), 200, b"", True),
    ("chunks with extensions", reply(CHUNKED) + b'2;a=b;c="d"\r\nab\r\n0;x\r\n\r\n', 200, b"ab", True),
    (
        "chunks with trailers",
        reply(CHUNKED) + b"2\r\nab\r\n0\r\nX-T: 1\r\nSet-Cookie: a\r\n\r\n",
        200,
        b"ab",
        True,
    ),
    ("no content", reply(status=b"204 No Content"), 204, b"", True),
    ("not modified, with a length", reply(b"Content-Length: 9", status=b"304 Not Modified"), 304, b"", True),
    ("created", reply(body=b"x", status=b"201 Created"), 201, b"x", True),
    ("a redirect", reply(b"Location: /x", body=b"", status=b"307 Temporary Redirect"), 307, b"", True),
    ("the client's error", reply(JSON, body=b"{}", status=b"404 Not Found"), 404, b"{}", True),
    ("a strange status", reply(body=b"", status=b"599 Odd"), 599, b"", True),
    ("no reason", reply(body=b"x", status=b"200"), 200, b"x", True),
    ("the connection closes", reply(b"Connection: close", body=b"x"), 200, b"x", False),
    ("HTTP/1.0 with a length", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
    (
        "HTTP/1.0 that stays",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
        200,
        b"x",
        True,
    ),
    ("behind an interim answer", b"HTTP/1.1 100 Continue\r\n\r\n" + reply(body=b"x"), 200, b"x", True),
    (
        "behind early hints",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + reply(body=b"x"),
        200,
        b"x",
        True,
    ),
]


@pytest.mark.parametrize(("what", "answer", "status", "body", "reusable"), WHOLE)
def test_complete_however_it_is_cut(what, answer, status, body, reusable):
    for pieces in every_way(answer):
        stage = Stage()
        leg = stage.ask()
        stage.worker_says(*pieces)
        seen = stage.answer()
        assert seen.is_complete, (what, pieces)
        assert (seen.status, bytes(seen.body)) == (status, body), (what, pieces)
        assert stage.pool.idle_count == reusable, (what, pieces)
        assert seen.values("x-t") == seen.values("set-cookie") == seen.values("link") == []
        assert_ended(stage, leg, O.LEG_COMPLETE)


@pytest.mark.parametrize(("what", "answer", "status", "body", "reusable"), WHOLE)
def test_complete_for_an_http_1_0_client(what, answer, status, body, reusable):
    stage, leg = played(answer, version_minor=0)
    if not leg.sink.keep_alive:
        stage.client.close()  # as a door does
    assert (stage.answer().is_complete, bytes(stage.answer().body)) == (True, body)


def test_a_body_that_ends_with_the_connection():
    for pieces in every_way(reply(JSON) + b"{}"):
        stage = Stage()
        leg = stage.ask()
        stage.worker_says(*pieces)
        assert stage.owner.ended == []
        stage.worker_closes()
        assert (stage.answer().is_complete, bytes(stage.answer().body)) == (True, b"{}")
        assert_ended(stage, leg, O.LEG_COMPLETE)
        assert stage.pool.open == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 7", CHUNKED, b"X-None: 1"])
def test_head_is_answered_by_the_head(framing):
    answer = reply(JSON, framing)
    for pieces in every_way(answer):
        stage = Stage()
        leg = stage.ask(method="HEAD")
        stage.worker_says(*pieces)
        seen = stage.answer()
        assert (seen.is_complete, bytes(seen.body)) == (True, b"")
        if framing.startswith(b"Content"):
            assert seen.values("content-length") == ["7"]
        assert_ended(stage, leg, O.LEG_COMPLETE)
        # The parser would wait for the body: the next answer needs a new one.
        if stage.pool.idle_count:
            again = stage.ask()
            stage.worker_says(reply(body=b"next"))
            assert (again.outcome, again.reused) == (O.LEG_COMPLETE, True)


def test_one_connection_serves_many_answers():
    stage = Stage()
    for number in range(20):
        leg = stage.ask()
        stage.client.writes.clear()
        stage.worker_says(
            reply(body=b"%d" % number) if number % 2 else reply(CHUNKED) + chunks([b"%d" % number])
        )
        assert bytes(stage.answer().body) == b"%d" % number
        assert leg.reused == (number > 0)
    assert (stage.dials, stage.pool.dials, stage.pool.reuses) == (1, 1, 19)
    assert stage.connections[0].served == 20


def test_what_the_client_is_told():
    stage = Stage(timing=True, plain_id=True)
    stage.ask(lines=b"X-Relayd-Worker: w1\r\n")
    stage.worker_says(reply(JSON, b"X-A: 1", b"x-a: 2", b"Keep-Alive: timeout=5", body=b"{}"))
    seen = stage.answer()
    assert seen.values("x-a") == ["1", "2"]
    assert seen.values("x-relayd-worker") == ["w1"]
    assert seen.values("x-request-id") == seen.values("request-id") == ["req-1"]
    assert seen.values("keep-alive") == []
    assert seen.header("server-timing", "").startswith("relayd;dur=")


def test_a_workers_own_request_id_stays():
    stage = Stage(plain_id=True)
    stage.ask()
    stage.worker_says(reply(b"X-Request-Id: theirs", b"Request-Id: theirs too", body=b""))
    assert stage.answer().values("x-request-id") == ["theirs"]
    assert stage.answer().values("request-id") == ["theirs too"]


def test_streams_are_not_to_be_buffered_behind_us():
    stage, _ = played(stream(b"data: a\n\n"))
    assert stage.answer().values("x-accel-buffering") == ["no"]
    stage, _ = played(reply(EVENT_STREAM, b"X-Accel-Buffering: yes", CHUNKED) + chunks([b"data: a\n\n"]))
    assert stage.answer().values("x-accel-buffering") == ["yes"]


@pytest.mark.parametrize("status", [b"500 Oops", b"503 Busy", b"429 Slow"])
def test_a_failure_that_cannot_move_is_passed_on(status):
    stage, leg = played(reply(JSON, b"Retry-After: 3", body=b'{"error":1}', status=status))
    seen = stage.answer()
    assert (seen.status, bytes(seen.body)) == (int(status[:3]), b'{"error":1}')
    assert seen.values("retry-after") == ["3"]
    assert stage.owner.asked == [int(status[:3])]
    assert_ended(stage, leg, O.LEG_COMPLETE)


@pytest.mark.parametrize("status", [b"200 OK", b"301 Moved", b"400 Bad", b"404 No", b"408 Slow", b"422 Odd"])
def test_other_answers_never_move(status):
    stage, leg = played(reply(body=b"x", status=status), elsewhere=True)
    assert stage.owner.asked == []
    assert_ended(stage, leg, O.LEG_COMPLETE)


# --- the compressed copy ------------------------------------------------------------------------------

USAGE = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'


@pytest.mark.parametrize(
    ("coding", "squeeze"),
    [
        (b"gzip", gzip.compress),
        (b"GZIP", gzip.compress),
        (b"x-gzip", gzip.compress),
        (b"deflate", zlib.compress),
    ],
)
def test_a_compressed_answer_passes_untouched_and_is_read_along(coding, squeeze):
    data = squeeze(USAGE)
    for pieces in every_way(reply(b"Content-Encoding: " + coding, body=data)):
        stage = Stage()
        leg = stage.ask()
        stage.worker_says(*pieces)
        assert bytes(stage.answer().body) == data
        assert stage.answer().values("content-encoding") == [coding.decode()]
        assert leg.tokens[:2] == (3, 4)
        assert_ended(stage, leg, O.LEG_COMPLETE)


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip"])
def test_a_coding_that_cannot_be_read_does_no_harm(coding):
    stage, leg = played(reply(b"Content-Encoding: " + coding, body=b"whatever"))
    assert bytes(stage.answer().body) == b"whatever"
    assert leg.tokens == (None,) * 5
    assert_ended(stage, leg, O.LEG_COMPLETE)


def test_a_bomb_is_read_only_so_far():
    data = gzip.compress(b" " * (32 << 20) + USAGE)
    stage, leg = played(reply(b"Content-Encoding: gzip", body=data))
    assert bytes(stage.answer().body) == data
    assert leg.tokens == (None,) * 5
    assert_ended(stage, leg, O.LEG_COMPLETE)


def test_a_compressed_stream_is_followed_to_its_terminator():
    events = b"data: {}\n\ndata: [DONE]\n\n"
    answer = reply(EVENT_STREAM, b"Content-Encoding: gzip", CHUNKED)
    stage, leg = played(answer + chunks([gzip.compress(events)]), kind=DONE)
    assert_ended(stage, leg, O.LEG_COMPLETE)
    stage, leg = played(answer + chunks([gzip.compress(events[:8])]), kind=DONE)
    assert_ended(stage, leg, O.LEG_CUT)
    assert not leg.at_boundary  # nothing of ours may follow


# --- cancelled ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["dialing", "waiting", "holding", "relaying", "ended"])
def test_cancelled_at_every_state(at):
    stage = Stage(DONE, connects=at != "dialing", judge=lambda event: b"content" in event)
    leg = stage.ask(tokens=(10, 20))
    if at in ("holding", "relaying", "ended"):
        stage.worker_says(stream(b"data: preamble\n\n", last=False))
    if at in ("relaying", "ended"):
        stage.worker_says(chunks([b"data: content\n\n"], last=False))
    if at == "ended":
        stage.worker_says(chunks([b"data: [DONE]\n\n"]))
    expected = {"dialing": 1, "waiting": 2, "holding": 3, "relaying": 4, "ended": 5}[at]
    assert leg.state == expected
    leg.cancel()
    leg.cancel()
    assert leg.state == LegState.LEG_ENDED
    if at == "ended":
        assert (leg.outcome, stage.owner.ended) == (O.LEG_COMPLETE, [leg])
        return
    assert (leg.outcome, stage.owner.ended) == (O.LEG_CANCELLED, [])
    if at != "dialing":
        assert stage.transports[-1].ending == "aborted"  # at once: the worker must stop generating
    assert stage.load == (0, 0, 0)
    if at == "dialing":
        stage.connect()  # it comes too late, and is kept for another
        assert stage.pool.idle_count == 1
    stage.end_turn()
    assert leg.outcome == O.LEG_CANCELLED
    stage.assert_nothing_left()


def test_a_cancelled_leg_hears_nothing_of_its_connection():
    stage = Stage()
    leg = stage.ask()
    connection = stage.connections[0]
    leg.cancel()
    connection.data_received(b"HTTP/")  # a read that was already under way
    stage.end_turn()
    assert (stage.client.written, stage.owner.ended) == (b"", [])


# --- no connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [O.LEG_CONNECT, O.LEG_CONNECT_TIMEOUT, O.LEG_TLS])
def test_no_connection(outcome):
    stage = Stage(connects=False)
    leg = stage.ask(tokens=(5, 5))
    stage.pool.dial_failed(outcome, "why")
    assert leg.reason == "why"
    assert (stage.client.written, leg.committed, leg.status) == (b"", False, 0)
    assert_ended(stage, leg, outcome)
    assert stage.pool.dialing == 0


def test_a_dial_that_fails_before_begin_returns():
    stage = Stage(connects=False)
    stage.pool = type(stage.pool)("w1", b"w", lambda pool: pool.dial_failed(O.LEG_CONNECT, "at once"))
    leg = stage.ask()
    assert_ended(stage, leg, O.LEG_CONNECT)


def test_a_dial_that_never_ends():
    stage = Stage(connects=False)
    leg = stage.ask()
    stage.pass_time(CONNECT_S - 0.5)
    assert leg.state == LegState.LEG_DIALING
    stage.pass_time(CONNECT_S + 0.5)
    assert_ended(stage, leg, O.LEG_CONNECT_TIMEOUT)
    stage.connect()  # it ended after all: somebody else may have it
    assert stage.pool.idle_count == 1
    assert stage.pool.dialing == 0


def test_a_connection_that_dies_as_it_is_made():
    stage = Stage(connects=False)
    leg = stage.ask()
    connection = stage.make_connection()
    stage.worker_closes()
    stage.pool.dialed(connection)
    assert_ended(stage, leg, O.LEG_CONNECT)


# --- no answer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [b"", b"HTTP", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
@pytest.mark.parametrize("resets", [False, True])
def test_the_connection_goes_before_the_head_is_complete(said, resets):
    stage, leg = played(said, closes=not resets, resets=resets)
    assert leg.reason == ("reset" if resets else "closed") + " the connection before answering"
    assert (stage.client.written, stage.client.ending) == (b"", "")
    assert_ended(stage, leg, O.LEG_RESET)


BAD_ANSWERS = [
    ("garbage", b"hello, world\r\n\r\n"),
    ("binary", bytes(range(256))),
    ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n"),
    ("HTTP/2", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"),
    ("HTTP/3.0 it says", b"HTTP/3.0 200 OK\r\n\r\n"),
    ("a request", b"GET / HTTP/1.1\r\n\r\n"),
    ("a status of zero", reply(body=b"x", status=b"000 Zero")),
    ("a status of two digits", reply(body=b"x", status=b"99 Low")),
    ("a status below", reply(body=b"x", status=b"099 Low")),
    ("a status above", reply(body=b"x", status=b"600 High")),
    ("far above", reply(body=b"x", status=b"999 High")),
    ("four digits", reply(body=b"x", status=b"2000 Many")),
    ("two lengths", reply(b"Content-Length: 1", body=b"x")),
    ("two different lengths", reply(b"Content-Length: 2", body=b"x")),
    ("a length and chunks", reply(b"Content-Length: 5", CHUNKED) + chunks([b"a"])),
    ("chunks and a length", reply(CHUNKED, b"Content-Length: 5") + chunks([b"a"])),
    ("a length that is none", reply(b"Content-Length: five")),
    ("a negative length", reply(b"Content-Length: -5")),
    ("another coding", reply(b"Transfer-Encoding: gzip, chunked") + chunks([b"a"])),
    ("only another coding", reply(b"Transfer-Encoding: gzip")),
    ("chunks in HTTP/1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks([b"a"])),
    ("a space before the colon", reply(b"X-A : 1", body=b"")),
    ("a folded line", reply(b"X-A: 1\r\n 2", body=b"")),
    ("a zero byte", reply(b"X-A: a\x00b", body=b"")),
    (
        "another protocol was switched to",
        reply(b"Connection: Upgrade", b"Upgrade: h2c", status=b"101 Switching Protocols"),
    ),
    ("interim answers without end", b"HTTP/1.1 102 Processing\r\n\r\n" * 17 + reply(body=b"x")),
    ("a head too large", reply(*[b"X-%d: %b" % (n, b"v" * 1000) for n in range(70)], body=b"x")),
    ("a line too large", reply(b"X-A: " + b"v" * (HEAD_LIMIT + 20000), body=b"x")),
    ("too many lines", reply(*[b"X-%d: 1" % n for n in range(300)], body=b"x")),
    ("an interim head too large", b"HTTP/1.1 103 H\r\n" + b"L: v\r\n" * 15000 + b"\r\n" + reply(body=b"x")),
]


@pytest.mark.parametrize(("what", "answer"), BAD_ANSWERS)
def test_what_is_not_an_answer_is_not_relayed(what, answer):
    for pieces in [[answer], [answer[i : i + 1] for i in range(len(answer))]]:
        stage = Stage(elsewhere=True)
        leg = stage.ask()
        stage.worker_says(*pieces)
        stage.worker_closes()
        assert (stage.client.written, leg.committed) == (b"", False), what
        assert leg.reason
        assert_ended(stage, leg, O.LEG_BAD_ANSWER)
        assert stage.pool.open == 0, "the connection must not be used again"


def test_sixteen_interim_answers_are_not_too_many():
    stage, leg = played(b"HTTP/1.1 102 Processing\r\n\r\n" * 16 + reply(body=b"x"))
    assert_ended(stage, leg, O.LEG_COMPLETE)


def test_a_large_head_is_not_too_large():
    stage, leg = played(reply(*[b"X-%d: %b" % (n, b"v" * 1000) for n in range(55)], body=b"x"))
    assert_ended(stage, leg, O.LEG_COMPLETE)
    assert len(stage.answer().headers) >= 55


def test_tls_on_a_plain_port_is_recognised():
    for alert in (b"\x15\x03\x01\x00\x02\x02\x46", b"\x16\x03\x03\x00\x7a\x02"):
        stage, leg = played(alert)
        assert "begin with https://" in leg.reason
        assert_ended(stage, leg, O.LEG_BAD_ANSWER)


# --- moved elsewhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [b"500 Oops", b"502 Bad", b"503 Busy", b"429 Slow", b"599 Odd"])
def test_a_failure_that_moves_leaves_no_trace(status):
    for pieces in every_way(reply(JSON, b"Retry-After: 3", body=b'{"error":1}', status=status)):
        stage = Stage(elsewhere=True)
        leg = stage.ask()
        stage.worker_says(*pieces)
        assert (stage.client.written, leg.committed) == (b"", False)
        assert leg.status == int(status[:3])
        assert leg.response.retry_after == b"3"
        assert_ended(stage, leg, O.LEG_REJECTED)
        assert stage.pool.idle_count == 1, "the rest was read and thrown away"
        again = stage.ask()
        stage.worker_says(reply(body=b"next"))
        assert (again.outcome, again.reused) == (O.LEG_COMPLETE, True)


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("too much to throw away", reply(body=b"x" * 200_000, status=b"500 Oops")),
        ("it ends with the connection", reply(status=b"500 Oops") + b"x"),
        ("it closes", reply(b"Connection: close", body=b"x", status=b"500 Oops")),
    ],
)
def test_a_connection_that_is_not_worth_saving_is_closed(what, answer):
    stage, leg = played(answer, elsewhere=True)
    assert_ended(stage, leg, O.LEG_REJECTED)
    assert stage.pool.open == 0, what


def test_a_connection_being_drained_that_never_finishes_is_not_in_the_pool():
    stage, leg = played(reply(b"Content-Length: 100", status=b"500 Oops") + b"part", elsewhere=True)
    assert leg.outcome == O.LEG_REJECTED
    assert stage.pool.idle_count == 0
    stage.worker_closes()
    stage.assert_nothing_left()


# --- cut ----------------------------------------------------------------------------------------------

CUTS = [
    # what, answer, body that the client has seen, does a close end it (True) or is it refused by itself
    ("a short body", reply(b"Content-Length: 10") + b"12345", b"12345", True),
    ("no body", reply(b"Content-Length: 10"), b"", True),
    ("no last chunk", reply(CHUNKED) + chunks([b"ab"], last=False), b"ab", True),
    ("half a chunk", reply(CHUNKED) + b"5\r\nab", b"ab", True),
    ("half a last chunk", reply(CHUNKED) + chunks([b"ab"], last=False) + b"0\r\n", b"ab", True),
    ("broken chunks", reply(CHUNKED) + b"2\r\nabX", b"ab", False),
    ("a size that is none", reply(CHUNKED) + b"2\r\nab\r\nxyz\r\n", b"ab", False),
    ("a size too large", reply(CHUNKED) + b"2\r\nab\r\n" + b"f" * 17 + b"\r\n", b"ab", False),
    ("a negative size", reply(CHUNKED) + b"2\r\nab\r\n-1\r\n", b"ab", False),
    ("extensions without end", reply(CHUNKED) + b"2\r\nab\r\n2;" + b"x" * (FRAMING_LIMIT * 2), b"ab", False),
    ("trailers without end", reply(CHUNKED) + b"2\r\nab\r\n0\r\n" + b"X-T: 1\r\n" * 9000, b"ab", False),
]  # fmt: skip


@pytest.mark.parametrize(("what", "answer", "body", "closes"), CUTS)
@pytest.mark.parametrize("resets", [False, True])
def test_a_cut_answer_is_told_to_the_owner(what, answer, body, closes, resets):
    stage, leg = played(answer, closes=closes and not resets, resets=closes and resets)
    assert leg.committed
    assert bytes(stage.answer().body) == body
    assert not stage.answer().is_complete
    assert stage.client.ending == "", "how to tell the client is the owner's decision"
    assert_ended(stage, leg, O.LEG_CUT)
    assert stage.pool.open == 0


@pytest.mark.parametrize(("what", "answer", "body", "closes"), CUTS)
def test_a_cut_is_a_cut_byte_by_byte(what, answer, body, closes):
    stage = Stage()
    leg = stage.ask()
    stage.worker_says(*[answer[i : i + 1] for i in range(len(answer))])
    stage.worker_closes()
    assert bytes(stage.answer().body) == body
    assert not stage.answer().is_complete
    assert_ended(stage, leg, O.LEG_CUT)


def test_a_reset_cuts_a_body_that_ends_with_the_connection():
    stage, leg = played(reply() + b"part", resets=True)
    assert not stage.answer().is_complete
    assert_ended(stage, leg, O.LEG_CUT)


def test_small_extensions_on_every_chunk_are_fine():
    body = b"".join(b"1;%b\r\nx\r\n" % (b"e" * 1000) for _ in range(100))
    stage, leg = played(reply(CHUNKED) + body + b"0\r\n\r\n")
    assert bytes(stage.answer().body) == b"x" * 100
    assert_ended(stage, leg, O.LEG_COMPLETE)


@pytest.mark.parametrize("minor", [0, 1])
def test_an_aborted_cut_never_looks_whole(minor):
    for answer in (
        reply(b"Content-Length: 10") + b"12345",
        reply(CHUNKED) + chunks([b"ab"], last=False),
        reply() + b"part",
    ):
        stage, leg = played(answer, resets=True, version_minor=minor)
        leg.sink.abort()
        assert stage.answer().ending == (RESET if minor == 0 and b"Content-Length" not in answer else CLOSED)


EXTRA = [
    ("a second answer", reply(body=b"evil")),
    ("half an answer", b"HTTP/1.1 200 O"),
    ("garbage", b"garbage"),
    ("a line end", b"\r\n"),
    ("much", b"z" * 40_000),
]


@pytest.mark.parametrize(("what", "extra"), EXTRA)
@pytest.mark.parametrize(
    "answer", [reply(body=b"good"), reply(CHUNKED) + chunks([b"good"]), reply(status=b"204 No")]
)
def test_bytes_behind_an_answer_go_nowhere(what, extra, answer):
    for pieces in ([answer + extra], [answer, extra], [answer[:-1], answer[-1:] + extra]):
        stage = Stage()
        leg = stage.ask()
        stage.worker_says(*pieces)
        seen = stage.answer()
        assert seen.is_complete
        assert b"evil" not in stage.client.written
        assert_ended(stage, leg, O.LEG_COMPLETE)
        if extra != b"\r\n":
            assert stage.pool.idle_count == 0, (what, pieces)


@pytest.mark.parametrize("extra", [b"evil", reply(body=b"evil"), b"x" * 20_000])
def test_a_head_answer_with_a_body_ends_the_connection(extra):
    stage, leg = played(reply(b"Content-Length: 4") + extra, method="HEAD")
    assert stage.answer().is_complete
    assert_ended(stage, leg, O.LEG_COMPLETE)
    assert stage.pool.open == 0


def test_bytes_on_an_idle_connection_close_it():
    stage, _ = played(reply(body=b"x"))
    stage.worker_says(b"HTTP/1.1 408 Timeout\r\n\r\n")
    assert stage.transports[-1].ending == "aborted"
    stage.end_turn()
    assert stage.pool.idle_count == 0
    assert stage.pool.open == 0


# --- an answer that comes before the request is out ---------------------------------------------------


def test_an_early_answer_is_passed_on_and_the_connection_not_reused():
    stage = Stage()
    body = RequestBody(-1, 1 << 20)
    leg = stage.ask(head=b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n", body=body)
    body.feed(b"part")
    stage.worker_says(reply(body=b"too large", status=b"413 Large"))
    assert (stage.answer().status, stage.answer().is_complete) == (413, True)
    assert_ended(stage, leg, O.LEG_COMPLETE)
    assert stage.pool.open == 0
    body.feed(b"more")  # nobody wants it any more
    body.finish()


@pytest.fixture
def pair():
    """Return (the relay's end, the worker's end) of a real connection."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_worker_that_has_answered_is_not_written_to(pair, leaves):
    """Writing on would make the transport drop the connection, and with it the answer in the socket."""
    ours, theirs = pair
    theirs.setblocking(False)
    stage = Stage(connects=False)
    body = RequestBody(-1, 1 << 20)
    leg = stage.ask(head=b"POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n", body=body)
    stage.connect(ours.fileno())
    body.feed(b"one")
    assert b"one" in theirs.recv(1000)
    theirs.sendall(b"HTTP/1.1 413")
    if leaves:
        theirs.shutdown(socket.SHUT_WR)
    body.feed(b"two")
    with pytest.raises(BlockingIOError):
        theirs.recv(1000)
    ours.recv(100)
    stage.worker_says(b"HTTP/1.1 413")
    if not leaves:
        assert b"two" in theirs.recv(1000), "it was read, and more may be written"
    stage.worker_says(b" Large\r\nContent-Length: 2\r\n\r\nno")
    assert (stage.answer().status, bytes(stage.answer().body)) == (413, b"no")
    assert_ended(stage, leg, O.LEG_COMPLETE)


# --- too late -----------------------------------------------------------------------------------------


def test_no_first_token_in_time():
    for said in (b"", b"HTTP/1.1 103 Hints\r\n\r\n", stream(b"data: preamble\n\n", last=False)):
        stage = Stage(judge=lambda event: 0)
        leg = stage.ask()
        stage.worker_says(said)
        stage.pass_time(FIRST_TOKEN_S - 1)
        assert leg.state != LegState.LEG_ENDED
        stage.pass_time(FIRST_TOKEN_S + 1)
        assert (stage.client.written, leg.committed) == (b"", False)
        assert_ended(stage, leg, O.LEG_FIRST_TOKEN_TIMEOUT)
        assert stage.pool.open == 0


@pytest.mark.parametrize("said", [b"H", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 103 H\r\n\r\nHTTP/1.1"])
def test_a_head_that_does_not_end_is_no_answer(said):
    stage = Stage()
    leg = stage.ask()
    stage.worker_says(said)
    stage.pass_time(4)
    assert leg.state == LegState.LEG_WAITING
    stage.worker_says(b"1")  # a byte now and then does not help
    stage.pass_time(6)
    assert_ended(stage, leg, O.LEG_BAD_ANSWER)


def test_the_head_behind_an_interim_answer_may_take_its_time():
    stage = Stage()
    leg = stage.ask()
    stage.worker_says(b"HTTP/1.1 103 Hints\r\n\r\n")
    stage.pass_time(100)
    assert leg.state == LegState.LEG_WAITING
    stage.worker_says(reply(body=b"x"))
    assert_ended(stage, leg, O.LEG_COMPLETE)


def test_silence_in_the_middle_of_an_answer():
    for answer in (stream(b"data: a\n\n", last=False), reply(b"Content-Length: 10") + b"12345"):
        stage, leg = played(answer)
        stage.pass_time(IDLE_S - 1)
        assert leg.state == LegState.LEG_RELAYING
        stage.pass_time(IDLE_S + 1)
        assert not stage.answer().is_complete
        assert_ended(stage, leg, O.LEG_IDLE_TIMEOUT)
        assert stage.pool.open == 0


def test_a_plain_head_is_the_first_content():
    stage, leg = played(reply(b"Content-Length: 10"))
    assert leg.first_ns > 0
    stage.pass_time(IDLE_S + 1)
    assert_ended(stage, leg, O.LEG_IDLE_TIMEOUT)


def test_a_worker_that_does_not_take_the_body():
    stage = Stage()
    body = RequestBody(1 << 20, 2 << 20)
    leg = stage.ask(head=b"POST / HTTP/1.1\r\nHost: w\r\nContent-Length: 1048576\r\n\r\n", body=body)
    stage.connections[-1].pause_writing()
    body.feed(b"x" * (1 << 20))
    stage.pass_time(IDLE_S + 1)
    assert_ended(stage, leg, O.LEG_IDLE_TIMEOUT)


@pytest.mark.parametrize("at", ["dialing", "waiting", "relaying"])
def test_the_whole_exchange_takes_too_long(at):
    stage = Stage(connects=at != "dialing")
    leg = stage.ask(deadline_ns=now_ns() + NS)
    if at == "relaying":
        stage.worker_says(stream(b"data: a\n\n", last=False))
    stage.pass_time(0.5)
    assert leg.state != LegState.LEG_ENDED
    stage.pass_time(1.5)
    assert_ended(stage, leg, O.LEG_TOTAL_TIMEOUT)


def test_without_a_deadline_there_is_none():
    stage, leg = played(stream(b"data: a\n\n", last=False))
    leg.sink.pause()
    stage.pass_time(10 * 365 * 86400)
    assert leg.state == LegState.LEG_RELAYING


def test_limits_are_what_was_given():
    assert (LIMITS.connect, LIMITS.first_token, LIMITS.idle) == (
        CONNECT_S * NS,
        FIRST_TOKEN_S * NS,
        IDLE_S * NS,
    )


# --- an error in the stream ---------------------------------------------------------------------------


def test_an_error_event_that_moves_leaves_no_trace():
    error = b'data: {"error": {"message": "no", "code": 500}}\n\n'
    for pieces in every_way(stream(error, b"data: [DONE]\n\n")):
        stage = Stage(DONE, elsewhere=True, judge=lambda event: 3)
        leg = stage.ask()
        stage.worker_says(*pieces)
        assert (stage.client.written, leg.committed) == (b"", False)
        assert_ended(stage, leg, O.LEG_ERROR_EVENT)
        assert stage.pool.open == 0


def test_an_error_event_that_cannot_move_is_passed_on():
    error = b'data: {"error": {"message": "no", "code": 500}}\n\n'
    for pieces in every_way(stream(error)):
        stage = Stage(DONE, elsewhere=False, judge=lambda event: 3)
        leg = stage.ask()
        stage.worker_says(*pieces)
        assert bytes(stage.answer().body) == error
        assert stage.answer().is_complete
        assert leg.error_passed
        assert len(stage.owner.asked) == 1
        assert_ended(stage, leg, O.LEG_COMPLETE)


def test_a_clients_own_error_event_is_passed_on_without_asking():
    error = b'data: {"error": {"message": "no", "code": 400}}\n\n'
    stage = Stage(DONE, elsewhere=True, judge=lambda event: 2)
    leg = stage.ask()
    stage.worker_says(stream(error))
    assert bytes(stage.answer().body) == error
    assert stage.owner.asked == []
    assert leg.error_passed
    assert_ended(stage, leg, O.LEG_COMPLETE)


def test_the_sink_is_started_only_by_a_commit():
    _, leg = played(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    assert leg.sink.state == SinkState.SINK_NEW
