"""relayd version: what is installed."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version

from relayd import __version__
from relayd._fast.leg import DEBUG_BUILD

HELP = "show the version"
SHOWN = ("aiohttp", "httptools", "msgspec", "uvloop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--verbose", action="store_true", help="show what it runs on, too")


def run(args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"relayd {__version__}")
    if args.verbose:
        print(f"python {platform.python_version()}")
        print(f"compiled core {'debug' if DEBUG_BUILD else 'release'}")
        for name in SHOWN:
            print(f"{name} {version(name)}")
    return 0
