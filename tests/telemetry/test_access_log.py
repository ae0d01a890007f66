"""The access log writes what it can and never makes a request wait."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayd.readers import SettingError
from relayd.telemetry import access_log
from relayd.telemetry.access_log import (
    TEXT_AT_MOST,
    AccessLog,
    Line,
    LineTokens,
    LogSink,
    open_log,
    open_sink,
    plain,
)
from tests.support.waiting import eventually

TOKENS = LineTokens(1, None, 0, None, None, False)


def line(**changes: object) -> Line:
    """Return a line about an exchange that went well."""
    usual = Line(
        1700000000.25, "req-1", "10.1.2.3", "acme", "gold", "chat", "m", "w0", 200, "ok", "", True, 0, 12.5,
        None, 340, TOKENS,
    )  # fmt: skip
    return msgspec.structs.replace(usual, **changes)


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


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Write without waiting for more lines."""
    monkeypatch.setattr(access_log, "GATHER_S", 0.0)


def drain(end: int, seen: list[bytes]) -> None:
    """Read until the other end is closed."""
    while data := os.read(end, 65536):
        seen.append(data)


def fill(end: int) -> None:
    """Write until a pipe takes no more."""
    os.set_blocking(end, False)
    try:
        while True:
            os.write(end, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(end, True)


def written(log: AccessLog) -> None:
    """Wait until nothing is left to write."""
    eventually(lambda: not any(sink.queue for sink in log.sinks), what="empty queues")


def test_a_line_has_these_fields(pipe):
    log = AccessLog([LogSink("stdout", pipe[1])])
    log.write(line())
    log.close()
    text = os.read(pipe[0], 65536)
    assert text.endswith(b"}\n")
    assert json.loads(text) == {
        "time": 1700000000.25, "request_id": "req-1", "client": "10.1.2.3", "tenant": "acme", "tier": "gold",
        "route": "chat", "model": "m", "worker": "w0", "code": 200, "outcome": "ok", "fault": "",
        "stream": True, "retries": 0, "duration_ms": 12.5, "ttft_ms": None, "bytes": 340,
        "tokens": {
            "input": 1, "output": None, "cached_input": 0, "cache_write": None, "reasoning": None,
            "estimated": False,
        },
    }  # fmt: skip


def test_lines_keep_their_order(pipe):
    log = AccessLog([LogSink("stdout", pipe[1])])
    seen: list[bytes] = []
    reader = threading.Thread(target=drain, args=(pipe[0], seen), daemon=True)
    reader.start()
    for number in range(2000):
        log.write(line(bytes=number))
    log.close()
    os.close(pipe[1])
    reader.join(10)
    assert [json.loads(text)["bytes"] for text in b"".join(seen).splitlines()] == list(range(2000))
    assert log.dropped() == {"stdout": 0}


def test_a_reader_that_does_not_read_costs_lines_and_nothing_else(pipe):
    sink = LogSink("stdout", pipe[1], room=100)
    log = AccessLog([sink])
    sent = 0
    while sink.dropped < 50:
        log.write(line(model="y" * 200))  # returns at once, whatever the pipe does
        sent += 1
        assert len(sink.queue) <= 100
    seen: list[bytes] = []
    reader = threading.Thread(target=drain, args=(pipe[0], seen), daemon=True)
    reader.start()
    log.close()
    os.close(pipe[1])
    reader.join(10)
    assert b"".join(seen).count(b"\n") + sink.dropped == sent, "every line was written, or counted as dropped"


def test_a_sink_that_is_stuck_keeps_neither_the_other_nor_the_end_waiting(pipe, tmp_path, monkeypatch):
    monkeypatch.setattr(access_log, "CLOSE_AT_MOST_S", 0.05)
    fill(pipe[1])
    stuck = LogSink("stdout", pipe[1], room=10)
    log = AccessLog([stuck, open_sink(f"file:{tmp_path}/log")])
    for _ in range(100):
        log.write(line())
    assert stuck.dropped >= 100 - 2 * stuck.room, "what its thread holds, and as much in its queue, may wait"
    waiting = len(stuck.queue)
    before = stuck.dropped
    log.close()
    assert (tmp_path / "log").read_bytes().count(b"\n") == 100
    assert log.dropped()[f"file:{tmp_path}/log"] == 0
    assert stuck.dropped == before + waiting, "what waits in a queue that nobody empties is lost too"


def test_a_reader_that_has_gone_is_counted(pipe):
    os.close(pipe[0])
    log = AccessLog([LogSink("stdout", pipe[1])])
    for _ in range(5):
        log.write(line())
    eventually(lambda: log.dropped() == {"stdout": 5}, what="5 lines dropped")
    log.write(line())
    log.close()
    assert log.dropped() == {"stdout": 6}


def test_a_full_disk_is_counted_and_said_once(tmp_path, caplog):
    log = open_log(["file:/dev/full", f"file:{tmp_path}/log"])
    for number in range(1, 4):
        log.write(line())
        eventually(lambda: log.dropped()["file:/dev/full"] == number, what=f"{number} lines dropped")  # noqa: B023
    log.close()
    assert log.dropped() == {"file:/dev/full": 3, f"file:{tmp_path}/log": 0}
    assert (tmp_path / "log").read_bytes().count(b"\n") == 3
    said = [record.message for record in caplog.records if "/dev/full" in record.message]
    assert said == ["log.sinks: file:/dev/full cannot be written: No space left on device"]


LIMITED = """
import resource, sys, time
from relayd.telemetry.access_log import open_log
from tests.telemetry.test_access_log import line, written
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
log = open_log(["file:" + sys.argv[1]])
for number in range(5):
    log.write(line(bytes=number))
written(log)
while not log.dropped()["file:" + sys.argv[1]]:
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for number in range(5, 8):
    log.write(line(bytes=number))
log.close()
print(log.dropped()["file:" + sys.argv[1]])
"""


def test_a_line_that_was_cut_off_does_not_swallow_the_next(tmp_path):
    """The disk is full in the middle of a line, and has room again later."""
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "log")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    whole = []
    for text in (tmp_path / "log").read_text().splitlines():
        try:
            whole.append(json.loads(text)["bytes"])
        except ValueError:
            continue
    assert whole[-3:] == [5, 6, 7]
    assert len(whole) + int(run.stdout) == 8


