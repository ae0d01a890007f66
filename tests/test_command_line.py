"""The command line finds its commands by their files, and answers as other programs do."""

from __future__ import annotations

import importlib

import pytest

from relayd import __version__
from relayd.__main__ import find_commands, main, make_parser


def test_finds_what_the_issue_asks_for():
    assert {"serve", "mock", "version"} <= set(find_commands())


@pytest.mark.parametrize("name", find_commands())
def test_every_command_keeps_to_the_form(name):
    module = importlib.import_module(f"relayd.commands.{name}")
    assert module.HELP
    assert "\n" not in module.HELP
    assert callable(module.add_arguments)
    assert callable(module.run)


@pytest.mark.parametrize("name", find_commands())
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: relayd {name}")


def test_help_lists_all_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for name in find_commands():
        assert name in said


def test_no_command_is_a_question(capsys):
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: relayd" in said.err


@pytest.mark.parametrize(
    "words", [["nonsense"], ["serve"], ["serve", "--nonsense"], ["version", "x"], ["--nonsense"]]
)
def test_a_wrong_word_is_code_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: relayd" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_tells_its_version(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out == f"relayd {__version__}\n"


def test_tells_what_it_runs_on(capsys):
    assert main(["version", "--verbose"]) == 0
    said = capsys.readouterr().out
    for word in ("python 3.", "compiled core ", "aiohttp ", "httptools ", "uvloop "):
        assert word in said


def test_an_interrupt_is_no_traceback(monkeypatch):
    from relayd.commands import version

    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "run", interrupted)
    assert main(["version"]) == 130


def test_one_command_is_parsed_without_importing_the_others():
    parser = make_parser("version")
    assert parser.parse_args(["version"]).command == "version"
