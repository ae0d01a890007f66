"""One JSON line a request, to stdout or a file, without ever making a request wait.

A line is encoded once, on the loop's thread, and put into the queue of every sink.  Each sink has a thread of
its own that writes what has gathered, so that one which is stuck, full or gone keeps neither requests nor the
other sinks waiting: its queue fills up, and what finds no room is dropped and counted.  Compiled, with the
types of access_log.pxd.

No credential, query, body or prompt is ever in a line: a Line has no place for one.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from relayd.readers import SettingError

log = logging.getLogger("relayd")

LINES_AT_MOST = 20_000  # in a sink's queue
TEXT_AT_MOST = 256  # characters of what a client chose
GATHER_S = 0.1  # a thread that was woken waits for more lines
CLOSE_AT_MOST_S = 1.0
FILE_MODE = 0o640
FILE = "file:"

REOPEN = b""
CLOSE = b"\n"


class LineTokens(msgspec.Struct, gc=False):
    """What an exchange cost; None where nobody knows."""

    input: int | None
    output: int | None
    cached_input: int | None
    cache_write: int | None
    reasoning: int | None
    estimated: bool


class Line(msgspec.Struct, gc=False):
    """What is told of an exchange."""

    time: float  # when it ended, seconds since 1970
    request_id: str
    client: str
    tenant: str
    tier: str
    route: str
    model: str
    worker: str
    code: int
    outcome: str
    fault: str
    stream: bool
    retries: int
    duration_ms: float
    ttft_ms: float | None
    bytes: int
    tokens: LineTokens


TEXTS = tuple(name for name, kind in Line.__annotations__.items() if kind == "str")


class LogSink:
    """Where lines go.  `add`, `reopen` and the counts are the loop's; `_run` is the thread's.

    A marker in the queue stands for what is to be done between two lines.
    """

    def __init__(self, name: str, descriptor: int, path: str = "", room: int = LINES_AT_MOST) -> None:
        self.name = name
        self.path = path  # "" for what is not a file of ours
        self.descriptor = descriptor
        self.room = room  # lines that the queue has room for
        self.queue: deque[bytes] = deque()
        self.no_room = 0  # lines dropped by the loop's thread
        self.unwritten = 0  # ... and by the sink's own
        self.torn = False  # the last thing written was the beginning of a line
        self.failing = False
        self.awake = False  # the thread will look at the queue
        self.wake = threading.Event()
        self.hurry = threading.Event()
        self.thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Lines that were not written."""
        return self.no_room + self.unwritten

    def add(self, line: bytes) -> None:
        """Take a line, or drop it."""
        if len(self.queue) >= self.room:
            self.no_room += 1
            return
        self.queue.append(line)
        if not self.awake:
            self._wake()

    def reopen(self) -> None:
        """Open the file anew, behind the lines that are waiting: it may have been moved away."""
        if self.path:
            self.queue.append(REOPEN)
            self.hurry.set()
            self._wake()

    def begin_close(self) -> None:
        """Write what is waiting, and end."""
        self.queue.append(CLOSE)
        self.hurry.set()
        self._wake()

    def end_close(self, deadline: float) -> None:
        """Wait for that until `deadline` (monotonic seconds); what is left then counts as dropped."""
        if self.thread is not None:
            self.thread.join(max(0.0, deadline - time.monotonic()))
            if self.thread.is_alive():
                self.no_room += len([line for line in tuple(self.queue) if line not in (REOPEN, CLOSE)])

    def _wake(self) -> None:
        self.awake = True
        self.wake.set()
        if self.thread is None:
            # A daemon: a pipe that nobody reads must not keep relayd from stopping.
            self.thread = threading.Thread(target=self._run, name=f"log {self.name}", daemon=True)
            self.thread.start()

    # -- the thread

    def _run(self) -> None:
        while True:
            self.wake.wait()
            self.hurry.wait(GATHER_S)
            self.hurry.clear()
            self.wake.clear()
            self.awake = False
            if not self._write_queue():
                break
        if self.path:
            os.close(self.descriptor)

    def _write_queue(self) -> bool:
        """Write the lines that are waiting; return False when it is time to end."""
        lines = []
        for _ in range(len(self.queue)):
            line = self.queue.popleft()
            if line not in (REOPEN, CLOSE):
                lines.append(line)
                continue
            self._write(lines)
            lines = []
            if line == CLOSE:
                return False
            self._open_anew()
        self._write(lines)
        return True

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        # A line that was cut off when the disk was full must not swallow the next one.
        view = memoryview(b"\n" * self.torn + b"".join(lines))
        try:
            while view:
                written = self._write_some(view)
                self.torn = view[written - 1] != ord("\n")
                view = view[written:]
            self.failing = False
        except OSError as error:
            self.unwritten += min(len(lines), bytes(view).count(b"\n"))
            self._tell(error)

    def _write_some(self, view: memoryview) -> int:
        while True:
            try:
                return os.write(self.descriptor, view)
            except BlockingIOError:
                poll = select.poll()
                poll.register(self.descriptor, select.POLLOUT)
                poll.poll(1000)

    def _open_anew(self) -> None:
        try:
            opened = open_file(self.path)
        except OSError as error:
            self._tell(error)  # the old file is better than none
            return
        os.close(self.descriptor)
        self.descriptor = opened
        self.torn = self.failing = False

    def _tell(self, error: OSError) -> None:
        """Say once that lines are being lost, not once a line."""
        if not self.failing:
            log.warning("log.sinks: %s cannot be written: %s", self.name, error.strerror or error)
        self.failing = True