def test_a_pipe_that_does_not_block_is_waited_for(pipe):
    os.set_blocking(pipe[1], False)
    log = AccessLog([LogSink("stdout", pipe[1])])
    for _ in range(1000):
        log.write(line())  # more than a pipe holds
    seen: list[bytes] = []
    reader = threading.Thread(target=drain, args=(pipe[0], seen), daemon=True)
    reader.start()
    log.close()
    os.close(pipe[1])
    reader.join(10)
    assert b"".join(seen).count(b"\n") == 1000


# --- files --------------------------------------------------------------------------------------------


def test_a_file_is_appended_to_and_not_for_everybody(tmp_path):
    path = tmp_path / "log"
    for _ in range(2):
        log = open_log([f"file:{path}"])
        log.write(line())
        log.close()
    assert path.read_bytes().count(b"\n") == 2
    assert stat.S_IMODE(path.stat().st_mode) & 0o137 == 0


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path):
    path = tmp_path / "log"
    log = open_log([f"file:{path}"])
    for number in range(3):
        log.write(line(bytes=number))
        path_of_turn = path.rename(tmp_path / f"log.{number}")
        log.reopen()
        eventually(path.exists, what="a new file")
        assert json.loads(path_of_turn.read_text())["bytes"] == number, (
            "what was told before went to the old one"
        )
    log.write(line(bytes=9))
    log.close()
    assert json.loads(path.read_text())["bytes"] == 9


