"""The command itself: both runs one after the other, or a fleet that is left running.

However it ends, the processes are ended first: signals cancel the one task, and `async with` does the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from relayd.demo.act import Act, play
from relayd.demo.figures import figures_of
from relayd.demo.fleet import VICTIM, DemoFault, Fleet
from relayd.demo.plan import MODEL, make_plan
from relayd.demo.progress import Progress
from relayd.demo.promises import broken_promises, pairs
from relayd.demo.report import Result, as_json, as_text

OK, BROKEN, INTERRUPTED = 0, 1, 130
POLICIES = ("least_tokens", "round_robin")


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    job = leave_running(args.json, args.seed) if args.serve else compare(args)
    try:
        return uvloop.run(until_signal(job, OK if args.serve else INTERRUPTED))
    except DemoFault as fault:
        print(f"relayd demo: {fault}", file=sys.stderr)
    except BrokenPipeError:
        # Whoever read our output has gone.
        sys.stdout = None  # type: ignore[assignment]
    return BROKEN


async def until_signal(job: Coroutine[Any, Any, int], code: int) -> int:
    """Run `job`; return its exit code, or `code` if a signal ended it."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(job)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cancel_once(task))
    try:
        return await task
    except asyncio.CancelledError:
        return code


def cancel_once(task: asyncio.Task[int]) -> Callable[[], None]:
    """Return what cancels `task` the first time: a second signal must not disturb the cleaning up."""

    def cancel() -> None:
        if not task.cancelling():
            task.cancel()

    return cancel


# -- both runs


async def compare(args: argparse.Namespace) -> int:
    """Play the same plan under two policies and say what came of it."""
    progress = Progress()
    plan = make_plan(args.seconds, args.rate, args.seed)
    if not plan:
        raise DemoFault(f"--seconds {args.seconds:g} at --rate {args.rate:g} is not one request; raise one of them")
    try:
        acts = [await perform(policy, plan, args, progress) for policy in POLICIES]
    finally:
        progress.clear()
    ours, theirs = acts
    result = Result(
        args.seconds, args.rate, args.seed,
        (figures_of(ours), figures_of(theirs)), len(pairs(ours, theirs)), broken_promises(acts),
    )  # fmt: skip
    print(json.dumps(as_json(result), indent=2) if args.json else as_text(result), flush=True)
    return BROKEN if result.broken else OK


async def perform(policy: str, plan: Any, args: argparse.Namespace, progress: Progress) -> Act:
    """Play the plan to a fleet made for it."""
    progress.say(f"{policy}: starting three workers and relayd")
    async with Fleet(policy, args.seed) as fleet:
        return await play(fleet, plan, args.seconds, progress.show, progress.say)


# -- left running


async def leave_running(as_machine: bool, seed: int) -> int:
    """Start a fleet, say where it is, and keep it until a signal comes."""
    async with Fleet(POLICIES[0], seed, on_line=tell) as fleet:
        print(json.dumps(whereabouts(fleet), indent=2) if as_machine else welcome(fleet), flush=True)
        workers = list(fleet.workers.values())
        for waiting in range(len(workers)):
            ended = await fleet.wait_ended([fleet.relayd, *workers])
            if ended is fleet.relayd:
                raise DemoFault(f"relayd ended{ended.last_words()}")
            workers.remove(ended)
            left = len(workers)
            tell(f"relayd demo: {ended.name} has ended; {left} of {left + waiting + 1} workers are left")
        raise DemoFault("no worker is left")


def tell(line: str) -> None:
    """Say something on stderr."""
    print(line, file=sys.stderr, flush=True)


def curl_line(fleet: Fleet) -> str:
    """Return a command that streams an answer."""
    question = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    return (
        f"curl -N {fleet.relayd.url}/v1/chat/completions -H 'content-type: application/json' "
        f"-d '{json.dumps(question)}'"
    )


def whereabouts(fleet: Fleet) -> dict[str, Any]:
    """Return for machines where everything is."""
    return {
        "url": fleet.relayd.url,
        "admin": f"http://{fleet.relayd.admin}",
        "pid": fleet.relayd.process.pid,
        "model": MODEL,
        "workers": {
            name: {"url": worker.url, "pid": worker.process.pid} for name, worker in fleet.workers.items()
        },
        "curl": curl_line(fleet),
    }


def welcome(fleet: Fleet) -> str:
    """Return for people where everything is, and what to try."""
    workers = "\n".join(f"    {name:8}{worker.url}" for name, worker in fleet.workers.items())
    return f"""\
relayd is at {fleet.relayd.url}, in front of three simulated workers:

{workers}

Ask it something:

    {curl_line(fleet)}

Or point an SDK at it: base_url="{fleet.relayd.url}/v1", any api_key, model="{MODEL}".

Kill a worker while an answer is coming, and ask again:

    kill -9 {fleet.workers[VICTIM].process.pid}    # {VICTIM}

What relayd counts: curl http://{fleet.relayd.admin}/metrics

Ctrl-C ends all of it."""
