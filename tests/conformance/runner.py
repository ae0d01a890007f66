"""Runs many cases: in a row against one gateway, or shared out among several.

A case owns its gateway while it runs (the recorder has to know whose bytes it sees), so cases run at the
same time only if there are several gateways, each with an upstream of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.conformance.cases import relay_cases, request_cases, response_cases
from tests.conformance.http_requests import RequestRunner
from tests.conformance.http_responses import STREAM_LIMIT, ResponseRunner
from tests.conformance.relay import RelayRunner
from tests.conformance.verdict import Verdict
from tests.support.upstream import Upstream

KINDS = ("requests", "responses", "relay")
CASES = {"requests": request_cases, "responses": response_cases, "relay": relay_cases}


@dataclass(frozen=True)
class Pair:
    """A gateway and the address of its only worker, where nothing listens yet."""

    host: str
    port: int
    upstream_host: str
    upstream_port: int
    admin: str | None = None  # base URL of the admin port, if its metrics are to be checked
    token: str | None = None  # a credential for gateways that want one

    @asynccontextmanager
    async def runner(self, kind: str) -> AsyncIterator[Any]:
        """Play the upstream of `kind` while the context lasts; gives the runner of its cases."""
        if kind == "relay":
            with Upstream(port=self.upstream_port) as upstream:
                yield RelayRunner(self.host, self.port, upstream, self.admin)
            return
        runner = (RequestRunner if kind == "requests" else ResponseRunner)(self.host, self.port, self.token)
        server = await asyncio.start_server(
            runner.serve, self.upstream_host, self.upstream_port, limit=STREAM_LIMIT
        )
        yield runner
        server.close()


async def run_cases(kind: str, cases: Iterable[Any], pairs: Iterable[Pair]) -> AsyncIterator[Verdict]:
    """Run `cases`, as many at a time as there are pairs; yield the verdicts as they come."""
    waiting = list(reversed(list(cases)))
    verdicts: asyncio.Queue[Verdict] = asyncio.Queue()
    total = len(waiting)

    async def work(pair: Pair) -> None:
        async with pair.runner(kind) as runner:
            while waiting:
                await verdicts.put(await runner.run(waiting.pop()))

    workers = [asyncio.create_task(work(pair)) for pair in pairs]
    for _ in range(total):
        yield await _next(verdicts, workers)
    await asyncio.gather(*workers)


async def _next(verdicts: asyncio.Queue[Verdict], workers: list[asyncio.Task[None]]) -> Verdict:
    """Return the next verdict; raise what a worker raised instead of waiting for ever."""
    getting = asyncio.create_task(verdicts.get())
    waiting: set[asyncio.Task[Any]] = {getting, *workers}
    while not getting.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for worker in done - {getting}:
            worker.result()
    return getting.result()
