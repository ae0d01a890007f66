"""The command itself: both runs one after the other, or a fleet that is left running.

However it ends, the processes are ended first: a signal cancels the one task, and `async with` does the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from relayd.demo.act import Act, Script, play
from relayd.demo.figures import figures_of
from relayd.demo.fleet import PLACES, VICTIM, DemoFault, Fleet
from relayd.demo.plan import MODEL, make_plan
from relayd.demo.progress import Progress
from relayd.demo.promises import broken_promises, comparable
from relayd.demo.report import Result, as_json, as_text

OK, BROKEN = 0, 1
SIGNALLED = 128  # plus the signal's number, as shells say it
OURS, THEIRS = "least_tokens", "round_robin"


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    job = leave_running(args.json, args.seed) if args.serve else compare(args)
    try:
        code = uvloop.run(until_signal(job))
    except DemoFault as fault:
        tell(f"relayd demo: {fault}")
        return BROKEN
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on; say no more there
        return BROKEN
    if code > SIGNALLED:
        tell("relayd demo: stopped, and everything it had started")
        return OK if args.serve else code
    return code


async def until_signal(job: Coroutine[Any, Any, int]) -> int:
    """Run `job` and return its exit code; or, if a signal ended it, what shells would call that."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(job)
    seen: list[int] = []

    def stop(number: int) -> None:
        if not seen:  # a second signal must not disturb the cleaning up
            seen.append(number)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        return SIGNALLED + seen[0]


def tell(line: str) -> None:
    """Say something on stderr, if anybody is there."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        pass


# -- both runs


async def compare(args: argparse.Namespace) -> int:
    """Play the same plan under two policies and say what came of it."""
    plan = make_plan(args.seconds, args.rate, args.seed)
    if not plan:
        raise DemoFault(
            f"not one request falls into {args.seconds:g} s at {args.rate:g} a second; "
            "raise --seconds or --rate"
        )
    progress = Progress()
    script = Script(plan, args.seconds, progress.show, progress.say)
    try:
        ours, theirs = [await perform(policy, script, args.seed) for policy in (OURS, THEIRS)]
    finally:
        progress.clear()
    result = Result(
        seconds=args.seconds,
        rate=args.rate,
        seed=args.seed,
        runs=(figures_of(ours), figures_of(theirs)),
        compared=len(comparable(ours, theirs)),
        broken=broken_promises(ours, theirs),
    )
    print(json.dumps(as_json(result), indent=2) if args.json else as_text(result), flush=True)
    return BROKEN if result.broken else OK


async def perform(policy: str, script: Script, seed: int) -> Act:
    """Play `script` to a fleet made for it."""
    script.tell(f"{policy}: starting three workers and a relayd")
    async with Fleet(policy, seed) as fleet:
        return await play(fleet, script)


# -- left running


async def leave_running(as_machine: bool, seed: int) -> int:
    """Start a fleet, say where it is, and keep it until a signal comes.

    Raises:
        DemoFault: relayd or the last worker has ended.
    """
    async with Fleet(OURS, seed, on_line=tell) as fleet:
        print(json.dumps(whereabouts(fleet), indent=2) if as_machine else welcome(fleet), flush=True)
        workers = list(fleet.workers.values())
        while workers:
            ended = await fleet.wait_ended([fleet.relayd, *workers])
            if ended is fleet.relayd:
                raise DemoFault(f"relayd has ended{ended.last_words()}")
            workers.remove(ended)
            tell(f"relayd demo: {ended.name} has ended; {len(workers)} of {len(PLACES)} workers are left")
        raise DemoFault("there is no worker left")


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
    workers = "\n".join(
        f"    {place.name:<7} {fleet.workers[place.name].url}   {place.speed}" for place in PLACES
    )
    return f"""\
relayd listens on {fleet.relayd.url}, in front of three simulated workers:

{workers}

Ask it something:

    {curl_line(fleet)}

Or point an SDK at it: base_url="{fleet.relayd.url}/v1", model="{MODEL}", any API key.

Kill a worker while an answer is coming, and ask again:

    kill -9 {fleet.workers[VICTIM].process.pid}    # {VICTIM}

See what relayd counts:

    curl http://{fleet.relayd.admin}/metrics

Ctrl-C ends all of it.
"""
