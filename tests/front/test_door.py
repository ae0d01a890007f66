"""What a client may do to a connection: a door reads heads however they are cut, and bounds all that follows.

The driver is a fake that takes exchanges and lets the test answer them; the transport is made of memory.
"""

from __future__ import annotations

import asyncio
import socket

import pytest

from relayd._fast.head import HeadFault
from relayd._fast.leg import now_ns
from relayd._fast.sink import SinkState
from relayd.config import Settings, apply
from relayd.faults import Fault
from relayd.front.door import REQUESTS_IN_A_ROW, DoorState, House, after_blank_lines
from relayd.records import Exchange
from tests.fast.stage import NS, FakeSocket, FakeTransport, chunks, new_turn
from tests.support.wire import Answer, every_way

pytestmark = pytest.mark.usefixtures("both_ways")

GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n"
BODY = b'{"model":"m"}'
CHUNKED_POST = b"POST /files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class DoorSocket(FakeSocket):
    """A socket that says it is one of TCP."""

    family, proto = socket.AF_INET, socket.IPPROTO_TCP
    state = 1  # TCP_ESTABLISHED

    def getsockopt(self, *option):
        if self.state is None:
            raise OSError(9, "Bad file descriptor")
        return bytes([self.state]) if len(option) == 3 else 0


class DoorTransport(FakeTransport):
    """A client's transport; `buffered` is what the client has not taken yet."""

    def __init__(self) -> None:
        super().__init__()
        self.socket = DoorSocket()
        self.buffered = 0
        self.eof = False

    def get_extra_info(self, name, default=None):
        return {"socket": self.socket, "peername": ("10.9.9.9", 1234)}.get(name, default)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def pause_reading(self) -> None:
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        self.reading = True


class Driver:
    """Takes exchanges; `instantly` answers each at once."""

    def __init__(self) -> None:
        self.books = self  # only its count of connections is asked for
        self.connected = 0
        self.begun: list[Exchange] = []
        self.refused: list[tuple[Exchange, Fault]] = []
        self.failed: list[tuple[Exchange, Fault]] = []
        self.gone: list[Exchange] = []
        self.arrived = 0
        self.instantly = False
        self.gathers = True

    def connections(self, change: int) -> None:
        self.connected += change

    def begin(self, exchange: Exchange) -> None:
        self.begun.append(exchange)
        if self.instantly:
            finish(exchange)

    def begin_refused(self, exchange: Exchange, refused: Fault) -> None:
        self.refused.append((exchange, refused))
        finish(exchange, refused.status)

    def body_arrived(self, exchange: Exchange) -> None:
        self.arrived += 1

    def body_failed(self, exchange: Exchange, refused: Fault) -> None:
        self.failed.append((exchange, refused))
        finish(exchange, refused.status)

    def client_gone(self, exchange: Exchange) -> None:
        self.gone.append(exchange)

    def stopped(self, exchange: Exchange) -> None:
        exchange.sink.abort()
        exchange.ended = True
        exchange.door.exchange_ended(exchange)

    def wants_whole_body(self, exchange: Exchange) -> bool:
        return self.gathers


def finish(exchange: Exchange, status: int = 200, body: bytes = b"ok") -> None:
    """Answer an exchange and tell its door."""
    exchange.sink.start(status, b"", len(body))
    exchange.sink.write(body)
    exchange.sink.end()
    exchange.ended = True
    exchange.door.exchange_ended(exchange)


