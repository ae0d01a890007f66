"""relayd check: what is wrong with a settings file, all of it at once."""

from __future__ import annotations

import argparse
import os
import sys

import orjson

from relayd.settings_file import Problem, one_line, read_file
from relayd.settings_file.schema import schema

HELP = "say what is wrong with a settings file"
EXIT_INVALID = 1
EXIT_USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="the settings file")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one JSON object on stdout")
    how.add_argument("-q", "--quiet", action="store_true", help="only the errors, one line each")
    how.add_argument("--schema", action="store_true", help="print the JSON Schema of settings files instead")
    parser.add_argument(
        "--insecure", action="store_true", help="judge as `relayd serve --insecure` would: see there"
    )


def run(args: argparse.Namespace) -> int:
    """Check a file; return the exit code: warnings alone are no failure."""
    if args.schema:
        print(orjson.dumps(schema(), option=orjson.OPT_INDENT_2).decode())
        return 0
    if args.file is None:
        print("relayd: check what? relayd check FILE, or relayd check --schema", file=sys.stderr)
        return EXIT_USAGE
    settings, problems = read_file(args.file, insecure=args.insecure)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if args.json:
        print(as_json(args.file, problems, settings is not None))
    elif args.quiet:
        print_errors(args.file, problems)
    else:
        print_all(args.file, problems)
    return EXIT_INVALID if settings is None else 0


def as_json(file: str, problems: list[Problem], ok: bool) -> str:
    """Return the outcome for programs."""
    file = os.fsencode(file).decode("utf-8", "replace")
    names = ("severity", "line", "column", "path", "message", "hint")
    rows = [{"file": file, **{name: getattr(problem, name) for name in names}} for problem in problems]
    return orjson.dumps({"ok": ok, "problems": rows}).decode()


def print_errors(file: str, problems: list[Problem]) -> None:
    """Print the errors, for a script that wants to hear of nothing else."""
    for problem in problems:
        if problem.severity == "error":
            print(one_line(file, problem))


def print_all(file: str, problems: list[Problem]) -> None:
    """Print everything, each with its line, and a summary."""
    for problem in problems:
        print_one(file, problem)
    counts = [
        f"{number} {word}{'s' if number > 1 else ''}"
        for word in ("error", "warning")
        if (number := sum(problem.severity == word for problem in problems))
    ]
    usable = all(problem.severity != "error" for problem in problems)
    print(f"{file}: {', '.join(['ok'] * usable + counts)}")


def print_one(file: str, problem: Problem) -> None:
    """Print one problem, the line it is about, and what to do."""
    print(one_line(file, problem, with_hint=False))
    text, caret = problem.excerpt
    if text.strip():
        margin = f"{problem.line:>5} | "
        print(f"{margin}{text}\n{' ' * (len(margin) - 2)}| {caret}")
    if problem.hint:
        print(f"        {problem.hint}")
