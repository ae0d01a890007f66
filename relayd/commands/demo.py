"""relayd demo: a fleet, traffic, and a worker that dies, on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import isfinite

HELP = "show what relayd does when a worker dies, on simulated workers"

DEFAULT_SECONDS = 12.0
DEFAULT_RATE = 13.0
LEAST_SECONDS, MOST_SECONDS = 1.0, 600.0
LEAST_RATE, MOST_RATE = 0.1, 500.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--seconds",
        type=between(LEAST_SECONDS, MOST_SECONDS),
        default=DEFAULT_SECONDS,
        metavar="N",
        help=f"how long each of the two runs sends requests ({DEFAULT_SECONDS:g})",
    )
    parser.add_argument(
        "--rate",
        type=between(LEAST_RATE, MOST_RATE),
        default=DEFAULT_RATE,
        metavar="N",
        help=f"requests a second ({DEFAULT_RATE:g})",
    )
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="the same number makes the same traffic (1)"
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout, and nothing else there")
    parser.add_argument(
        "--serve", action="store_true", help="no traffic: leave workers and relayd running until Ctrl-C"
    )


def between(least: float, most: float) -> Callable[[str], float]:
    """Return a reader of numbers in that range."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not isfinite(number) or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return number

    return read


def seed(text: str) -> int:
    """Return the number that `text` is."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at most nine digits")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit code: 0 only if everything that relayd promises held."""
    from relayd.demo import program  # not for those who only want --help

    return program.run(args)
