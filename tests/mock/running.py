"""A mock that runs in a thread of its own, and a client that shows the raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvloop

from relayd.mock import MockServer, Settings

PATIENCE_S = 10.0

FAST: dict[str, Any] = {"ttft_s": 0.0, "itl_s": 0.0, "output_tokens": (5, 5), "seed": 1}


class Running:
    """A server in another thread; look at its state through `do` if it may be changing."""

    def __init__(self, settings: Settings, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.server = MockServer(settings)
        self._loop = make_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with self.server:
            self._ready.set()
            await self._stop.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S), "the mock did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the mock did not stop"

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return self.server.port

    def do(self, what: Callable[[MockServer], Any]) -> Any:
        """Run `what` in the server's thread and return what it returns."""

        async def run() -> Any:
            return what(self.server)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def until(self, what: Callable[[MockServer], Any]) -> Any:
        """Wait until `what` is true of the server, and return it."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            found = self.do(what)
            if found:
                return found
            assert time.monotonic() < give_up_at, "it never came true"
            time.sleep(0.005)

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)


@contextlib.contextmanager
def running(
    make_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop, **settings: Any
) -> Iterator[Running]:
    """A server with these settings, by default one that takes no time."""
    mock = Running(Settings(**{**FAST, **settings}), make_loop)
    mock.start()
    try:
        yield mock
    finally:
        mock.stop()


def request(
    path: str, body: object = None, *, method: str = "", headers: str = "", raw: bytes | None = None
) -> bytes:
    """Return a request; `headers` are whole lines."""
    data = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
    verb = method or ("GET" if body is None and raw is None else "POST")
    head = f"{verb} {path} HTTP/1.1\r\nhost: mock\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


class Answer:
    """One answer, read from a socket."""

    def __init__(self, head: bytes, body: bytes, complete: bool) -> None:
        self.head = head.decode("latin-1")
        self.body = body
        self.complete = complete  # it ended where its framing says
        self.status = int(self.head.split(" ", 2)[1])

    def header(self, name: str) -> str | None:
        found = re.search(rf"(?im)^{re.escape(name)}:[ \t]*(.*?)\r?$", self.head)
        return found[1] if found else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of every whole event."""
        blocks = self.body.decode().split("\n\n")
        return [re.sub(r"(?m)^(event: .*\n|data: )", "", block) for block in blocks[:-1]]

    @property
    def kinds(self) -> list[str]:
        """What each event is, in a word."""
        return [_kind(data) for data in self.events]


def _kind(data: str) -> str:
    if data == "[DONE]":
        return "[DONE]"
    event = json.loads(data)
    if "error" in event and event.get("type") in (None, "error"):
        return "error"
    if "type" in event:
        return str(event["type"])
    if not event["choices"]:
        return "usage"
    choice = event["choices"][0]
    what = "text" if "text" in choice else _delta(choice["delta"])
    return f"{what}+{choice['finish_reason']}" if choice["finish_reason"] else what


def _delta(delta: dict[str, Any]) -> str:
    if "role" in delta:
        return "role"
    if "tool_calls" in delta:
        return "call" if "id" in delta["tool_calls"][0] else "arguments"
    return "content" if delta.get("content") else "empty"


def read_answer(sock: socket.socket, rest: bytes = b"") -> tuple[Answer | None, bytes]:
    """Read one answer; return it and the bytes after it.  None: the connection ended before its head did."""
    data = rest
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return None, data
        data += more
    head, data = data.split(b"\r\n\r\n", 1)
    if length := re.search(rb"(?i)content-length: (\d+)", head):
        return _read_length(sock, head, data, int(length[1]))
    if re.search(rb"(?i)transfer-encoding: chunked", head):
        return _read_chunks(sock, head, data)
    while more := sock.recv(65536):
        data += more
    return Answer(head, data, True), b""


def _read_length(sock: socket.socket, head: bytes, data: bytes, length: int) -> tuple[Answer, bytes]:
    while len(data) < length:
        more = sock.recv(65536)
        if not more:
            return Answer(head, data, False), b""
        data += more
    return Answer(head, data[:length], True), data[length:]


def _read_chunks(sock: socket.socket, head: bytes, data: bytes) -> tuple[Answer, bytes]:
    body = b""
    while True:
        while (match := re.match(rb"([0-9a-f]+)\r\n", data)) is None or len(data) < match.end() + int(
            match[1], 16
        ) + 2:
            try:
                more = sock.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                return Answer(head, body, False), data
            data += more
        size = int(match[1], 16)
        body += data[match.end() : match.end() + size]
        data = data[match.end() + size + 2 :]
        if size == 0:
            return Answer(head, body, True), data


def ask(mock: Running, path: str, body: object = None, **more: Any) -> Answer:
    """Send one request on a connection of its own and return the answer."""
    with mock.connect() as sock:
        sock.sendall(request(path, body, **more))
        answer, _ = read_answer(sock)
    assert answer is not None, "no answer"
    return answer


def chat(**more: Any) -> dict[str, Any]:
    """Return a body for the chat route."""
    return {"model": "mock", "messages": [{"role": "user", "content": "hello"}], **more}


def message(**more: Any) -> dict[str, Any]:
    """Return a body for the Messages route."""
    return {"model": "mock", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}], **more}