class Place:
    """One connection to one house."""

    def __init__(self, *sets: str) -> None:
        settings = Settings()
        for assignment in sets:
            settings = apply(settings, assignment)
        self.driver = Driver()
        self.loop, turn = new_turn()
        self.house = House(self.driver, settings, turn)
        self.house.call_soon = self.loop.call_soon
        self.open()

    def open(self):
        """Open a (further) connection and make it the current one."""
        self.door, self.transport = self.house(), DoorTransport()
        self.door.connection_made(self.transport)
        return self.door

    def send(self, *pieces: bytes) -> None:
        """Let the client's bytes arrive."""
        for piece in pieces:
            if self.transport.ending:
                return
            self.door.data_received(piece)
            self.loop.end_turn()

    def sweep(self, seconds: float) -> None:
        """Look after the door as if so much time had passed."""
        self.door.sweep(now_ns() + int(seconds * NS))

    @property
    def answers(self) -> list[Answer]:
        """All answers the client has, in order."""
        rest, found = self.transport.written, []
        while rest:
            answer = Answer("GET")
            answer.feed(rest)
            found.append(answer)
            if not answer.is_complete:
                break
            rest = answer.rest
        return found

    @property
    def exchange(self) -> Exchange:
        return self.driver.begun[-1]

    @property
    def refusals(self) -> list[str]:
        """The codes of what could not be read as a request."""
        return [refused.code for _, refused in self.driver.refused]


def within_a_loop(test):
    """Run a test inside a loop: aiohttp's server asks for one."""

    def run() -> None:
        async def scene() -> None:
            test()

        asyncio.run(scene())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# --- heads --------------------------------------------------------------------------------------------


@within_a_loop
def test_a_head_is_the_same_however_it_is_cut():
    for pieces in every_way(GET):
        place = Place()
        place.send(*pieces)
        head = place.exchange.head
        assert (head.fault, head.method, head.target, head.host) == (0, "GET", b"/v1/models", b"a"), pieces
        assert place.exchange.client.address == "10.9.9.9"
        assert place.exchange.body.complete
        assert place.exchange.route.name == "models"


@within_a_loop
def test_a_body_is_the_same_however_it_is_cut():
    for request in (POST + BODY, CHUNKED_POST + chunks([BODY[:5], BODY[5:]])):
        for pieces in every_way(request):
            place = Place()
            place.send(*pieces)
            assert len(place.driver.begun) == 1
            assert (place.exchange.body.whole(), place.exchange.body.complete) == (BODY, True), pieces


@within_a_loop
def test_answers_go_out_and_the_connection_stays():
    place = Place()
    for _ in range(3):
        place.send(GET)
        finish(place.exchange)
        assert place.door.state == DoorState.IDLE
    assert [answer.status for answer in place.answers] == [200] * 3
    assert place.transport.ending == ""


@within_a_loop
def test_pipelined_requests_are_served_one_by_one_in_order():
    requests = [GET.replace(b"models", b"m%d" % number) for number in range(5)]
    for pieces in ([b"".join(requests)], requests, [b"".join(requests)[n : n + 7] for n in range(0, 300, 7)]):
        place = Place()
        place.send(*pieces)
        for number in range(5):
            assert len(place.driver.begun) == number + 1
            assert place.exchange.head.path == b"/v1/m%d" % number
            finish(place.exchange, body=b"%d" % number)
        assert [bytes(answer.body) for answer in place.answers] == [b"0", b"1", b"2", b"3", b"4"]


def post(number: int, *lines: bytes, version: bytes = b"1.1") -> bytes:
    """Return a request with a body that says which one it is."""
    body = b'{"n":%d}' % number
    head = [b"POST /%d HTTP/%b" % (number, version), b"Host: a", *lines, b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*head, b"", body])


def get(number: int, *lines: bytes) -> bytes:
    return b"\r\n".join([b"GET /%d HTTP/1.1" % number, b"Host: a", *lines, b"", b""])