class AccessLog:
    """Lines, and where they go."""

    def __init__(self, sinks: Sequence[LogSink]) -> None:
        self.sinks = list(sinks)
        self.encode = msgspec.json.Encoder().encode_lines  # cheaper than encode() and an added newline

    def write(self, line: Line) -> None:
        """Add a line; called on the loop's thread, for every request."""
        try:
            data = self.encode((line,))
        except UnicodeEncodeError:
            data = self.encode((cleaned(line),))
        for sink in self.sinks:
            sink.add(data)

    def reopen(self) -> None:
        """Open the files anew: they have been moved away."""
        for sink in self.sinks:
            sink.reopen()

    def dropped(self) -> dict[str, int]:
        """Return how many lines each sink has lost."""
        return {sink.name: sink.dropped for sink in self.sinks}

    def close(self) -> None:
        """Write what is left, as far as it is taken within a second."""
        deadline = time.monotonic() + CLOSE_AT_MOST_S
        for sink in self.sinks:
            sink.begin_close()
        for sink in self.sinks:
            sink.end_close(deadline)


def open_log(names: Sequence[str]) -> AccessLog:
    """Return a log that writes to the sinks of these names: `stdout`, `file:PATH`.

    Raises:
        SettingError: one of them cannot be opened.
    """
    return AccessLog([open_sink(name) for name in dict.fromkeys(names)])


def open_sink(name: str) -> LogSink:
    """Return the sink of that name.

    Raises:
        SettingError: it cannot be opened.
    """
    if name == "stdout":
        if sys.__stdout__ is None:
            raise SettingError("log.sinks: stdout is closed; open it, or name a file:PATH")
        return LogSink(name, sys.__stdout__.fileno())
    path = name.removeprefix(FILE)
    try:
        return LogSink(name, open_file(path), path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(
            f"log.sinks: {name} cannot be opened: {reason}; name a file that relayd may append to"
        ) from None


def open_file(path: str) -> int:
    """Return a descriptor that appends to `path`.  A pipe that nobody reads is an error, not a wait."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    return os.open(path, flags, FILE_MODE)


def plain(text: str) -> str:
    """Return what a client chose as it may stand in a line: short, and nothing that a terminal obeys."""
    if len(text) > TEXT_AT_MOST:
        text = text[:TEXT_AT_MOST]
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else f"\\u{ord(one):04x}" for one in text])


def cleaned(line: Line) -> Line:
    """Return a line whose texts can all be encoded."""
    return msgspec.structs.replace(line, **{name: plain(getattr(line, name)) for name in TEXTS})