def test_a_file_that_cannot_be_opened_anew_is_kept_and_tried_again(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = open_log([f"file:{folder}/log"])
    moved = folder.rename(tmp_path / "moved")
    log.reopen()
    log.write(line(bytes=1))
    eventually(lambda: (moved / "log").read_bytes(), what="a line in the old file")
    assert "No such file or directory" in caplog.text
    folder.mkdir()
    log.reopen()
    log.write(line(bytes=2))
    log.close()
    assert json.loads((folder / "log").read_text())["bytes"] == 2
    assert (moved / "log").read_text().count("\n") == 1
    assert log.dropped() == {f"file:{folder}/log": 0}


def test_stdout_is_not_opened_anew(pipe):
    log = AccessLog([LogSink("stdout", pipe[1])])
    log.reopen()
    log.write(line())
    log.close()
    assert os.read(pipe[0], 65536).count(b"\n") == 1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/nowhere/at/all", "No such file or directory"),
        ("/", "Is a directory"),
        ("/dev/null/x", "Not a directory"),
        ("a\0b", "null byte"),
    ],
)
def test_a_file_that_cannot_be_opened_is_a_setting_to_mend(path, says):
    with pytest.raises(SettingError, match=says) as error:
        open_log([f"file:{path}"])
    assert "log.sinks: file:" in str(error.value)
    assert "append to" in str(error.value)


def test_a_named_pipe_that_nobody_reads_is_an_error_and_not_a_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingError):
        open_log([f"file:{tmp_path}/pipe"])


def test_a_closed_stdout_is_a_setting_to_mend(monkeypatch):
    monkeypatch.setattr(sys, "__stdout__", None)
    with pytest.raises(SettingError, match="stdout is closed"):
        open_log(["stdout"])


def test_a_sink_that_is_named_twice_is_one(tmp_path):
    log = open_log([f"file:{tmp_path}/log"] * 2)
    log.write(line())
    log.close()
    assert (tmp_path / "log").read_bytes().count(b"\n") == 1


# --- what a line cannot hold --------------------------------------------------------------------------

NASTY = ["a\nb", "\r\n", "\x1b[31m", "\x9b1m", "\x00", "\u2028", "\u202e", "\ud800", "\x7f", "\ue000"]


@pytest.mark.parametrize("text", NASTY)
def test_what_a_terminal_would_obey_is_written_out(text):
    assert plain(text).isprintable()
    assert "\\u" in plain(text)


@given(st.text(st.characters(), max_size=600))
def test_any_text_stays_short_and_on_its_line(text):
    shown = plain(text)
    assert shown.isprintable()
    assert len(shown) <= TEXT_AT_MOST * 7
    encoded = msgspec.json.Encoder().encode_lines([line(model=shown)])
    assert encoded.count(b"\n") == 1
    assert len(encoded.decode().splitlines()) == 1
    if text.isprintable():
        assert shown == text[:TEXT_AT_MOST]


@pytest.mark.parametrize("field", ["worker", "client", "route"])
def test_a_text_that_cannot_be_encoded_is_written_out_too(pipe, field):
    log = AccessLog([LogSink("stdout", pipe[1])])
    log.write(line(**{field: "a\udc80b"}))
    log.close()
    assert json.loads(os.read(pipe[0], 65536))[field] == "a\\udc80b"


# --- ends ---------------------------------------------------------------------------------------------


def test_what_is_left_is_written_at_the_end(pipe, monkeypatch):
    monkeypatch.setattr(access_log, "GATHER_S", 60.0)
    log = AccessLog([LogSink("stdout", pipe[1])])
    log.write(line())
    started = time.monotonic()
    log.close()
    assert time.monotonic() - started < 30, "it does not wait for more lines"
    assert os.read(pipe[0], 65536).count(b"\n") == 1


def test_closing_an_empty_log_does_nothing(pipe, tmp_path):
    AccessLog([LogSink("stdout", pipe[1])]).close()
    open_log([f"file:{tmp_path}/log"]).close()
    assert (tmp_path / "log").read_bytes() == b""


def test_the_thread_that_writes_cannot_keep_the_process_alive(pipe):
    log = AccessLog([LogSink("stdout", pipe[1])])
    assert log.sinks[0].thread is None, "no thread before the first line: a process may still fork"
    log.write(line())
    assert log.sinks[0].thread.daemon
    log.close()
    assert not log.sinks[0].thread.is_alive()
