"""`relayd check` and `relayd serve --config`, as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from relayd.__main__ import main
from relayd.settings_file.schema import schema
from tests.support.gateway import READY, run_relayd
from tests.support.program import Program
from tests.support.upstream import Upstream

GOOD = "workers: {w: {url: 'http://127.0.0.1:1'}}\n"
BAD = "workers:\n  w: {url: 'http://h', key: 'sk-planted'}\nmax_body: 3mb\ndrain_timeout: off\n"


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a settings file and returns its path."""

    def write(content: str) -> str:
        path = tmp_path / "relayd.yaml"
        path.write_text(content)
        path.chmod(0o600)
        return str(path)

    return write


def test_a_good_file(file):
    path = file(GOOD)
    done = run_relayd("check", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}: ok\n", "")


def test_a_bad_file_is_shown_with_its_lines_and_no_secret(file):
    path = file(BAD)
    done = run_relayd("check", path)
    assert done.returncode == 1
    assert done.stderr == ""
    assert (
        done.stdout
        == f"""\
{path}:2:29: warning: workers.w.key: a secret in this file
    2 |   w: {{url: 'http://h', key: ***}}
      |                             ^
        write ${{NAME}} or ${{file:PATH}} here
{path}:3:11: error: max_body: '3mb' is not a size: write a number with KiB, MiB or GiB, such as 32MiB
    3 | max_body: 3mb
      |           ^
{path}:4:16: warning: drain_timeout: a stop takes as long as the longest request
    4 | drain_timeout: off
      |                ^
        write less than what started relayd waits for it: systemd does for 90s unless told otherwise
{path}: 1 error, 2 warnings
"""
    )


def test_warnings_alone_are_no_failure(file):
    done = run_relayd("check", file(GOOD + "drain_timeout: off\n"))
    assert done.returncode == 0
    assert done.stdout.endswith(": ok, 1 warning\n")


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_prints_errors_only(file, option, capsys):
    path = file(BAD)
    assert main(["check", option, path]) == 1
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert said.startswith(f"{path}:3:11: error: max_body: ")
    assert main(["check", option, file(GOOD + "drain_timeout: off\n")]) == 0
    assert capsys.readouterr().out == ""


def test_json_is_one_object(file):
    path = file(BAD)
    done = run_relayd("check", "--json", path)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said["ok"] is False
    assert [(row["severity"], row["line"], row["column"], row["path"]) for row in said["problems"]] == [
        ("warning", 2, 29, "workers.w.key"),
        ("error", 3, 11, "max_body"),
        ("warning", 4, 16, "drain_timeout"),
    ]
    for row in said["problems"]:
        assert list(row) == ["file", "severity", "line", "column", "path", "message", "hint"]
        assert row["file"] == path
    assert "sk-planted" not in done.stdout


def test_json_of_a_good_file(file, capsys):
    assert main(["check", "--json", file(GOOD)]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "problems": []}


def test_the_schema_is_printed(capsys):
    assert main(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["check", str(tmp_path / "gone.yaml")]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path}/gone.yaml: error: there is no such file\n")
    assert said.endswith("gone.yaml: 1 error\n")


def test_a_question_without_a_file(capsys):
    assert main(["check"]) == 2
    assert "relayd check FILE" in capsys.readouterr().err


def test_two_ways_to_answer_are_one_too_many(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["check", "--json", "-q", "x"])
    assert caught.value.code == 2


def test_what_cannot_be_printed_is_escaped(file):
    path = file(GOOD + 'policy: "\\e[31m\\u202e"\n"\\e[31m\\ud800": 1\n')
    done = run_relayd("check", path)
    assert done.returncode == 1
    assert done.stdout.replace("\n", "").isprintable()
    assert r"'\x1b[31m\ud800': there is no setting '\x1b[31m\ud800'" in done.stdout
    assert json.loads(run_relayd("check", "--json", path).stdout)["ok"] is False


def test_a_file_whose_name_is_no_text(tmp_path):
    path = os.fsdecode(bytes(tmp_path) + b"/\xff.yaml")
    Path(path).write_text(GOOD)
    assert run_relayd("check", path).stdout.endswith("dcff.yaml: ok\n")
    assert json.loads(run_relayd("check", "--json", path).stdout)["ok"] is True


def test_insecure_judges_as_serve_would(file, capsys):
    path = file(GOOD + "listen: 0.0.0.0:80\ntrusted_proxies: [10.0.0.0/8]\n")
    assert main(["check", path]) == 1
    assert main(["check", "--insecure", path]) == 0
    assert "warning: listen: " in capsys.readouterr().out


# --- serve --config -----------------------------------------------------------------------------------


def test_serves_what_the_file_says(file):
    with Upstream() as upstream:
        path = file(
            f"workers: {{gpu-0: {{url: '{upstream.url}'}}}}\n"
            "listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\ndrain_timeout: off\n"
        )
        with Program(READY, "serve", "--config", path, "--listen", "127.0.0.1:0", "--admin", "off") as relayd:
            with urllib.request.urlopen(f"http://127.0.0.1:{relayd.ready[2]}/echo", timeout=5) as answer:
                assert answer.status == 200
                assert answer.headers["x-relayd-worker"] == "gpu-0"
            assert f"relayd: {path}:4:16: warning: drain_timeout: " in relayd.stderr


def test_does_not_serve_a_file_with_errors(file):
    path = file(BAD + "lisen: x\n")
    done = run_relayd("serve", "--config", path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == f"relayd: the settings in {path} cannot be used:"
    assert [line.split(": ")[0] for line in lines[1:]] == [f"{path}:3:11", f"{path}:5:1"]


@pytest.mark.parametrize(
    "words", [["--config", "x", "--worker", "http://h"], ["--worker", "http://h", "--config", "x"], []]
)
def test_workers_come_from_a_file_or_from_the_command_line(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["serve", *words])
    assert caught.value.code == 2
    assert "--config" in capsys.readouterr().err


def test_a_secret_is_no_argument(file, capsys):
    assert main(["serve", "--config", file(GOOD), "--set", "auth.jwt.secret=planted"]) == 1
    said = capsys.readouterr().err
    assert "auth.jwt.secret: everybody here can see a command's arguments" in said
    assert "planted" not in said


def test_the_pages_name_every_option_of_check():
    page = (Path(__file__).resolve().parents[1] / "docs" / "settings-file.md").read_text()
    for option in ("-q", "--json", "--insecure", "--schema"):
        assert f"`{option}`" in page


def test_a_reader_that_has_seen_enough_is_no_reason_to_complain():
    """`relayd check --schema | head -1`."""
    command = [sys.executable, "-m", "relayd", "check", "--schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as relayd:
        assert relayd.stdout is not None
        assert relayd.stderr is not None
        relayd.stdout.close()
        assert relayd.stderr.read() == b""
    assert relayd.returncode in (0, 141)
