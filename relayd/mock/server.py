"""The simulated inference server: routes, and the one timer that drives the simulation.

In a program of your own:

    async with MockServer(Settings(ttft_s=0.02, itl_s=0.005)) as mock:
        ...                       # mock.url, mock.stats, mock.simulation, mock.chances

It may share a loop with anything else.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import formatdate

from relayd.mock import asks, errors, faults, ledger, replies, routes
from relayd.mock.asks import Ask, Refusal
from relayd.mock.chat import BY_ENGINE as CHAT_WRITERS
from relayd.mock.completions import Completion
from relayd.mock.connection import Connection, Request
from relayd.mock.embeddings import Embeddings
from relayd.mock.exchange import Exchange
from relayd.mock.messages import Messages
from relayd.mock.profiles import PROFILES
from relayd.mock.responses import Responses
from relayd.mock.simulation import BatchSimulation, PacedSimulation, Sequence, Simulation
from relayd.mock.text import Ring
from relayd.mock.writers import Json, Writer

ENGINES = ("vllm", "sglang", "openai", "anthropic")
KEPT_RESPONSES = 256  # answers of /v1/responses that can be fetched again
BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """What `relayd mock` can be told.  Times in seconds."""

    host: str = "127.0.0.1"
    port: int = 0
    engine: str = "vllm"
    models: tuple[str, ...] = ("mock",)
    any_model: bool = False  # answer for every name, as SGLang does
    gpu: str = "a100"
    ttft_s: float | None = None  # None: as the profile has it
    itl_s: float | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    max_model_len: int = 32_768
    output_tokens: tuple[int, int] = (32, 256)
    seed: int | None = None
    ping_s: float = 10.0
    chances: tuple[faults.Chance, ...] = ()


class MockServer:
    """One server, one simulated GPU."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings = settings or Settings()
        self.simulation = _simulation(settings)
        self.stats = ledger.Stats()
        self.chances = list(settings.chances)  # may be changed while running
        seed = settings.seed if settings.seed is not None else random.SystemRandom().randrange(2**63)
        self._ring = Ring.of(f"text {seed}")
        self._answers = random.Random(f"answers {seed}")
        self._misfortune = random.Random(f"faults {seed}")
        self._streams: set[Exchange] = set()
        self._connections: set[Connection] = set()
        self._connection_number = 0
        self.kept: OrderedDict[str, Json] = OrderedDict()
        self._common = b""
        self._common_second = 0
        self._request_prefix = "req_" if settings.engine in ("openai", "anthropic") else ""
        self._keys = 0
        self._key_tail = f"{self._answers.getrandbits(96):024x}"
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._pumping = self._pump_again = False
        self.started_at = int(time.time())
        self._server: asyncio.Server | None = None
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # known from start() on

    # --- life

    async def start(self) -> None:
        """Listen.  Raises OSError when the address cannot be had."""
        self.loop = asyncio.get_running_loop()
        settings = self.settings
        self._server = await self.loop.create_server(
            lambda: Connection(self), settings.host, settings.port, backlog=BACKLOG
        )
        self._ping_timer = self.loop.call_later(settings.ping_s, self._ping)

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is None:
            return
        self._server.close()
        for timer in (self._timer, self._ping_timer):
            if timer:
                timer.cancel()
        self._timer = self._ping_timer = None
        for connection in list(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        self._server = None

    async def __aenter__(self) -> MockServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The port it really listens on."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address to give to a client."""
        host = self.settings.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    # --- what connections call

    def connection_made(self, connection: Connection) -> int:
        self._connections.add(connection)
        self.stats.connections_open += 1
        self.stats.connections_accepted += 1
        self._connection_number += 1
        return self._connection_number

    def connection_lost(self, connection: Connection, *, was_reset: bool) -> None:
        self._connections.discard(connection)
        self.stats.connections_open -= 1
        self.stats.connections_closed += 1
        self.stats.connections_reset += was_reset

    def refuse(self, connection: Connection, status: int) -> None:
        """Answer a request that could not be read."""
        error = errors.in_body(self.settings.engine, status, "The request could not be read.", None, None)
        body = errors.encode(error)
        connection.transport.write(
            b"HTTP/1.1 %d Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, len(body), body)
        )

    def handle(self, connection: Connection, request: Request) -> None:
        """Begin to answer a request."""
        exchange = Exchange(self, connection, request, self._request_id(request))
        connection.exchange = exchange
        path = request.path
        if path.startswith("/mock/"):
            routes.own(self, exchange)
            return
        self.stats.count_path(path)
        is_inference = path in _GENERATING and request.method == b"POST"
        if is_inference:
            exchange.entry = ledger.Entry(exchange.request_id, path, connection.number, request.headers)
            self.stats.open(exchange.entry)
        try:
            plan = self._plan(request, is_inference)
        except faults.BadFault as error:
            exchange.refuse(Refusal(400, f"x-mock-fault: {error}", param="x-mock-fault"))
            return
        exchange.begin(plan)

    def _plan(self, request: Request, is_inference: bool) -> faults.Plan:
        asked = request.fields.get(faults.HEADER)
        if asked is not None:
            return faults.parse_header(asked.decode("latin-1"))
        if is_inference and self.chances:
            return faults.draw(self.chances, self._misfortune)
        return {}

    # --- what exchanges call

    def answer(self, exchange: Exchange) -> None:
        """Answer as the engine would; the faults before an answer are over."""
        request = exchange.request
        try:
            if generate := _GENERATING.get(request.path):
                routes.must_be(request, b"POST")
                generate(self, exchange)
            else:
                routes.plain(self, exchange)
        except Refusal as refusal:
            exchange.refuse(refusal)

    def cancel(self, sequence: Sequence) -> None:
        """Free what `sequence` holds, at once."""
        self.simulation.cancel(sequence, self.loop.time())
        self._schedule()

    def ended(self, exchange: Exchange, outcome: str) -> None:
        """An exchange is over, for better or worse."""
        self._streams.discard(exchange)
        if exchange.entry:
            self.stats.close(exchange.entry, outcome)

    def keep(self, body: Json) -> None:
        """Remember an answer of /v1/responses."""
        if body.get("object") == "response" and body["store"]:
            self.kept[body["id"]] = body
            if len(self.kept) > KEPT_RESPONSES:
                self.kept.popitem(last=False)

    def common_headers(self) -> bytes:
        """Return the headers that all answers of this second share."""
        now = int(time.time())
        if now != self._common_second:
            self._common_second = now
            name = {"openai": "cloudflare", "anthropic": "cloudflare"}.get(self.settings.engine, "uvicorn")
            self._common = f"date: {formatdate(now, usegmt=True)}\r\nserver: {name}\r\n".encode()
        return self._common

    def identity_headers(self, exchange: Exchange) -> bytes:
        """Return the header that names the request, as this engine calls it."""
        identity = exchange.request_id.encode("latin-1")
        if self.settings.engine == "anthropic":
            return b"request-id: %b\r\n" % identity
        return b"x-request-id: %b\r\n" % identity

    def _request_id(self, request: Request) -> str:
        given = request.fields.get(b"x-request-id")
        if given:
            return given.decode("latin-1")
        return self._request_prefix + self._new_key()

    def _new_key(self) -> str:
        """Return 32 hexadecimal digits that no other answer of this server has.

        What changes comes first, since some engines' ids have room for fewer.
        """
        self._keys += 1
        return f"{self._keys:08x}{self._key_tail}"

    # --- generation

    def _chat(self, exchange: Exchange) -> None:
        self._generate(
            exchange, asks.decode(asks.chat, exchange.request.body), CHAT_WRITERS[self.settings.engine]
        )

    def _completion(self, exchange: Exchange) -> None:
        self._generate(exchange, asks.decode(asks.completion, exchange.request.body), Completion)

    def _responses(self, exchange: Exchange) -> None:
        ask = asks.decode(asks.responses, exchange.request.body)
        previous = ask.body.previous_response_id
        if previous and previous not in self.kept:
            message = f"Previous response with id '{previous}' not found."
            raise Refusal(
                404 if self.settings.engine == "vllm" else 400, message, param="previous_response_id"
            )
        self._generate(exchange, ask, Responses)

    def _messages(self, exchange: Exchange) -> None:
        self._generate(exchange, asks.decode(asks.messages, exchange.request.body), Messages)

    def _embeddings(self, exchange: Exchange) -> None:
        ask = asks.decode(asks.embedding, exchange.request.body)
        self._generate(exchange, ask, Embeddings, generates=False)

    def _count_tokens(self, exchange: Exchange) -> None:
        ask = asks.decode(asks.count, exchange.request.body)
        self.model(ask.model)
        exchange.send_json({"input_tokens": ask.prompt_tokens})

    def _generate(
        self, exchange: Exchange, ask: Ask, writer_type: type[Writer], *, generates: bool = True
    ) -> None:
        model = self.model(ask.model)
        prompt_tokens = ask.prompt_tokens
        room = self.settings.max_model_len - prompt_tokens
        if room < 1:
            raise _too_long(self.settings.max_model_len, prompt_tokens)
        if ask.choices > self.simulation.max_num_seqs:
            raise Refusal(400, f"n must be at most {self.simulation.max_num_seqs}", param="n")
        reply = replies.plan(ask, self._ring, self._answers, self.settings.output_tokens, room)
        sequence = Sequence(
            prompt_tokens,
            reply.count,
            width=ask.choices,
            blocks=ask.blocks,
            finish="length" if reply.finish == "length" else "stop",
            generates=generates,
            owner=exchange,
        )
        if not self.simulation.can_hold(sequence):
            raise _too_long(self.simulation.profile.kv_tokens, sequence.kv_tokens)
        if entry := exchange.entry:
            entry.model, entry.stream, entry.prompt_tokens = model, ask.stream, prompt_tokens
        key = self._new_key()
        writer = writer_type(self.settings.engine, model, ask, reply, sequence, key, int(time.time()))
        self.simulation.submit(sequence, self.loop.time())
        if ask.stream:
            self._streams.add(exchange)
        exchange.accepted(writer, sequence)
        self._pump()

    def model(self, name: str | None) -> str:
        """Return the model that answers to `name`.  Raises Refusal."""
        models = self.settings.models
        if name is None:
            if self.settings.engine in ("openai", "anthropic"):
                raise Refusal(400, "you must provide a model parameter", param="model")
            return models[0]
        if name in models or self.settings.any_model:
            return name
        if self.settings.engine == "anthropic":
            raise Refusal(404, f"model: {name}", code="model_not_found")
        tail = " or you do not have access to it" if self.settings.engine == "openai" else ""
        param = None if self.settings.engine == "openai" else "model"
        raise Refusal(404, f"The model `{name}` does not exist{tail}.", code="model_not_found", param=param)

    # --- time

    def _pump(self) -> None:
        """Let the simulation run until now, and tell those who wrote tokens."""
        self._pump_again = True
        if self._pumping:
            return  # whoever is at it goes on
        self._pumping = True
        try:
            while self._pump_again:
                self._pump_again = False
                for sequence, count in self.simulation.advance(self.loop.time()):
                    if sequence.owner:
                        sequence.owner.tokens_written(count)
        finally:
            self._pumping = False
        self._schedule()

    def _schedule(self) -> None:
        """Set the one timer for the next step.  It fires up to a millisecond late, never early."""
        if self._pumping:
            return
        due = self.simulation.next_at()
        if due is None:
            return  # a timer that is still set will find nothing to do
        if self._timer:
            if self._timer_due <= due:
                return  # it fires in time; what it finds to do is looked up then
            self._timer.cancel()
        delay_s = math.ceil(max(0.0, due - self.loop.time()) * 1000) / 1000
        self._timer_due = due
        self._timer = self.loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._pump()

    def _ping(self) -> None:
        for exchange in list(self._streams):
            exchange.ping()
        self._ping_timer = self.loop.call_later(self.settings.ping_s, self._ping)


_GENERATING: dict[str, Callable[[MockServer, Exchange], None]] = {
    "/v1/chat/completions": MockServer._chat,
    "/v1/completions": MockServer._completion,
    "/v1/embeddings": MockServer._embeddings,
    "/v1/responses": MockServer._responses,
    "/v1/messages": MockServer._messages,
    "/v1/messages/count_tokens": MockServer._count_tokens,
}


def _simulation(settings: Settings) -> Simulation:
    profile = PROFILES[settings.gpu]
    if settings.kv_tokens:
        profile = replace(profile, kv_tokens=settings.kv_tokens)
    if settings.ttft_s is None and settings.itl_s is None:
        return BatchSimulation(profile, settings.max_num_seqs)
    return PacedSimulation(profile, settings.max_num_seqs, ttft_s=settings.ttft_s, itl_s=settings.itl_s)


def _too_long(limit: int, wanted: int) -> Refusal:
    message = f"This model's maximum context length is {limit} tokens, and this request needs {wanted}."
    return Refusal(400, message, code="context_length_exceeded", param="messages")
