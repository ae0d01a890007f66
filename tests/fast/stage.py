"""A stage for legs: a worker's socket and a client's, both made of memory.

Nothing here has a clock, or a loop that runs by itself.  A transport keeps what is written to it; `Stage`
plays the worker by feeding a connection the way uvloop does (only while it is being read, and telling it of
the end a turn after the transport was closed) and moves time by sweeping.  Every module that asks for the
fixture `both_ways` runs twice: handling what arrives at once, and putting it off to the end of a turn.

    stage = Stage(TERMINATOR_DONE)
    leg = stage.ask()
    stage.worker_says(b"HTTP/1.1 200 OK\\r\\n...")
    assert stage.answer().is_complete
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

from relayd._fast.leg import Connection, EventKind, Leg, Limits, Pool, RequestBody, Sweeper, Terms, now_ns
from relayd._fast.sink import HttpSink, Sink
from relayd._fast.sse import Terminator
from relayd._fast.turn import Outlet, Turn
from tests.support.wire import CLOSED, RESET, Answer

NS = 1_000_000_000
READ_SIZE = 65536
LINGER_ZERO = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

CONNECT_S, FIRST_TOKEN_S, IDLE_S, WRITE_S, TOTAL_S = 2, 600, 300, 60, 3600
LIMITS = Limits(CONNECT_S * NS, FIRST_TOKEN_S * NS, IDLE_S * NS, WRITE_S * NS, TOTAL_S * NS)
COMMENT = b": keep-alive\n\n"

GET_HEAD = b"GET /v1/x HTTP/1.1\r\nHost: w\r\n\r\n"


class FakeLoop:
    """A loop whose turns a test ends."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.failures: list[BaseException] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context["exception"])

    def end_turn(self) -> None:
        """Call what waits for the end of this turn."""
        while self.calls:
            self.end_one()
        assert not self.failures

    def end_one(self) -> None:
        """Call the first of them."""
        self.calls.pop(0)()


class Mode:
    """How the tests of a module run, see `both_ways` in conftest.py."""

    puts_off = False


def new_turn() -> tuple[FakeLoop, Turn]:
    """Return a loop and its turns, for the way in which tests run at the moment."""
    loop = FakeLoop()
    return loop, Turn(loop if Mode.puts_off else None)


class FakeSocket:
    """Remembers the options that were set on it."""

    def __init__(self, descriptor: int = -1) -> None:
        self.options: list[tuple[Any, ...]] = []
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor

    def setsockopt(self, *option: Any) -> None:
        self.options.append(option)


class FakeTransport:
    """A transport without a socket, or beside a real one.

    `ending` is "", "closed" or "aborted", whichever came first; `held` is how many bytes it has yet to write.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self.writes: list[bytes] = []
        self.held = 0
        self.ending = ""
        self.reading = True
        self.socket = FakeSocket(descriptor)
        self.pauses = 0

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    @property
    def was_reset(self) -> bool:
        """True if the peer sees a reset rather than a FIN."""
        return self.ending == "aborted" and LINGER_ZERO in self.socket.options

    def write(self, data: bytes) -> None:
        if not self.ending:
            self.writes.append(bytes(data))

    def close(self) -> None:
        self.ending = self.ending or "closed"

    def abort(self) -> None:
        self.ending = self.ending or "aborted"

    def get_write_buffer_size(self) -> int:
        return self.held

    def is_closing(self) -> bool:
        return bool(self.ending)

    def pause_reading(self) -> None:
        assert self.reading, "paused twice"
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        assert not self.reading, "resumed without a pause"
        self.reading = True

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert high > low > 0

    def get_extra_info(self, name: str) -> Any:
        return self.socket if name == "socket" else None


class Owner:
    """A leg's owner: remembers what it is told, and answers as the test says."""

    def __init__(self, elsewhere: bool, judge: Callable[[bytes], int] | None) -> None:
        self.elsewhere = elsewhere
        self.judge = judge
        self.asked: list[int] = []  # the status at each try_elsewhere
        self.judged: list[bytes] = []
        self.ended: list[Leg] = []

    def try_elsewhere(self, leg: Leg) -> bool:
        self.asked.append(leg.status)
        return self.elsewhere

    def judge_event(self, leg: Leg, event: bytes) -> int:
        self.judged.append(event)
        return self.judge(event) if self.judge is not None else EventKind.EVENT_CONTENT

    def leg_ended(self, leg: Leg) -> None:
        self.ended.append(leg)


