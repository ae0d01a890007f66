"""The command line: one module a command, in `commands/`."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

from relayd import commands

INTRO = "One address in front of many inference servers."


def find_commands() -> list[str]:
    """Return the names of all commands."""
    return [module.name for module in pkgutil.iter_modules(commands.__path__)]


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser for all commands, or for `only` one: importing them all takes half a second."""
    parser = argparse.ArgumentParser(prog="relayd", description=INTRO)
    parser.add_argument("--version", action="store_true", help="show the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    names = find_commands()
    for name in [only] if only in names else names:
        module = importlib.import_module(f"relayd.commands.{name}")
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; return the exit code."""
    try:
        code = run(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read has seen enough.  Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell tells of SIGPIPE


def run(argv: Sequence[str] | None) -> int:
    """Run the command that `argv` names; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser(words[0] if words else None)
    args = parser.parse_args(words)
    if args.version:
        args = make_parser("version").parse_args(["version"])
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
