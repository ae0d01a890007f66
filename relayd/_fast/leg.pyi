from asyncio import AbstractEventLoop, BaseTransport
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from relayd._fast.head import ResponseHead
from relayd._fast.sink import Sink, Source
from relayd._fast.turn import Turn

DEBUG_BUILD: bool

class LegState(IntEnum):
    LEG_NEW = 0
    LEG_DIALING = 1
    LEG_WAITING = 2
    LEG_HOLDING = 3
    LEG_RELAYING = 4
    LEG_ENDED = 5

class LegOutcome(IntEnum):
    LEG_RUNNING = 0
    LEG_COMPLETE = 1
    LEG_CANCELLED = 2
    LEG_CONNECT = 3
    LEG_CONNECT_TIMEOUT = 4
    LEG_TLS = 5
    LEG_RESET = 6
    LEG_BAD_ANSWER = 7
    LEG_REJECTED = 8
    LEG_ERROR_EVENT = 9
    LEG_CUT = 10
    LEG_FIRST_TOKEN_TIMEOUT = 11
    LEG_IDLE_TIMEOUT = 12
    LEG_TOTAL_TIMEOUT = 13

class EventKind(IntEnum):
    EVENT_PREAMBLE = 0
    EVENT_CONTENT = 1
    EVENT_CLIENT_ERROR = 2
    EVENT_WORKER_ERROR = 3

class Limits:
    def __init__(self, connect: int, first_token: int, idle: int, write: int, total: int) -> None: ...
    connect: int
    first_token: int
    idle: int
    write: int
    total: int

class Terms:
    def __init__(
        self,
        limits: Limits,
        sweeper: Sweeper,
        terminator: int,
        timing: bool,
        plain_id: bool,
        keepalive_ns: int,
        keepalive: bytes,
    ) -> None: ...

class RequestBody:
    def __init__(self, declared: int, keep: int, on_room: Callable[[], None] | None = None) -> None: ...
    size: int
    declared: int
    complete: bool
    lost: bool
    keep: int
    on_room: Callable[[], None] | None
    @property
    def full(self) -> bool: ...
    @property
    def held(self) -> int: ...
    def feed(self, data: bytes) -> None: ...
    def finish(self) -> None: ...
    def whole(self) -> bytes: ...
    def replace(self, data: bytes) -> None: ...

class Pool:
    def __init__(
        self, name: str, host: bytes, dial: Callable[[Pool], None], turn: Turn | None = None
    ) -> None: ...
    name: str
    host: bytes
    turn: Turn
    dialing: int
    open: int
    max_dials: int
    max_idle: int
    idle_ns: int
    dials: int
    reuses: int
    stale_retries: int
    in_flight: int
    prompt_tokens: int
    output_tokens: int
    last_pick: int
    @property
    def idle_count(self) -> int: ...
    def dialed(self, connection: Connection) -> None: ...
    def dial_failed(self, outcome: int, reason: str) -> None: ...
    def close_idle(self, older_than_ns: int) -> int: ...
    def legs_ended(self) -> list[int]: ...

class Connection:
    def __init__(self, pool: Pool) -> None: ...
    served: int
    def connection_made(self, transport: BaseTransport) -> None: ...
    def connection_lost(self, error: BaseException | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

class Leg(Source):
    def __init__(
        self,
        pool: Pool,
        sink: Sink,
        owner: Any,
        exchange: Any,
        head: bytes,
        body: RequestBody,
        terms: Terms,
        lines: bytes,
        request_id: bytes,
    ) -> None: ...
    pool: Pool
    sink: Sink
    owner: Any
    exchange: Any
    state: int
    outcome: int
    reason: str
    status: int
    response: ResponseHead | None
    committed: bool
    streaming: bool
    reused: bool
    stale_retry: bool
    late: bool
    error_passed: bool
    arrived_ns: int
    begun_ns: int
    sent_ns: int
    head_ns: int
    first_ns: int
    ended_ns: int
    @property
    def took_ns(self) -> int: ...
    @property
    def went_well(self) -> bool: ...
    @property
    def events(self) -> int: ...
    @property
    def tokens(self) -> tuple[int | None, int | None, int | None, int | None, int | None]: ...
    @property
    def usage_refused(self) -> bool: ...
    @property
    def at_boundary(self) -> bool: ...
    @property
    def held_answer(self) -> bytes: ...
    def expect(
        self,
        head_request: bool,
        strip_usage: bool,
        may_wait: bool,
        prompt_tokens: int,
        output_tokens: int,
        arrived_ns: int,
        deadline_ns: int,
    ) -> None: ...
    def begin(self) -> None: ...
    def cancel(self) -> None: ...
    def go_on_without_client(self, sink: Sink, deadline_ns: int) -> None: ...

class Sweeper:
    def __init__(self, loop: AbstractEventLoop | None, interval: float = 0.05) -> None: ...
    interval: float
    def watch(self, pool: Pool) -> None: ...
    def forget(self, pool: Pool) -> None: ...
    def wake(self) -> None: ...
    def tick(self) -> None: ...
    def sweep(self, now: int) -> None: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...

def now_ns() -> int: ...