class Stage:
    """One worker, one client, and the legs between them."""

    def __init__(
        self,
        terminator: int = Terminator.TERMINATOR_NONE,
        *,
        elsewhere: bool = False,
        judge: Callable[[bytes], int] | None = None,
        keepalive_s: int = 0,
        timing: bool = False,
        plain_id: bool = False,
        connects: bool = True,
        sweeper: Sweeper | None = None,
        name: str = "w1",
        loop: FakeLoop | None = None,
        turn: Turn | None = None,
    ) -> None:
        if loop is None or turn is None:
            loop, turn = new_turn()
        self.loop, self.turn = loop, turn
        self.sweeper = Sweeper(None) if sweeper is None else sweeper
        self.connects = connects
        self.pool = Pool(name, b"w", self._dial, turn)
        self.owner = Owner(elsewhere, judge)
        self.terms = Terms(LIMITS, self.sweeper, terminator, timing, plain_id, keepalive_s * NS, COMMENT)
        self.client = FakeTransport()
        self.method = "GET"
        self.connections: list[Connection] = []
        self.transports: list[FakeTransport] = []
        self.lost: set[int] = set()  # connections that have been told of their end
        self.dials = 0

    # -- the client's side

    def ask(
        self,
        *,
        head: bytes = GET_HEAD,
        body: RequestBody | None = None,
        method: str = "GET",
        strip_usage: bool = False,
        may_wait: bool = False,
        tokens: tuple[int, int] = (0, 0),
        deadline_ns: int = 0,
        version_minor: int = 1,
        sink: Sink | None = None,
        lines: bytes = b"",
    ) -> Leg:
        """Begin a leg whose answer goes to `self.client`, or to `sink`."""
        self.method = method
        if sink is None:
            sink = HttpSink(Outlet(self.client, self.turn), version_minor, method == "HEAD", True)
        body = body or RequestBody(-2, 1 << 20)
        leg = Leg(self.pool, sink, self.owner, None, head, body, self.terms, lines, b"req-1")
        leg.expect(method == "HEAD", strip_usage, may_wait, *tokens, now_ns(), deadline_ns)
        leg.begin()
        return leg

    def answer(self) -> Answer:
        """Return what the client has received, told of its connection's end if that has come."""
        answer = Answer(self.method)
        answer.feed(self.client.written)
        if self.client.ending:
            answer.feed_end(RESET if self.client.was_reset else CLOSED)
        return answer

    # -- the worker's side

    def _dial(self, pool: Pool) -> None:
        self.dials += 1
        if self.connects:
            self.connect()

    def connect(self, descriptor: int = -1) -> Connection:
        """End one dial well; `descriptor` is of a real socket, where a test has one."""
        connection = self.make_connection(descriptor)
        self.pool.dialed(connection)
        return connection

    def make_connection(self, descriptor: int = -1) -> Connection:
        """Return a connection that the pool does not know of yet."""
        connection = Connection(self.pool)
        transport = FakeTransport(descriptor)
        connection.connection_made(transport)
        self.connections.append(connection)
        self.transports.append(transport)
        return connection

    @property
    def sent(self) -> bytes:
        """What the worker has received on the newest connection."""
        return self.transports[-1].written

    def worker_says(self, *pieces: bytes, on: int = -1, ends_turn: bool = True) -> bool:
        """Deliver each of `pieces` in reads of its own; return False if the connection ended meanwhile."""
        connection, transport = self.connections[on], self.transports[on]
        for piece in pieces:
            for start in range(0, len(piece), READ_SIZE):
                if transport.ending or not transport.reading:
                    return False
                part = piece[start : start + READ_SIZE]
                connection.data_received(part)
                if ends_turn:
                    self.loop.end_turn()
        return not transport.ending

    def worker_closes(self, on: int = -1) -> None:
        """A FIN; it is not seen before a paused connection is read again."""
        connection = self.connections[on]
        if not self.transports[on].ending:
            assert not connection.eof_received()
        self._lose(on % len(self.connections), None)

    def worker_resets(self, on: int = -1) -> None:
        """An RST."""
        self._lose(on % len(self.connections), ConnectionResetError())

    def end_turn(self) -> None:
        """Let a turn of the loop pass: connections that were closed hear of it."""
        self.loop.end_turn()
        for index, transport in enumerate(self.transports):
            if transport.ending:
                self._lose(index, None)

    def _lose(self, index: int, error: Exception | None) -> None:
        if index not in self.lost:
            self.lost.add(index)
            self.transports[index].ending = self.transports[index].ending or "peer"
            self.connections[index].connection_lost(error)

    # -- time

    def pass_time(self, seconds: float) -> None:
        """Sweep as if `seconds` had passed since now."""
        self.sweeper.sweep(now_ns() + int(seconds * NS))

    # -- what must be true in the end

    @property
    def load(self) -> tuple[int, int, int]:
        """(legs in flight, prompt tokens, output tokens) of the worker."""
        return self.pool.in_flight, self.pool.prompt_tokens, self.pool.output_tokens

    def assert_nothing_left(self) -> None:
        """Fail unless every leg has given back what it held."""
        self.end_turn()
        assert self.load == (0, 0, 0)
        assert len(self.sweeper) == 0
        assert self.pool.open == self.pool.idle_count
        assert self.pool.dialing == 0 or not self.connects


def reply(*headers: bytes, status: bytes = b"200 OK", body: bytes | None = None) -> bytes:
    """Return an answer; a body gets a Content-Length."""
    lines = [b"HTTP/1.1 " + status, *headers]
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + (body or b"")


def chunks(pieces: Iterable[bytes], last: bool = True) -> bytes:
    """Return `pieces` as HTTP chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces if one) + b"0\r\n\r\n" * last


EVENT_STREAM = b"Content-Type: text/event-stream"
CHUNKED = b"Transfer-Encoding: chunked"


def stream(*events: bytes | str, last: bool = True) -> bytes:
    """Return an event stream as a worker sends it: each event a chunk."""
    pieces = [event.encode() if isinstance(event, str) else event for event in events]
    return reply(EVENT_STREAM, CHUNKED) + chunks(pieces, last)
