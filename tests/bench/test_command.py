"""`python -m bench` as its user meets it."""

import json
import subprocess
import sys

import pytest

from bench.toolchain import ROOT

SMALL = ["--rounds=1", "--seconds=0.1", "--quick", "--connections=4", "--streams=4", "--held=20"]


def run(*arguments):
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_one_run_measures_a_proxy_beside_no_proxy(programs):
    done = run("--only", "aiohttp", "--rows", "cpu,streams,idle", "--json", "-", *SMALL)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failed"] == []
    assert found["missing"] == {}
    for key, figure in found["figures"].items():
        is_part = key in ("decision_us", "bookkeeping_us")  # only a relayd can tell
        assert (figure["medians"]["aiohttp"] is None) is is_part, key


def test_a_running_gateway_is_measured_as_a_target(programs, upstream):
    done = run("--target", upstream.address.url, "--pid", str(upstream.child.pid), "--rows", "cpu", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "CPU us/request, 4 connections" in done.stdout


MISTAKES = [
    # what, arguments, exit code, what is said
    ("no such gateway", ["--only", "apache"], 2, "--only names 'apache'"),
    ("no such row", ["--rows", "cpu,disk"], 2, "--rows names 'disk'"),
    ("no rounds", ["--rounds", "0"], 2, "--rounds is 0"),
    ("a target that is not there", ["--target", "http://127.0.0.1:1"], 1, "nothing that speaks HTTP"),
    ("no such process", ["--target", "http://127.0.0.1:1", "--pid", "999999999"], 2, "no process"),
    ("nowhere to write", ["--json", "/nonexistent/file"], 2, "cannot be written"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "text"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_mistake_is_explained(programs, arguments, code, text):
    done = run(*arguments)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_explained(programs, upstream):
    done = run("upstream", "--listen", upstream.address.authority)
    assert done.returncode == 75
    assert "Address already in use" in done.stderr
