"""One event loop in a thread, for whatever plays a server while a test blocks.

Tests are plain functions that use blocking clients (the SDKs' among them), so the upstreams they
talk through have to live somewhere else.  All of them share this loop; its clock is the test's
clock (`time.monotonic`), so what both sides note can be compared.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CALL_LIMIT_S = 30.0


class Backstage:
    """The loop and its thread; started by the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return what it returns.  Blocks the calling thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_LIMIT_S)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="backstage", daemon=True).start()
            return self._loop


BACKSTAGE = Backstage()
