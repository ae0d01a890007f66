"""Holds a running gateway to the wire cases (see README.md beside this file)."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.conformance.runner import CASES, KINDS, Pair, run_cases


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Holds a running gateway to the wire cases, being its only worker.",
    )
    parser.add_argument("kinds", nargs="*", metavar="requests|responses|relay", help="which cases (all)")
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="the gateway")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT", help="its only worker, played here")
    parser.add_argument("--admin", metavar="HOST:PORT", help="where /metrics is, to check relayd's counters")
    parser.add_argument("--auth", metavar="TOKEN", help="a bearer token to send")
    parser.add_argument("--only", metavar="NAME,...", help="run these cases alone")
    parser.add_argument("--failed", action="store_true", help="print only the cases that failed")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"unknown kind of cases: {', '.join(unknown)} (known: {', '.join(KINDS)})")
    return arguments


def _pair(arguments: argparse.Namespace) -> Pair:
    host, _, port = arguments.target.rpartition(":")
    upstream_host, _, upstream_port = arguments.upstream.rpartition(":")
    admin = f"http://{arguments.admin}" if arguments.admin else None
    return Pair(host, int(port), upstream_host, int(upstream_port), admin, arguments.auth)


async def _run(kind: str, pair: Pair, only: set[str], failed_only: bool) -> int:
    """Run one file of cases and print the verdicts; return how many failed."""
    cases = [case for case in CASES[kind]() if not only or case.name in only]
    passed = 0
    async for verdict in run_cases(kind, cases, [pair]):
        passed += verdict.is_ok
        if not (failed_only and verdict.is_ok):
            print(verdict, flush=True)
    print(f"{kind}: {passed} passed, {len(cases) - passed} failed", flush=True)
    return len(cases) - passed


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    arguments = _parse_arguments()
    only = set(arguments.only.split(",")) if arguments.only else set()
    failed = 0
    for kind in arguments.kinds or KINDS:
        failed += asyncio.run(_run(kind, _pair(arguments), only, arguments.failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
