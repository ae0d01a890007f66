"""The processes of the demo: three simulated workers, and a relayd in front of them.

Each is a process of its own, so that one can be killed the hard way.  All are ended by their process id, in
whatever way the demo itself ends; should it be killed, the kernel ends them (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import relayd

START_LIMIT_S = 30.0  # a slow machine that is busy
STOP_LIMIT_S = 3.0
FETCH_LIMIT_S = 10.0
LONGEST_LINE = 1 << 20
KEPT_LINES = 20
PR_SET_PDEATHSIG = 1  # prctl(2)

# Answers as long as people read; the same texts and lengths whichever worker writes them.
MOCK_FLAGS = ("--output-tokens", "24-96", "--listen", "127.0.0.1:0")
READY = re.compile(r"listening on http://([\d.]+):(\d+)(?:.* admin on http://([\d.]+:\d+))?")


class DemoFault(Exception):
    """The demo cannot go on; the message says why and what to do."""


class Place(NamedTuple):
    """One worker of the fleet."""

    name: str
    gpu: str
    speed: str


PLACES = (Place("a100-0", "a100", "fast"), Place("a100-1", "a100", "fast"), Place("t4-0", "t4", "slow"))
VICTIM = "a100-1"


class Child:
    """One process: it says on stderr when it is ready, and is watched until it ends."""

    def __init__(self, name: str, arguments: Sequence[str], on_line: Callable[[str], None] | None) -> None:
        """Start it.  No await between its birth and its being known: nothing can get lost.

        Raises:
            DemoFault: the system does not start it.
        """
        self.name = name
        self.host, self.port, self.admin = "", 0, ""
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.on_line = on_line
        self.is_expected_to_end = False
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "relayd", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": source_path()},
                start_new_session=True,  # Ctrl-C is the demo's: it ends them in its own order
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            raise DemoFault(f"{name} cannot be started: {error.strerror or error}") from None
        self.watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """Read what it says until it ends."""
        reader = asyncio.StreamReader(LONGEST_LINE)
        assert self.process.stderr is not None
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self.process.stderr)
        async for raw in reader:
            self._heard(raw.decode("utf-8", "replace").rstrip())
        self.process.wait()  # its stderr is closed: it has ended, or is about to
        self.ended.set()

    def _heard(self, line: str) -> None:
        found = READY.search(line)
        if found and not self.ready.is_set():
            self.host, self.port, self.admin = found[1], int(found[2]), found[3] or ""
            self.ready.set()
            return
        self.lines.append(line)
        if self.on_line is not None:
            self.on_line(line)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    async def wait_ready(self) -> None:
        """Wait until it listens.

        Raises:
            DemoFault: it ended instead, or took too long.
        """
        waits = [asyncio.ensure_future(event.wait()) for event in (self.ready, self.ended)]
        try:
            await asyncio.wait(waits, timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self.ready.is_set():
            what = "ended at its start" if self.ended.is_set() else f"was not ready in {START_LIMIT_S:.0f} s"
            raise DemoFault(f"{self.name} {what}{self.last_words()}")

    def last_words(self) -> str:
        """Return how it ended and the last line that it wrote, as the end of a sentence."""
        code = self.process.poll()
        how = "" if code is None else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
        return f"{how}: {self.lines[-1]}" if self.lines else how

    def kill(self) -> None:
        """End it without giving it a chance, as a machine that fails would."""
        self.is_expected_to_end = True
        self.process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        """End it, politely at first."""
        self.is_expected_to_end = True
        for number in (signal.SIGINT, signal.SIGKILL):
            self.process.send_signal(number)  # does nothing if it has ended
            try:
                await asyncio.wait_for(self.ended.wait(), STOP_LIMIT_S)
                return
            except TimeoutError:
                continue


class Fleet:
    """Three workers and a relayd that chooses by `policy`; made by `async with`."""

    def __init__(self, policy: str, seed: int, on_line: Callable[[str], None] | None = None) -> None:
        self.policy = policy
        self.seed = seed
        self.on_line = on_line
        self.workers: dict[str, Child] = {}
        self.children: list[Child] = []

    async def __aenter__(self) -> Fleet:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        for place in PLACES:
            flags = ("--gpu", place.gpu, "--seed", str(self.seed), *MOCK_FLAGS)
            self.workers[place.name] = self._child(place.name, "mock", *flags)
        for worker in self.workers.values():
            await worker.wait_ready()
        named = [f"--worker={name}={worker.url}" for name, worker in self.workers.items()]
        free = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        self.relayd = self._child("relayd", "serve", *named, *free, "--set", f"policy={self.policy}")
        await self.relayd.wait_ready()

    def _child(self, name: str, *arguments: str) -> Child:
        child = Child(name, arguments, self.on_line)
        self.children.append(child)
        return child

    async def stop(self) -> None:
        """End every process that is left."""
        await asyncio.gather(*(child.stop() for child in self.children))

    async def wait_ended(self, children: Sequence[Child]) -> Child:
        """Return the first of `children` that ends although nobody asked it to."""
        waits = {asyncio.ensure_future(child.ended.wait()): child for child in children}
        try:
            while True:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in done:
                    child = waits.pop(wait)
                    if not child.is_expected_to_end:
                        return child
        finally:
            for wait in waits:
                wait.cancel()

    async def metrics(self) -> str:
        """Return what relayd's admin port says under /metrics.

        Raises:
            DemoFault: it says nothing.
        """
        try:
            async with asyncio.timeout(FETCH_LIMIT_S):
                return await fetch(self.relayd.admin, "/metrics")
        except OSError as error:  # TimeoutError is one
            raise DemoFault(f"relayd's metrics cannot be read: {error}{self.relayd.last_words()}") from None


async def fetch(address: str, path: str) -> str:
    """Return the text of a page at HOST:PORT.

    Without a thread, since processes are started later on; in HTTP/1.0, so that it ends with the connection.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise OSError(f"it answers {head[:60].decode('latin-1')!r}")
    return body.decode()


def source_path() -> str:
    """Return a PYTHONPATH on which children find this very relayd, wherever the demo was started."""
    here = str(Path(relayd.__file__).parent.parent)
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def end_with_parent() -> None:
    """Have the kernel end this process if the one that started it dies; runs in the child, before exec."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
