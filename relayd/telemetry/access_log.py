"""One JSON line a request, on stdout, without ever making a request wait.

Lines gather in memory and a thread of their own writes them; when stdout is not read they are dropped and
counted.  No credential, query, body or prompt is ever in a line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

LINES_AT_MOST = 20_000
FLUSH_EVERY_S = 0.1
CLOSE_AT_MOST_S = 1.0


class AccessLog:
    """Writes lines to a file descriptor."""

    def __init__(self, descriptor: int | None = None, on_drop: Callable[[int], None] | None = None) -> None:
        self.descriptor = sys.stdout.fileno() if descriptor is None else descriptor
        self.on_drop = on_drop or (lambda count: None)
        self.lines: list[bytes] = []
        self.encoder = msgspec.json.Encoder()
        self.writing = False
        self.scheduled = False
        self.writer: threading.Thread | None = None

    def write(self, record: dict[str, Any]) -> None:
        """Add a line; called on the loop's thread."""
        if len(self.lines) >= LINES_AT_MOST:
            self.on_drop(1)
            return
        self.lines.append(self.encoder.encode(record) + b"\n")
        if not self.scheduled and not self.writing:
            self.scheduled = True
            asyncio.get_running_loop().call_later(FLUSH_EVERY_S, self._flush)

    def _flush(self) -> None:
        self.scheduled = False
        lines, self.lines = self.lines, []
        self.writing = True
        loop = asyncio.get_running_loop()
        # A thread of its own, and a daemon: a pipe that nobody reads must not keep relayd from stopping.
        self.writer = threading.Thread(target=self._write_out, args=(b"".join(lines), loop), daemon=True)
        self.writer.start()

    def _write_out(self, data: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self._write_all(data)
        try:
            loop.call_soon_threadsafe(self._written)
        except RuntimeError:
            pass  # the loop has stopped

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.descriptor, view) :]
            except OSError:
                self.on_drop(bytes(view).count(b"\n"))
                return

    def _written(self) -> None:
        self.writing = False
        if self.lines:
            self._flush()

    def close(self) -> None:
        """Write what is left, as far as it is taken within a second; count the rest as dropped."""
        if self.writer is not None:
            self.writer.join(CLOSE_AT_MOST_S)
        left, self.lines = self.lines, []
        if left and (self.writer is None or not self.writer.is_alive()):
            self.writer = threading.Thread(target=self._write_all, args=(b"".join(left),), daemon=True)
            self.writer.start()
            self.writer.join(CLOSE_AT_MOST_S)
        elif left:
            self.on_drop(len(left))
