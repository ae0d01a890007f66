"""Bytes that leave a few at a time: the fault `drip`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relayd.mock.connection import Connection

BEAT_S = 0.02  # between two writes, unless a byte takes longer
FULL_BYTES = 64 * 1024  # then the answer waits


class Drip:
    """What one answer has still to send, at so many bytes a second."""

    def __init__(self, connection: Connection, bytes_per_s: float) -> None:
        self._connection = connection
        self._beat_s = max(BEAT_S, 1 / bytes_per_s)
        self._size = max(1, round(bytes_per_s * self._beat_s))
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._then: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self._buffer) > FULL_BYTES

    def add(self, data: bytes) -> None:
        self._buffer += data
        if self._timer is None:
            self._beat()

    def when_empty(self, then: Callable[[], None]) -> None:
        """Call `then` when all is sent."""
        self._then = then
        if self._timer is None:
            self._finish()

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer:
            self._timer.cancel()
        self._timer = self._then = None
        self._buffer.clear()

    def _beat(self) -> None:
        self._timer = None
        if not self._buffer:
            self._finish()
            return
        connection = self._connection
        if not connection.paused:
            was_full = self.is_full
            connection.transport.write(bytes(self._buffer[: self._size]))
            del self._buffer[: self._size]
            if was_full and not self.is_full and connection.exchange:
                connection.exchange.resume()
        self._timer = connection.server.loop.call_later(self._beat_s, self._beat)

    def _finish(self) -> None:
        then, self._then = self._then, None
        if then:
            then()
