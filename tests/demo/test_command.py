"""`relayd demo` as its user meets it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.gateway import run_relayd
from tests.support.waiting import eventually

START_S = 30.0
WORKERS = {"a100-0", "a100-1", "t4-0"}


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "relayd", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children_of(pid):
    """Return the ids of the running processes that `pid` started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended since
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_have_ended(pids):
    return not any(is_running(pid) for pid in pids)


@pytest.fixture
def serving():
    """A fleet that was left running: the process, and what it says of itself."""
    process = start("--serve", "--json")
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        text = next(lines, "")
        while text.strip() and not text.endswith("\n}\n"):
            text += next(lines, "")
        assert text, process.stderr.read()
        yield process, json.loads(text)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def test_what_relayd_promises_holds():
    done = run_relayd("demo", "--seconds", "3", "--rate", "12", "--json", within_s=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert found["held"] is True
    assert found["broken"] == []
    assert set(found["runs"]) == {"least_tokens", "round_robin"}
    for run in found["runs"].values():
        assert run["failed_before_first_token"] == run["cut_silently"] == run["unfinished"] == 0
        assert run["sent"] == run["answered"] + run["cut"] > 0
        assert run["cut"] <= run["open_on_killed_worker"]
        assert run["share_after"]["a100-1"] == 0
        assert set(run["share_before"]) == WORKERS
        for figure in ("ttft", "latency", "overhead", "decision"):
            assert 0 < run[figure]["p50"] <= run[figure]["p99"]
    assert "kill -9 a100-1" in done.stderr


def answer_to(line):
    """Return the answer to a curl line of the demo's, asked without curl."""
    program, option, url, *rest = shlex.split(line)
    assert (program, option) == ("curl", "-N")
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    name, value = given.pop("-H").split(": ")
    question = urllib.request.Request(url, given.pop("-d").encode(), {name: value})
    assert not given, "an option that is not known here"
    with urllib.request.urlopen(question, timeout=30) as answer:
        return answer.read().decode()


def test_the_curl_line_streams_an_answer(serving):
    _, place = serving
    said = [answer_to(place["curl"])]
    if shutil.which("curl") is not None:
        said.append(subprocess.check_output(["sh", "-c", place["curl"]], text=True, timeout=30))
    for text in said:
        assert text.count("data: {") > 2
        assert text.endswith("data: [DONE]\n\n")


def test_a_worker_may_be_killed_by_hand(serving):
    process, place = serving
    os.kill(place["workers"]["a100-1"]["pid"], signal.SIGKILL)
    assert process.stderr is not None
    assert "a100-1 has ended; 2 of 3 workers are left" in process.stderr.readline()
    for _ in range(4):
        assert answer_to(place["curl"]).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_of_a_fleet(serving, number):
    process, place = serving
    pids = [place["pid"], *(worker["pid"] for worker in place["workers"].values())]
    assert sorted(pids) == sorted(children_of(process.pid))
    process.send_signal(number)
    code = process.wait(20)
    assert code == (-number if number == signal.SIGKILL else 0)
    eventually(lambda: all_have_ended(pids), 10)


def test_a_relayd_that_ends_ends_the_demo(serving):
    process, place = serving
    os.kill(place["pid"], signal.SIGKILL)
    assert process.wait(20) == 1
    assert process.stderr is not None
    assert process.stderr.read() == "relayd demo: relayd has ended (killed by signal 9)\n"
    eventually(lambda: all_have_ended([worker["pid"] for worker in place["workers"].values()]), 10)


def test_ctrl_c_in_mid_run_leaves_no_children():
    process = start("--seconds", "20", "--json")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if ": sent " in line:
                break
        children = children_of(process.pid)
        assert len(children) == 4
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out) == (128 + signal.SIGINT, "")
    assert err.endswith("relayd demo: stopped, and everything it had started\n")
    assert "Traceback" not in err
    eventually(lambda: all_have_ended(children), 10)


def test_a_worker_that_dies_by_itself_is_named():
    process = start("--seconds", "20", "--json")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if ": sent " in line:
                break
        children = children_of(process.pid)
        os.kill(min(children), signal.SIGKILL)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "relayd demo: a100-0 ended in the middle of the run (killed by signal 9)\n" in err
    eventually(lambda: all_have_ended(children), 10)


MISTAKES = [
    # what, arguments, exit code, what is said
    ("no time", ["--seconds", "0"], 2, "'0' is not a number from 1 to 600"),
    ("no rate", ["--rate", "fast"], 2, "'fast' is not a number from 0.1 to 500"),
    ("not a number", ["--rate", "nan"], 2, "'nan' is not a number"),
    ("no seed", ["--seed", "-1"], 2, "'-1' is not a whole number"),
    ("no request", ["--seconds", "1", "--rate", "0.1"], 1, "relayd demo: not one request falls into 1 s"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "text"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_mistake_is_explained(arguments, code, text):
    done = run_relayd("demo", *arguments)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
