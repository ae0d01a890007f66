"""The command, as a person runs it."""

import ast
import pathlib
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

import relayd.mock
from relayd.mock.units import parse_address, parse_duration_s, parse_range

COMMAND = [sys.executable, "-m", "relayd.mock"]
PATIENCE_S = 20


def start(*arguments: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    return process, process.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_when_told(number):
    process, line = start(
        "--listen", "127.0.0.1:0", "--engine", "openai", "--gpu", "t4", "--model", "a", "--model", "b"
    )
    try:
        match = re.fullmatch(
            r"relayd mock: listening on (http://127\.0\.0\.1:\d+) \(engine openai, gpu t4, model a, b\)\n",
            line,
        )
        assert match, line
        with urllib.request.urlopen(f"{match[1]}/v1/models", timeout=PATIENCE_S) as answer:
            assert b'"id":"b"' in answer.read()
    finally:
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def test_a_port_in_use():
    process, line = start("--listen", "127.0.0.1:0")
    try:
        address = re.search(r"http://(\S+)", line)[1]
        second = subprocess.run(
            [*COMMAND, "--listen", address], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert second.returncode == 75
    assert second.stderr == (
        f"relayd: cannot listen on {address}: the address is in use; choose another with --listen HOST:PORT\n"
    )


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--fault", "explode@0.1"], "there is no fault 'explode'"),
        (["--fault", "status=503@7"], "no probability"),
        (["--ttft", "soon"], "no duration"),
        (["--itl", "-1ms"], "--itl"),
        (["--output-tokens", "0"], "no number of tokens"),
        (["--listen", "here"], "no address"),
        (["--max-num-seqs", "none"], "no number of 1 or more"),
        (["--engine", "abacus"], "invalid choice"),
        (["--ping", "0"], "longer than 0"),
    ],
)
def test_a_wrong_flag(arguments, names):
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    assert names in done.stderr
    assert "Traceback" not in done.stderr


def test_units():
    assert [
        parse_duration_s(text) for text in ("0", "50ms", "2s", "1.5m", "0.5", "1h", "20us")
    ] == pytest.approx([0, 0.05, 2, 90, 0.5, 3600, 20e-6])
    assert [parse_range("64"), parse_range("32-256")] == [(64, 64), (32, 256)]
    assert [parse_address(":80"), parse_address("[::1]:0"), parse_address("host:65535")] == [
        ("127.0.0.1", 80), ("::1", 0), ("host", 65535),
    ]  # fmt: skip
    for wrong in ("9-3", "a", "1-2-3"):
        with pytest.raises(ValueError):
            parse_range(wrong)


def test_it_needs_nothing_else_of_relayd():
    room = pathlib.Path(relayd.mock.__file__).parent
    for file in room.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            strangers = [
                name for name in names if name.split(".")[0] == "relayd" and "relayd.mock" not in name
            ]
            assert not strangers, (file.name, strangers)
