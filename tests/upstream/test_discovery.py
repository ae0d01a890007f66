"""Workers are asked what they serve; whatever they answer, they may still be used."""

from __future__ import annotations

import asyncio

import pytest

from relayd._fast.leg import Pool
from relayd.net import FetchError
from relayd.records import Fleet, Worker
from relayd.upstream import discovery
from relayd.upstream.discovery import Discovery


class World:
    """Workers and what they answer when asked."""

    def __init__(self, monkeypatch, **answers) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.said: list[str] = []
        self.fleet = Fleet([Worker(name, f"http://{name}", Pool(name, b"h", None)) for name in answers])
        self.discovery = Discovery(self.fleet, None, self.said.append)
        monkeypatch.setattr(discovery, "fetch", self.fetch)

    async def fetch(self, url, *, timeout_s, tls):
        assert timeout_s == 2.0
        self.asked.append(url)
        answer = self.answers[url.split("/")[2]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self) -> None:
        """Ask all workers."""
        asyncio.run(self.discovery.ask_all())


def test_learns_what_each_serves(monkeypatch):
    world = World(
        monkeypatch,
        a=(200, b'{"object":"list","data":[{"id":"m1","object":"model","x":{}},{"id":"m2"}]}'),
        b=(200, b'{"data":[{"id":"m2"}]}'),
        c=(200, b'{"data":[]}'),
    )
    world.ask()
    assert [worker.models for worker in world.fleet.workers] == [{"m1", "m2"}, {"m2"}, frozenset()]
    assert world.fleet.models == {"m1", "m2"}
    assert sorted(world.asked) == ["http://a/v1/models", "http://b/v1/models", "http://c/v1/models"]
    assert world.said == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (FetchError("connection refused"), "worker a (http://a) does not answer: connection refused"),
        ((404, b"{}"), "does not list its models (status 404)"),
        ((500, b""), "does not list its models (status 500)"),
        ((200, b"not json"), "lists no models that can be read"),
        ((200, b'{"data":null}'), "lists no models that can be read"),
        ((200, b'{"data":[{"name":"m"}]}'), "lists no models that can be read"),
        ((200, b'{"data":[{"id":7}]}'), "lists no models that can be read"),
        ((200, b"\xff"), "lists no models that can be read"),
        ((200, b'{"x":' + b"[" * 100_000), "lists no models that can be read"),
        (
            (200, b'{"data":[{"id":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"),
            "lists no models that can be read",
        ),
    ],
)
def test_a_worker_that_does_not_tell_may_serve_anything(monkeypatch, answer, said):
    world = World(monkeypatch, a=answer)
    world.ask()
    assert world.fleet.workers[0].models is None
    assert len(world.said) == 1
    assert said in world.said[0]
    assert "\n" not in world.said[0]


def test_one_that_fails_does_not_keep_the_others_from_being_asked(monkeypatch):
    world = World(monkeypatch, a=FetchError("no"), b=(200, b'{"data":[{"id":"m"}]}'))
    world.ask()
    assert world.fleet.workers[1].models == {"m"}


def test_who_does_not_answer_is_down_until_it_does(monkeypatch):
    world = World(monkeypatch, a=FetchError("no"), b=(500, b""))
    down, up = world.fleet.workers
    world.ask()
    assert (down.up, up.up) == (False, True)
    world.ask()
    assert len([line for line in world.said if "does not answer" in line]) == 1, "said once"
    world.answers["a"] = (200, b'{"data":[{"id":"m"}]}')
    world.ask()
    assert (down.up, down.models) == (True, {"m"})
    world.answers["a"] = FetchError("no")
    world.ask()
    assert len([line for line in world.said if "does not answer" in line]) == 2


def test_only_those_that_are_down_are_looked_at_and_not_all_the_time(monkeypatch):
    world = World(monkeypatch, a=FetchError("no"), b=(200, b'{"data":[]}'))
    world.ask()
    world.asked.clear()
    clock = [1000.0]
    monkeypatch.setattr(discovery.time, "monotonic", lambda: clock[0])

    async def look() -> None:
        await world.discovery.look_at(world.fleet.workers)

    for now, asked in [(1000.0, 1), (1000.5, 1), (1000.9, 1), (1001.0, 2), (1001.5, 2), (1002.5, 3)]:
        clock[0] = now
        asyncio.run(look())
        assert world.asked == ["http://a/v1/models"] * asked


def test_those_that_have_not_told_are_asked_when_a_client_asks(monkeypatch):
    world = World(monkeypatch, a=FetchError("no"), b=(200, b'{"data":[]}'), c=(404, b""))

    async def run() -> None:
        await world.discovery.ask_all()
        world.asked.clear()
        world.discovery.ask_missing()
        world.discovery.ask_missing()  # the first is still asking
        await world.discovery.task
        assert sorted(world.asked) == ["http://a/v1/models", "http://c/v1/models"]
        world.discovery.ask_missing()
        await world.discovery.task
        assert len(world.asked) == 4

    asyncio.run(run())


def test_when_all_have_told_nobody_is_asked(monkeypatch):
    world = World(monkeypatch, a=(200, b'{"data":[{"id":"m"}]}'))
    world.ask()
    world.discovery.ask_missing()  # needs no loop: nothing is started
    assert len(world.asked) == 1


def test_asking_can_be_stopped(monkeypatch):
    world = World(monkeypatch, a=(200, b""))
    ended = []

    async def never(url, **options):
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append(url)
            raise

    async def run() -> None:
        monkeypatch.setattr(discovery, "fetch", never)
        world.discovery.close()  # nothing to stop yet
        world.discovery.ask_missing()
        task = world.discovery.task
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.discovery.close()
        await asyncio.gather(task, return_exceptions=True)
        assert world.discovery.task is None

    asyncio.run(run())
    assert ended == ["http://a/v1/models"]
