"""One run: the plan is played to one fleet, and a worker is killed half way.

The kill waits for a moment in which streams are open on the victim, for a while: a demo in which nothing
was lost shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from relayd.demo.client import NEVER, Call, Client, Ending
from relayd.demo.fleet import VICTIM, DemoFault, Fleet
from relayd.demo.plan import Ask, make_warm_up

KILL_AT = 0.5  # of the run
KILL_AT_LATEST = 0.8
STREAMS_AT_KILL = 2  # worth waiting for
LOOK_EVERY_S = 0.005
DRAIN_LIMIT_S = 30.0  # from the last request to the last answer


@dataclass
class Act:
    """What happened in one run.

    Times are `time.monotonic`'s: the loop's own clock stands still within a turn, and much happens in one.
    """

    policy: str
    began_at: float
    calls: list[Call] = field(default_factory=list)
    killed_at: float = NEVER
    metrics_before: str = ""
    metrics_after: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return monotonic() - self.began_at

    def count(self, ending: Ending | None) -> int:
        """Return how many requests ended so; None: how many are under way."""
        return sum(call.ending is ending for call in self.calls)


class Script(NamedTuple):
    """What to play, and whom to tell."""

    plan: Sequence[Ask]
    seconds: float
    watch: Callable[[Act], None]  # called now and then
    tell: Callable[[str], None]  # gets lines for a person


async def play(fleet: Fleet, script: Script) -> Act:
    """Play `script` to `fleet`; return what became of every request.

    Raises:
        DemoFault: a process ended that should not have.
    """
    client = Client(fleet.relayd.host, fleet.relayd.port)
    playing = asyncio.ensure_future(perform(fleet, client, script))
    guarding = asyncio.ensure_future(fleet.wait_ended(fleet.children))
    try:
        await asyncio.wait((playing, guarding), return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            child = guarding.result()
            raise DemoFault(f"{child.name} ended in the middle of the run{child.last_words()}")
        return playing.result()
    finally:
        for task in (playing, guarding):
            task.cancel()
        await asyncio.wait((playing, guarding))
        client.close()


async def perform(fleet: Fleet, client: Client, script: Script) -> Act:
    """Warm up, send everything when it is due, kill in between, wait for the answers."""
    await asyncio.gather(*(client.carry(Call(ask, monotonic())) for ask in make_warm_up(fleet.seed)))
    before = await fleet.metrics()
    act = Act(fleet.policy, monotonic(), metrics_before=before)
    killing = asyncio.create_task(kill(fleet, act, script))
    tasks = [killing]
    try:
        await send_all(act, client, script, tasks)
        await drain(act, tasks, script)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    killing.result()
    act.metrics_after = await fleet.metrics()
    return act


async def send_all(act: Act, client: Client, script: Script, tasks: list[asyncio.Task[None]]) -> None:
    """Send every request when it is due, whatever became of those before; add their tasks to `tasks`."""
    for ask in script.plan:
        call = Call(ask, act.began_at + ask.due_s)
        await sleep_until(call.due_at)
        act.calls.append(call)
        tasks.append(asyncio.create_task(client.carry(call)))
        script.watch(act)


async def drain(act: Act, tasks: Sequence[asyncio.Task[None]], script: Script) -> None:
    """Wait until every answer is there, but not for ever."""
    deadline_s = act.age_s + DRAIN_LIMIT_S
    while not all(task.done() for task in tasks) and act.age_s < deadline_s:
        await asyncio.wait(tasks, timeout=0.1)
        script.watch(act)


async def kill(fleet: Fleet, act: Act, script: Script) -> None:
    """Kill the victim half way, in a moment in which streams are open on it."""
    await sleep_until(act.began_at + KILL_AT * script.seconds)
    latest_s = KILL_AT_LATEST * script.seconds
    while len(open_streams(act)) < STREAMS_AT_KILL and act.age_s < latest_s:
        await sleep_until(monotonic() + LOOK_EVERY_S)
    streams = len(open_streams(act))
    act.killed_at = monotonic()  # before it: whatever the kill causes is later
    fleet.workers[VICTIM].kill()
    open_now = "1 stream" if streams == 1 else f"{streams} streams"
    script.tell(f"{act.policy}: {act.age_s:4.1f} s: kill -9 {VICTIM}, with {open_now} open on it")


def open_streams(act: Act) -> list[Call]:
    """Return the streams that the victim is writing, as far as their clients know."""
    return [call for call in act.calls if call.ask.streamed and call.worker == VICTIM and call.ending is None]


async def sleep_until(moment: float) -> None:
    """Sleep until `moment`; only let others go first if that is past."""
    await asyncio.sleep(max(0.0, moment - monotonic()))
