"""What the rooms hand each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from relayd._fast.head import RequestHead
from relayd._fast.leg import Leg, Pool, RequestBody
from relayd._fast.sink import Sink
from relayd._fast.sse import Terminator

if TYPE_CHECKING:
    from relayd.faults import Fault


class Worker:
    """One inference endpoint: what is known of it, and its connections.

    `models` is None until the worker has told; it may then serve any.  `resting_until_ns` and
    `busy_until_ns` are monotonic: the first is ours (a breaker), the second the worker's (Retry-After).
    """

    __slots__ = (
        "busy_until_ns",
        "failures",
        "models",
        "name",
        "pool",
        "probing",
        "rests",
        "resting_until_ns",
        "url",
    )

    def __init__(self, name: str, url: str, pool: Pool) -> None:
        self.name = name
        self.url = url
        self.pool = pool
        self.models: frozenset[str] | None = None
        self.failures = 0  # in a row
        self.rests = 0  # in a row
        self.resting_until_ns = 0
        self.busy_until_ns = 0
        self.probing = False  # the one request after a rest is under way


class Facts(NamedTuple):
    """What a policy may know of a request."""

    model: str
    prompt_tokens: int
    output_tokens: int


class Dialect(Protocol):
    """How a family of APIs words things; see `dialects/`."""

    name: str

    def error_body(self, fault: Fault, request_id: str) -> bytes:
        """Return the JSON body of an error answer."""

    def error_event(self, fault: Fault, request_id: str) -> bytes:
        """Return the event that tells a stream's reader of an error."""

    def judge(self, event: bytes) -> int:
        """Return the EventKind of a whole event, for the commit point."""

    keepalive: bytes


class Route(NamedTuple):
    """What is known of a path before its body is read."""

    name: str  # bounded: a label
    dialect: Dialect
    terminator: int = Terminator.TERMINATOR_NONE
    body: str = "none"  # how the model is found: "json", "multipart", or "none"


class Exchange:
    """One request and its response.

    Made by a door, filled in by the phases, driven by the driver; times are monotonic nanoseconds.
    """

    __slots__ = (
        "arrived_ns",
        "body",
        "client",
        "decision_ns",
        "door",
        "ended",
        "facts",
        "head",
        "held_bytes",
        "leg",
        "leg_ns",
        "model",
        "next_worker",
        "outcome",
        "phase",
        "ready_ns",
        "request_id",
        "retries",
        "route",
        "sink",
        "stream",
        "strip_usage",
        "tried",
    )

    def __init__(
        self, door: DoorSide, head: RequestHead, sink: Sink, body: RequestBody, client: str, now_ns: int
    ) -> None:
        self.door = door
        self.head = head
        self.sink = sink
        self.body = body
        self.client = client  # the address, without the port
        self.arrived_ns = now_ns
        self.ready_ns = now_ns  # when it could be decided on
        self.decision_ns = 0  # how long the decision took
        self.leg_ns = 0  # how long all legs took
        self.held_bytes = 0  # of the body, counted against the gateway's bound
        self.phase = "admit"
        self.route: Route = None  # type: ignore[assignment]  # set by admit, the first phase
        self.model = ""
        self.stream = False
        self.strip_usage = False
        self.facts = Facts("", 0, 0)
        self.request_id = ""
        self.tried: list[Worker] = []
        self.next_worker: Worker | None = None
        self.retries = 0
        self.leg: Leg | None = None
        self.outcome = ""
        self.ended = False


class DoorSide(Protocol):
    """What an exchange may ask of its door."""

    def want_body(self) -> None:
        """The body is wanted: answer Expect, and read on."""

    def exchange_ended(self, exchange: Exchange) -> None:
        """The answer is complete, or never will be."""
