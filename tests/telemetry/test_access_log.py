"""The access log writes what it can and never makes a request wait."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

from relayd.telemetry import access_log
from relayd.telemetry.access_log import AccessLog


@pytest.fixture
def pipe():
    """Return (read end, write end); what is still open is closed at the end."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


@pytest.fixture
def at_once(monkeypatch):
    """Write without waiting for more lines."""
    monkeypatch.setattr(access_log, "FLUSH_EVERY_S", 0)


async def written(log: AccessLog) -> None:
    """Let turns of the loop pass until nothing is left to write."""
    while log.scheduled or log.writing or log.lines:  # noqa: ASYNC110 (it tells nobody when it is done)
        await asyncio.sleep(0)


def test_each_record_is_one_line_of_json(pipe, at_once):
    records = [{"code": 200, "model": 'a"\n\u2028b'}, {"code": 499, "tokens": {"input": None}}]

    async def run() -> None:
        log = AccessLog(pipe[1])
        for record in records:
            log.write(record)
        await written(log)

    asyncio.run(run())
    text = os.read(pipe[0], 65536)
    assert text.count(b"\n") == 2
    assert [json.loads(line) for line in text.splitlines()] == records


def test_lines_keep_their_order_over_many_flushes(pipe, at_once):
    async def run() -> None:
        log = AccessLog(pipe[1])
        for number in range(200):
            log.write({"n": number})
            if number % 7 == 0:
                await asyncio.sleep(0)
        await written(log)

    asyncio.run(run())
    assert [json.loads(line)["n"] for line in os.read(pipe[0], 65536).splitlines()] == list(range(200))


def test_a_reader_that_does_not_read_costs_lines_and_nothing_else(pipe, at_once, monkeypatch):
    monkeypatch.setattr(access_log, "LINES_AT_MOST", 100)
    dropped = []

    async def run() -> int:
        log = AccessLog(pipe[1], dropped.append)
        sent = 0
        for _ in range(200):
            for _ in range(10):
                log.write({"x": "y" * 1000})  # returns at once, whatever the pipe does
                sent += 1
            await asyncio.sleep(0)
        assert len(log.lines) <= 100
        kept = len(log.lines)
        reader = threading.Thread(target=drain, args=(pipe[0], seen), daemon=True)
        reader.start()
        await written(log)
        os.close(pipe[1])
        reader.join(10)
        assert kept
        return sent

    seen: list[bytes] = []
    sent = asyncio.run(run())
    assert dropped
    assert b"".join(seen).count(b"\n") + sum(dropped) == sent, "every line was written, or counted as dropped"


def drain(end: int, seen: list[bytes]) -> None:
    """Read until the other end is closed."""
    while data := os.read(end, 65536):
        seen.append(data)


def test_a_reader_that_has_gone_is_counted(pipe, at_once):
    dropped = []
    os.close(pipe[0])

    async def run() -> None:
        log = AccessLog(pipe[1], dropped.append)
        for _ in range(5):
            log.write({"x": 1})
        await written(log)
        log.write({"x": 1})
        await written(log)

    asyncio.run(run())
    assert sum(dropped) == 6


def test_what_is_left_is_written_at_the_end(pipe):
    async def run() -> None:
        log = AccessLog(pipe[1])
        log.write({"x": 1})
        log.close()

    asyncio.run(run())
    assert os.read(pipe[0], 100) == b'{"x":1}\n'


def test_closing_an_empty_log_does_nothing(pipe):
    AccessLog(pipe[1]).close()


def test_the_thread_that_writes_cannot_keep_the_process_alive(pipe, at_once, monkeypatch):
    made = []
    thread = threading.Thread

    def watched(*arguments, **options):
        made.append(options.get("daemon"))
        return thread(*arguments, **options)

    monkeypatch.setattr(access_log.threading, "Thread", watched)

    async def run() -> None:
        log = AccessLog(pipe[1])
        log.write({"x": 1})
        await written(log)
        log.write({"x": 2})
        log.close()

    asyncio.run(run())
    assert made
    assert all(made)
