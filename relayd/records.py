"""What the rooms hand each other.  Compiled, with the types of records.pxd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from relayd._fast.head import Priority, RequestHead
from relayd._fast.leg import Leg, Pool, RequestBody
from relayd._fast.sink import Sink
from relayd._fast.sse import Terminator

if TYPE_CHECKING:
    from relayd.faults import Fault


OPEN = 0
NEVER = 1 << 62


class Worker:
    """One inference endpoint: what is known of it, and its connections.

    `models` is None until the worker has told; it may then serve any.  Times are monotonic nanoseconds.
    """

    def __init__(self, name: str, url: str, pool: Pool) -> None:
        self.name = name
        self.url = url
        self.pool = pool
        self.line = b"X-Relayd-Worker: %b\r\n" % name.encode()
        self.lines = b""  # that every request to it has: its credential, and what the settings say
        self.line_names: frozenset[bytes] = frozenset()  # ... of which a client's own are left out
        self.has_key = False
        self.models: frozenset[str] | None = None
        self.up = True  # it was reached when it was last tried
        self.failures = 0  # in a row
        self.rests = 0  # in a row
        self.resting_until_ns = OPEN  # ours: a breaker
        self.busy_until_ns = OPEN  # the worker's: Retry-After
        self.probing = False  # the one request after a rest is under way
        self.open_at_ns = OPEN  # when it may be asked: the latest of these; NEVER while probing


class Model:
    """A model that clients may ask for: the workers that serve it, and what it is called there."""

    def __init__(self, name: str, workers: Sequence[Worker], names: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.workers = workers
        self.names = dict(names or {})  # by worker, where it has another name

    def name_at(self, worker: Worker) -> str:
        """Return what `worker` calls it."""
        return self.names.get(worker.name, self.name)


class Fleet:
    """All workers, and which of them serve what.

    `declared` has the models of the settings, by name and by alias; without any, models are those that the
    workers list.  `passthrough` is for paths that relayd does not know: (beginning, model), longest first.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        declared: Mapping[str, Model] | None = None,
        passthrough: Sequence[tuple[bytes, Model]] = (),
    ) -> None:
        self.workers = workers
        self.by_pool = {worker.pool.name: worker for worker in workers}
        self.declared = dict(declared or {})
        self.passthrough = passthrough
        self.models = frozenset(
            model.name for model in self.declared.values()
        )  # that are served, as far as known
        # Does what a client calls a model ever have to be changed for a worker?
        self.renames = any(model.name != name or model.names for name, model in self.declared.items())
        self._serving: dict[str, Sequence[Worker]] = {}

    def learned(self, worker: Worker, models: Iterable[str]) -> None:
        """Note what a worker serves."""
        worker.models = frozenset(models)
        if not self.declared:
            self.models = self.models | worker.models
        self._serving.clear()

    def serving(self, model: str) -> Sequence[Worker]:
        """Return the workers that may serve `model`: as declared, else those that list it, else all."""
        if self.declared:
            known = self.declared.get(model)
            return self.workers if known is None else known.workers
        if len(self.workers) == 1:
            return self.workers
        found = self._serving.get(model)
        if found is None:
            found = [one for one in self.workers if one.models is None or model in one.models]
            found = found if found and model else self.workers
            if model in self.models:
                self._serving[model] = found  # bounded: a client cannot add to what workers list
        return found

    def name_at(self, model: str, worker: Worker) -> str:
        """Return what `worker` calls `model`."""
        known = self.declared.get(model)
        return model if known is None else known.name_at(worker)

    def model_for_path(self, path: bytes) -> Model | None:
        """Return the model whose workers get a path that relayd does not know, if one is declared."""
        return next((model for prefix, model in self.passthrough if path.startswith(prefix)), None)


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What a policy may know of a request."""

    model: str
    prompt_tokens: int
    output_tokens: int
    priority: int = int(Priority.PRIORITY_DEFAULT)


NO_FACTS = Facts("", 0, 0)  # of a request whose body says nothing about work


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


class Route:
    """What is known of a path before its body is read."""

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        terminator: int = Terminator.TERMINATOR_NONE,
        body: str = "none",
        uncached_input: bool = False,
    ) -> None:
        self.name = name  # bounded: a label
        self.dialect = dialect
        self.terminator = int(terminator)
        self.body = body  # how the model is found: "json", "multipart", or "none"
        self.uncached_input = uncached_input  # reported input tokens leave the cached ones out


class Client:
    """Who is on the other end of a connection.

    Connections serve many requests for the same host, so the lines about it that go to workers are kept;
    and most of them come with the same credential, so what that is remembered by is kept.
    """

    def __init__(self, address: str) -> None:
        self.address = address  # without the port; "unix" for a local socket
        self.host: bytes | None = None  # that `lines` were made for
        self.lines: bytes | None = None
        self.credential: bytes | None = None  # its last one, as received, unless it was long
        self.in_authorization = False  # which header that was
        self.digest = b""  # what the authenticator knows it by


class Exchange:
    """One request and its response.

    Made by a door, filled in by the phases, driven by the driver; times are monotonic nanoseconds.
    """

    def __init__(
        self,
        door: DoorSide,
        head: RequestHead,
        sink: Sink,
        body: RequestBody,
        client: Client,
        route: Route,
        arrived_ns: int,
    ) -> None:
        self.door = door
        self.head = head
        self.sink = sink
        self.body = body
        self.client = client
        self.route = route
        self.arrived_ns = arrived_ns
        self.ready_ns = arrived_ns  # when it could be decided on
        self.decision_ns = 0  # how long the decision took
        self.leg_ns = 0  # how long all legs took
        self.address = ""  # that asks, where proxies are trusted or addresses limited; else the client's
        self.phase = "admit"
        self.tenant = ""  # who asks, where relayd authenticates
        self.tier = ""
        self.allowed: frozenset[str] | None = None  # models that the tenant may use; None for all
        self.grant: Any = None  # what its limits have granted
        self.model = ""
        self.asked = ""  # what the body calls it
        self.fault = ""  # the code of relayd's own fault, if it answered with one
        self.stream = False
        self.strip_usage = False  # of a usage event that only relayd asked for
        self.facts: Facts = NO_FACTS
        self.tried: list[Worker] = []
        self.next_worker: Worker | None = None
        self.retries = 0
        self.leg: Leg | None = None
        self.searched = 0  # bytes of a form that have been searched for its model
        self.held_bytes = 0  # of the body, counted against the gateway's bound
        self.outcome = ""
        self.ended = False


class DoorSide(Protocol):
    """What an exchange may ask of its door."""

    def want_body(self) -> None:
        """The body is wanted: answer Expect, and read on."""

    def exchange_ended(self, exchange: Exchange) -> None:
        """The answer is complete, or never will be."""