UPGRADE = (b"Connection: Upgrade", b"Upgrade: h2c")
TOGETHER = {  # what is sent, and which requests are served before the end
    "upgrade": (get(0, *UPGRADE) + get(1) + post(2), [0, 1, 2]),
    "upgrade to tcp": (get(0, b"Upgrade: tcp", b"Connection: Upgrade") + post(1), [0, 1]),
    "upgrade behind a body": (post(0) + get(1, *UPGRADE) + get(2), [0, 1, 2]),
    "upgrade behind chunks": (
        b"POST /0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks([b"ab"])
        + get(1, *UPGRADE) + get(2), [0, 1, 2],
    ),
    "close": (post(0, b"Connection: close") + post(1), [0]),
    "close, in other words": (post(0, b"connection: x , CLOSE") + post(1), [0]),
    "close twice": (post(0, b"Connection: keep-alive", b"Connection: close") + post(1), [0]),
    "proxy-connection": (post(0, b"Proxy-Connection: close") + post(1), [0]),
    "get and close": (get(0, b"Connection: close") + get(1), [0]),
    "HTTP/1.0": (post(0, version=b"1.0") + post(1), [0]),
    "chunks and close": (
        b"POST /0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunks([b"ab", b"\r\n\r\n"]) + get(1), [0],
    ),
    "good and bad": (get(0) + b"B\x00D / HTTP/1.1\r\n\r\n", [0]),
    "a body and bad": (post(0) + b"G@T / HTTP/1.1\r\n\r\n", [0]),
    "blank lines": (b"\r\n\r\n" + get(0) + b"\r\n" + get(1), [0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("what", TOGETHER)
def test_a_good_request_is_served_whatever_follows_it_and_however_it_is_cut(what):
    data, served = TOGETHER[what]

    @within_a_loop
    def scene() -> None:
        for pieces in every_way(data):
            place = Place()
            for piece in pieces:
                place.send(piece)
                while place.door.exchange is not None and place.exchange.body.complete:
                    finish(place.exchange)
            assert [exchange.head.path for exchange in place.driver.begun] == [b"/%d" % n for n in served], (
                pieces
            )
            assert [answer.status for answer in place.answers][: len(served)] == [200] * len(served), pieces

    scene()


@within_a_loop
def test_a_client_that_does_not_read_gets_no_further_answers():
    """Answers of relayd's own heed no pause: so no further request is begun."""
    place = Place()
    place.driver.instantly = True
    place.door.pause_writing()
    place.send(GET * 20)
    assert place.driver.begun == []
    place.sweep(100)
    assert place.transport.ending == "", "it waits for the client, not the client for it"
    place.door.resume_writing()
    place.loop.end_turn()
    assert len(place.answers) == 20


@within_a_loop
def test_many_requests_that_are_refused_at_once_keep_nobody_else_waiting():
    place = Place()
    place.driver.instantly = True
    other, its_transport = place.door, place.transport
    place.open()
    place.door.data_received(GET * 400)  # more than is put off
    other.data_received(GET)
    while not its_transport.written:
        place.loop.end_one()
    assert len(place.answers) <= 2 * REQUESTS_IN_A_ROW
    place.loop.end_turn()
    assert len(place.answers) == 400


@within_a_loop
def test_requests_that_wait_for_a_worker_are_not_counted_as_in_a_row():
    place = Place()
    place.send(GET * 20)
    for number in range(20):
        assert len(place.driver.begun) == number + 1
        finish(place.exchange)
    assert len(place.answers) == 20


@within_a_loop
def test_a_drain_answers_once_more_whoever_has_many_waiting():
    place = Place()
    place.driver.instantly = True
    place.door.data_received(GET * 400)
    place.house.drain()
    place.loop.end_turn()
    assert [answer.values("connection") for answer in place.answers] == [[]] * REQUESTS_IN_A_ROW + [["close"]]
    assert place.transport.eof


@within_a_loop
def test_pipelined_bodies_do_not_mix():
    place = Place()
    place.driver.instantly = True
    place.send((POST + BODY) * 3 + CHUNKED_POST + chunks([BODY]) + GET)
    assert [exchange.body.whole() for exchange in place.driver.begun] == [BODY] * 4 + [b""]
    assert len(place.answers) == 5


@within_a_loop
def test_a_head_that_is_wrong_is_the_drivers_to_refuse():
    for head, fault in [
        (b"GET /../a HTTP/1.1\r\nHost: a\r\n\r\n", HeadFault.HEAD_BAD_TARGET),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", HeadFault.HEAD_BAD_HOST),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", HeadFault.HEAD_BAD_METHOD),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n", HeadFault.HEAD_BAD_EXPECT),
    ]:
        place = Place()
        place.send(head)
        assert place.exchange.head.fault == fault
        assert not place.exchange.sink.keep_alive


UNREADABLE = [
    (b"hello\r\n\r\n", "bad_request"),
    (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", "bad_request"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nBad Name: 1\r\n\r\n", "bad_request"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "bad_request"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", "bad_request"),
    (b"\x16\x03\x01\x02\x00\x01\x00", "bad_request"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", "head_too_large"),
    (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", "head_too_large"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 300 + b"\r\n", "head_too_large"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: " + b"y" * 2000 + b"\r\n", None),
    (b"GET /\r\n", "bad_request"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n" + (b"X: " + b"y" * 2000 + b"\r\n") * 40, "head_too_large"),
]


@within_a_loop
def test_what_is_no_request_is_answered_and_closed():
    for data, code in UNREADABLE:
        for size in (len(data), 1000, 1):
            place = Place()
            place.send(*[data[start : start + size] for start in range(0, len(data), size)])
            if code is None:
                assert place.refusals == [], data[:40]
                continue
            codes = place.refusals + ["" for exchange in place.driver.begun if not exchange.head.fault]
            assert codes == [code] or place.driver.begun[-1].head.fault, (data[:40], size, codes)
            if place.refusals:
                assert place.door.state == DoorState.CLOSING
                assert place.transport.eof or place.transport.ending
                assert len(place.answers) == 1
                assert place.answers[0].values("connection") == ["close"]


@within_a_loop
def test_a_good_request_before_a_bad_one_gets_its_answer():
    place = Place()
    place.send(GET + b"garbage\r\n\r\n")
    assert len(place.driver.begun) == 1
    finish(place.exchange)
    assert [answer.status for answer in place.answers] == [200, 400]


@within_a_loop
def test_nothing_behind_the_last_request_is_served():
    for last in (
        GET.replace(b"X-A: 1", b"Connection: close"),
        b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
    ):
        place = Place()
        place.driver.instantly = True
        place.send(last + GET)
        assert len(place.driver.begun) == 1
        assert len(place.answers) == 1
        assert place.door.state == DoorState.CLOSING


@within_a_loop
def test_http_1_0_may_ask_to_stay():
    place = Place()
    place.driver.instantly = True
    place.send(b"GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", GET)
    assert len(place.driver.begun) == 2
    assert place.answers[0].values("connection") == ["keep-alive"]


@within_a_loop
def test_an_upgrade_is_declined_and_http_goes_on():
    for upgrade in (b"Connection: Upgrade\r\nUpgrade: h2c", b"Connection: upgrade\r\nUpgrade: websocket"):
        place = Place()
        place.driver.instantly = True
        place.send(GET.replace(b"X-A: 1", upgrade) + GET, GET)
        assert len(place.driver.begun) == 3
        assert [answer.status for answer in place.answers] == [200] * 3


# --- bodies -------------------------------------------------------------------------------------------


@within_a_loop
def test_expect_is_answered_when_the_body_is_wanted():
    place = Place()
    place.send(POST.replace(b"Host: a", b"Host: a\r\nExpect: 100-continue"))
    assert place.transport.written == b""
    place.door.want_body()
    assert place.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    place.send(BODY)
    assert place.exchange.body.complete
    finish(place.exchange)
    answer = place.answers[0]
    assert (answer.interim, answer.status) == ([100], 200)


@within_a_loop
def test_a_body_that_came_unasked_needs_no_hundred():
    place = Place()
    place.send(POST.replace(b"Host: a", b"Host: a\r\nExpect: 100-continue") + BODY)
    place.door.want_body()
    assert place.transport.written == b""


@within_a_loop
def test_who_expects_nothing_is_told_nothing():
    place = Place()
    place.send(POST)
    place.door.want_body()
    assert place.transport.written == b""


@within_a_loop
def test_an_answer_before_the_body_is_in_closes_the_connection():
    place = Place()
    place.send(POST + BODY[:5])
    finish(place.exchange, 413)
    assert place.answers[0].status == 413
    assert place.door.state == DoorState.CLOSING
    assert place.transport.eof
    place.send(BODY[5:], GET)  # read and thrown away
    assert len(place.driver.begun) == 1


@within_a_loop
def test_a_body_that_is_not_wanted_yet_stops_the_client():
    place = Place()
    place.driver.gathers = False
    place.send(CHUNKED_POST)
    piece = chunks([b"x" * 32_768], last=False)
    sent = 0
    while place.transport.reading and sent < 100:
        place.send(piece)
        sent += 1
    assert sent < 20
    assert place.exchange.body.size <= 256 << 10


BROKEN_BODIES = [
    b"xyz\r\n",
    b"5\r\nhelloX",
    b"-1\r\n",
    b"ffffffffffffffffff\r\n",
    b"5;" + b"e" * 100_000,
    b"0\r\n" + b"X-T: 1\r\n" * 20_000,
]


@within_a_loop
def test_a_body_that_is_broken_is_told():
    for broken in BROKEN_BODIES:
        for size in (1000, len(broken)):
            place = Place()
            place.send(CHUNKED_POST, *[broken[start : start + size] for start in range(0, len(broken), size)])
            codes = {refused.code for _, refused in place.driver.failed} | set(place.refusals)
            assert codes, broken[:20]
            assert codes <= {"bad_body", "bad_request", "head_too_large"}
            assert not place.answers[0].header("connection", "").startswith("keep")
            assert place.door.state == DoorState.CLOSING


@within_a_loop
def test_small_chunks_are_fine_and_mostly_framing_is_not():
    place = Place()
    place.send(CHUNKED_POST, *[chunks([b"x"], last=False)] * 5000, b"0\r\n\r\n")
    assert (place.exchange.body.size, place.driver.failed) == (5000, [])
    place = Place()
    place.send(CHUNKED_POST, *[b"1;" + b"e" * 500 + b"\r\nx\r\n"] * 100)
    assert [refused.code for _, refused in place.driver.failed] == ["bad_body"]


# --- time ---------------------------------------------------------------------------------------------


@within_a_loop
def test_a_connection_without_a_request_is_closed():
    place = Place()
    place.sweep(74)
    assert place.transport.ending == ""
    place.sweep(76)
    assert place.transport.ending == "closed"
    assert place.transport.written == b""


@within_a_loop
def test_a_head_that_does_not_end_is_answered():
    place = Place()
    place.send(GET[:10])
    assert place.door.state == DoorState.HEAD
    place.sweep(9)
    assert place.refusals == []
    place.send(GET[10:12])
    place.sweep(11)
    assert place.refusals == ["head_timeout"], "from its first byte, whatever else comes"
    assert place.answers[0].status == 408


@within_a_loop
def test_a_body_that_stops_coming_is_answered():
    place = Place()
    place.send(POST + BODY[:5])
    place.sweep(29)
    assert place.driver.failed == []
    place.sweep(31)
    assert [refused.code for _, refused in place.driver.failed] == ["body_timeout"]
    assert place.answers[0].status == 408


@within_a_loop
def test_an_exchange_may_take_its_time():
    place = Place()
    place.send(POST + BODY)
    place.sweep(100_000)
    assert (place.driver.failed, place.transport.ending) == ([], "")
    assert place.door.state == DoorState.EXCHANGE


@within_a_loop
def test_timeouts_may_be_switched_off():
    place = Place("front.keepalive=off", "front.head_timeout=off", "front.body_timeout=off", "write=off")
    place.sweep(10**6)
    place.send(GET[:5])
    place.sweep(10**6)
    assert (place.transport.ending, place.refusals) == ("", [])


@within_a_loop
def test_a_client_that_takes_nothing_is_cut_off():
    place = Place()
    place.send(GET)
    place.exchange.sink.start(200, b"", -1)
    place.exchange.sink.write(b"x")
    place.transport.buffered = 100_000
    place.sweep(1)
    place.sweep(59)
    assert place.transport.ending == ""
    place.transport.buffered = 90_000  # it took something
    place.sweep(65)
    place.sweep(120)
    assert place.transport.ending == ""
    place.sweep(126)
    assert place.transport.ending == "aborted"


@within_a_loop
def test_a_closing_connection_is_not_read_for_ever():
    place = Place()
    place.send(b"garbage\r\n\r\n")
    assert place.door.state == DoorState.CLOSING
    place.sweep(1)
    assert place.transport.ending == ""
    place.sweep(3)
    assert place.transport.ending == "aborted"


@within_a_loop
def test_a_closing_connection_lets_its_answer_out_first():
    place = Place()
    place.send(b"garbage\r\n\r\n")
    place.transport.buffered = 100
    place.sweep(3)
    assert place.transport.ending == ""


# --- flow ---------------------------------------------------------------------------------------------


@within_a_loop
def test_a_client_that_does_not_keep_up_pauses_its_sink():
    place = Place()
    place.send(GET)
    sink = place.exchange.sink
    place.door.pause_writing()
    assert sink.paused
    place.door.resume_writing()
    assert not sink.paused


@within_a_loop
def test_a_client_that_was_slow_begins_its_next_answer_paused():
    place = Place()
    place.send(GET)
    place.door.pause_writing()
    finish(place.exchange)
    place.send(GET)
    assert place.exchange.sink.paused
    place.door.resume_writing()
    assert not place.exchange.sink.paused


# --- ends ---------------------------------------------------------------------------------------------


@within_a_loop
def test_a_fin_means_that_the_client_has_left():
    place = Place()
    place.send(GET)
    place.door.eof_received()
    assert place.driver.gone == [place.exchange]
    place.door.connection_lost(None)
    assert len(place.driver.gone) == 1
    assert place.house.doors == set()


@within_a_loop
def test_a_reset_means_so_too():
    place = Place()
    place.send(POST + BODY[:3])
    place.door.connection_lost(ConnectionResetError())
    assert place.driver.gone == [place.exchange]
    place.exchange.door.exchange_ended(place.exchange)  # the driver's end of it: nobody listens
    assert place.house.doors == set()


@within_a_loop
def test_what_came_in_the_same_turn_as_the_end_counts():
    """A request and its client leaving may be read in one turn, and never in the wrong order."""
    for pieces in ([GET], [GET[:9], GET[9:]], [POST, BODY[:4], BODY[4:]]):
        for end in ("eof", "lost"):
            place = Place()
            for piece in pieces:
                place.door.data_received(piece)
            place.door.eof_received() if end == "eof" else place.door.connection_lost(None)
            assert place.driver.gone == [place.exchange]
            place.loop.end_turn()
            assert len(place.driver.begun) == 1


@within_a_loop
def test_a_drain_serves_what_has_come_in_its_turn():
    place = Place()
    place.door.data_received(GET)
    place.house.drain()
    finish(place.exchange)
    place.loop.end_turn()
    assert [answer.status for answer in place.answers] == [200]
    assert place.transport.eof


@within_a_loop
def test_a_door_on_which_relayd_fails_is_cut():
    place = Place()
    place.driver.begin = None
    try:
        place.door.data_received(GET)
    except TypeError:
        return  # at once: the transport hears of it, as from every protocol
    with pytest.raises(AssertionError):
        place.loop.end_turn()
    assert isinstance(place.loop.failures[0], TypeError)
    assert place.transport.ending == "aborted"


@within_a_loop
def test_an_idle_client_may_leave():
    place = Place()
    place.door.eof_received()
    place.door.connection_lost(None)
    assert place.driver.gone == []


@within_a_loop
def test_a_client_that_leaves_unread_is_noticed():
    """While its socket is not being read nothing else would tell."""
    for state, gone in [(1, False), (3, False), (4, True), (7, True), (8, True), (11, True), (None, True)]:
        place = Place()
        place.send(POST)
        assert place.house.unread == set()
        place.door._pause_transport()
        assert place.house.unread == {place.door}
        place.transport.socket.state = state
        place.house._look()
        assert (place.transport.ending == "aborted") is gone, state
        place.door._resume_transport()
        assert place.house.unread == set()


@within_a_loop
def test_a_lost_connection_is_not_looked_at():
    place = Place()
    place.door._pause_transport()
    place.door.connection_lost(None)
    assert place.house.unread == set()
    assert not place.door.has_left()
    place.house._look()


@within_a_loop
def test_an_aborted_answer_closes_the_connection():
    place = Place()
    place.send(GET)
    sink = place.exchange.sink
    sink.start(200, b"", 10)
    sink.write(b"half")
    sink.abort()
    place.exchange.ended = True
    place.door.exchange_ended(place.exchange)
    assert sink.state == SinkState.SINK_ABORTED
    assert place.transport.ending == "closed"
    place.send(GET)
    assert len(place.driver.begun) == 1


@within_a_loop
def test_too_many_connections():
    place = Place("front.max_connections=2")
    first, kept = place.door, place.transport
    place.open()
    second = place.transport
    place.open()
    assert (kept.ending, second.ending, place.transport.ending) == ("", "", "aborted")
    place.door.connection_lost(None)
    first.connection_lost(None)
    place.open()
    assert place.transport.ending == ""


# --- draining -----------------------------------------------------------------------------------------


@within_a_loop
def test_a_drain_closes_idle_connections_at_once():
    place = Place()
    place.house.drain()
    assert place.transport.eof
    assert not place.house.empty.is_set()
    place.door.connection_lost(None)
    assert place.house.empty.is_set()


@within_a_loop
def test_a_drain_lets_what_runs_end():
    place = Place()
    place.send(GET)
    place.house.drain()
    assert (place.transport.eof, place.transport.ending) == (False, "")
    finish(place.exchange)
    assert place.answers[0].values("connection") == ["close"]
    assert place.transport.eof
    assert place.door.state == DoorState.CLOSING


@within_a_loop
def test_a_drain_with_nobody_there_is_over():
    place = Place()
    place.door.connection_lost(None)
    place.house.drain()
    assert place.house.empty.is_set()


@within_a_loop
def test_a_request_that_comes_during_a_drain_is_the_last():
    place = Place()
    place.send(GET[:5])
    place.house.drain()
    place.send(GET[5:])
    finish(place.exchange)
    assert place.answers[0].values("connection") == ["close"]


def test_a_shutdown_cuts_what_is_left():
    async def scene() -> None:
        place = Place()
        place.send(GET)
        place.exchange.sink.start(200, b"", 10)
        place.exchange.sink.write(b"half")
        place.house.shutdown()
        assert place.transport.ending
        assert not place.answers[0].is_complete

    asyncio.run(scene())


# --- small things -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\r\n\r\n", [b"a\r\n\r\n"]),
        (b"a\r\n\r\nb", [b"a\r\n\r\n", b"b"]),
        (b"\r\n\r\n\r\n\r\n", [b"\r\n\r\n", b"\r\n\r\n"]),
    ],
)
def test_heads_are_fed_one_by_one(data, pieces):
    assert list(after_blank_lines(data, b"")) == pieces


@pytest.mark.parametrize(
    ("seam", "data", "pieces"),
    [
        (b"a\r\n", b"\r\nGET", [b"\r\n", b"GET"]),
        (b"\r\n\r", b"\nGET", [b"\n", b"GET"]),
        (b"a: \r", b"\n\r\nGET", [b"\n\r\n", b"GET"]),
        (b"a: b", b"\r\n\r\nGET\r\n\r\n", [b"\r\n\r\n", b"GET\r\n\r\n"]),
        (b"a\r\n", b"b\r\n", [b"b\r\n"]),
        (b"a\r\n", b"", []),
    ],
)
def test_a_head_ends_where_a_read_cut_its_end(seam, data, pieces):
    assert list(after_blank_lines(data, seam)) == pieces


@within_a_loop
def test_behind_a_body_that_asked_for_another_protocol_nothing_is_served():
    """What follows it in the same read is lost to aiohttp's parser: its rest must not become a request."""
    place = Place()
    place.driver.instantly = True
    upgrade = POST.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")
    place.send(upgrade + BODY + POST.replace(b"13", b"%d" % len(GET)) + GET)
    assert [exchange.head.method for exchange in place.driver.begun] == ["POST"]
    assert place.door.state == DoorState.CLOSING
