"""One run: the plan is played to one fleet, and a worker is killed half way.

The kill waits for a moment in which streams are open on the victim, for a while: a demo in which nothing
was lost shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relayd.demo.client import NEVER, Call, Client, Ending
from relayd.demo.fleet import VICTIM, DemoFault, Fleet
from relayd.demo.plan import Ask, make_warm_up

KILL_AT = 0.5  # of the run
KILL_AT_LATEST = 0.8
STREAMS_AT_KILL = 4  # worth waiting for
LOOK_EVERY_S = 0.005
DRAIN_LIMIT_S = 30.0  # from the last request to the last answer


@dataclass
class Act:
    """What happened in one run.  Times are the loop's, in seconds."""

    policy: str
    began_at: float
    calls: list[Call] = field(default_factory=list)
    killed_at: float = NEVER
    metrics_before: str = ""
    metrics_after: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since the first request could have come."""
        return asyncio.get_running_loop().time() - self.began_at


async def play(
    fleet: Fleet, plan: Sequence[Ask], seconds: float, watch: Callable[[Act], None], tell: Callable[[str], None]
) -> Act:
    """Play `plan` to `fleet`; return what became of every request.

    `watch` is called whenever a request is due, `tell` gets lines for a person.

    Raises:
        DemoFault: a process ended that should not have.
    """
    address = fleet.relayd
    client = Client(address.host, address.port)
    playing = asyncio.ensure_future(perform(fleet, client, plan, seconds, watch, tell))
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


async def perform(
    fleet: Fleet,
    client: Client,
    plan: Sequence[Ask],
    seconds: float,
    watch: Callable[[Act], None],
    tell: Callable[[str], None],
) -> Act:
    """Warm up, send everything when it is due, kill in between, wait for the answers."""
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(client.carry(Call(ask, loop.time())) for ask in make_warm_up(fleet.seed)))
    before = await fleet.metrics()
    act = Act(fleet.policy, loop.time(), metrics_before=before)
    killing = loop.create_task(kill(fleet, act, seconds, tell))
    carrying = [killing]
    try:
        for ask in plan:
            call = Call(ask, act.began_at + ask.due_s)
            await sleep_until(call.due_at)
            act.calls.append(call)
            carrying.append(loop.create_task(client.carry(call)))
            watch(act)
        await drain(act, carrying, watch)
    finally:
        for task in carrying:
            task.cancel()
        await asyncio.wait(carrying)
    killing.result()
    act.metrics_after = await fleet.metrics()
    return act


async def sleep_until(moment: float) -> None:
    """Sleep until the loop's clock says `moment`; not at all if that is past."""
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


async def drain(act: Act, carrying: list[asyncio.Task[None]], watch: Callable[[Act], None]) -> None:
    """Wait until every answer is there, but not for ever."""
    deadline = act.age_s + DRAIN_LIMIT_S
    while not all(task.done() for task in carrying) and act.age_s < deadline:
        await asyncio.wait(carrying, timeout=0.2)
        watch(act)


async def kill(fleet: Fleet, act: Act, seconds: float, tell: Callable[[str], None]) -> None:
    """Kill the victim half way, in a moment in which streams are open on it."""
    await sleep_until(act.began_at + KILL_AT * seconds)
    while len(open_streams(act)) < STREAMS_AT_KILL and act.age_s < KILL_AT_LATEST * seconds:
        await asyncio.sleep(LOOK_EVERY_S)
    count = len(open_streams(act))
    fleet.workers[VICTIM].kill()
    act.killed_at = asyncio.get_running_loop().time()
    streams = f"{count} streams" if count != 1 else "1 stream"
    tell(f"{act.policy}: {act.age_s:.1f} s: kill -9 {VICTIM}, with {streams} open on it")


def open_streams(act: Act) -> list[Call]:
    """Return the streams that the victim is writing, as their clients know."""
    return [call for call in act.calls if call.ask.streamed and call.worker == VICTIM and call.ending is None]


def count(act: Act, ending: Ending) -> int:
    """Return how many requests of a run ended so."""
    return sum(call.ending is ending for call in act.calls)
