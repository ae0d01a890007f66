"""Which models a worker serves.

Asked of `/v1/models` at the start, and after that only because somebody else asked something: a client that
lists the models, or a balancer that wants to know whether relayd is ready.  A relayd that was started without
a file sends no request of its own in the background.  A worker that has not told may serve any model: leaving
it out because one question failed would be worse than its own 404.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from relayd.net import FetchError, fetch
from relayd.records import Fleet, Worker

TIMEOUT_S = 2.0
LOOK_EVERY_S = 1.0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode = msgspec.json.Decoder(_Models).decode


class Discovery:
    """Asks workers what they serve, and tells a person what came of it."""

    def __init__(self, fleet: Fleet, tls: ssl.SSLContext | None, say: Callable[[str], Any]) -> None:
        self.fleet = fleet
        self.tls = tls
        self.say = say
        self.looked_s = 0.0
        self.said: dict[str, str] = {}  # the last thing said of each worker
        self.task: asyncio.Task[None] | None = None

    async def ask_all(self) -> None:
        """Ask every worker at the same time; return when all have answered or failed."""
        await asyncio.gather(*(self.ask(worker) for worker in self.fleet.workers))

    async def ask(self, worker: Worker) -> None:
        """Learn what `worker` serves, if it says."""
        try:
            status, body = await fetch(worker.url + "/v1/models", timeout_s=TIMEOUT_S, tls=self.tls)
        except FetchError as error:
            worker.up = False
            self._say(worker, f"worker {worker.name} ({worker.url}) does not answer: {error}")
            return
        worker.up = True
        if status != 200:
            self._say(
                worker, f"worker {worker.name} does not list its models (status {status}): it gets any model"
            )
            return
        try:
            self.fleet.learned(worker, [model.id for model in _decode(body).data])
            self.said.pop(worker.name, None)
        except (msgspec.MsgspecError, RecursionError):
            self._say(worker, f"worker {worker.name} lists no models that can be read: it gets any model")

    def _say(self, worker: Worker, text: str) -> None:
        """Tell it once: whoever lists the models makes relayd ask, and may do so often."""
        if self.said.get(worker.name) != text:
            self.said[worker.name] = text
            self.say(text)

    async def look_at(self, workers: Iterable[Worker]) -> None:
        """Ask those of `workers` that were not reached last time, at most once a second."""
        now_s = time.monotonic()
        if now_s - self.looked_s >= LOOK_EVERY_S:
            self.looked_s = now_s
            await asyncio.gather(*(self.ask(worker) for worker in workers if not worker.up))

    def ask_missing(self) -> None:
        """Ask the workers that have not told, since a client wants to know; its successor will."""
        if any(worker.models is None for worker in self.fleet.workers) and self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._ask_missing())

    async def _ask_missing(self) -> None:
        try:
            await asyncio.gather(*(self.ask(one) for one in self.fleet.workers if one.models is None))
        finally:
            self.task = None

    def close(self) -> None:
        """Stop asking."""
        if self.task is not None:
            self.task.cancel()
