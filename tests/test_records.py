"""What is known of workers: who serves what."""

from __future__ import annotations

from relayd._fast.leg import Pool
from relayd.records import NEVER, OPEN, Client, Fleet, Worker


def fleet(*names: str) -> Fleet:
    """Return a fleet of workers that have not told what they serve."""
    return Fleet([Worker(name, f"http://{name}", Pool(name, name.encode(), None)) for name in names])


def names(workers) -> list[str]:
    """Return the names of `workers`."""
    return [worker.name for worker in workers]


def test_a_worker_that_has_not_told_serves_anything():
    three = fleet("a", "b", "c")
    assert names(three.serving("m")) == ["a", "b", "c"]
    three.learned(three.workers[0], ["m"])
    three.learned(three.workers[1], ["other"])
    assert names(three.serving("m")) == ["a", "c"]
    assert names(three.serving("other")) == ["b", "c"]


def test_a_model_that_nobody_lists_goes_to_any():
    two = fleet("a", "b")
    for worker in two.workers:
        two.learned(worker, ["m"])
    assert names(two.serving("unknown")) == ["a", "b"]
    assert names(two.serving("")) == ["a", "b"]


def test_what_is_learned_changes_what_was_known():
    two = fleet("a", "b")
    two.learned(two.workers[0], ["m"])
    assert names(two.serving("m")) == ["a", "b"]
    two.learned(two.workers[1], ["other"])
    assert names(two.serving("m")) == ["a"]
    two.learned(two.workers[1], ["m", "other"])
    assert names(two.serving("m")) == ["a", "b"]
    assert two.models == {"m", "other"}


def test_clients_cannot_fill_the_memory_with_names():
    two = fleet("a", "b")
    two.learned(two.workers[0], ["m"])
    for number in range(1000):
        two.serving(f"made-up-{number}")
    assert len(two._serving) <= 1


def test_workers_are_found_by_their_pool():
    two = fleet("a", "b")
    assert two.by_pool["b"] is two.workers[1]


def test_a_new_worker_is_in_favour():
    worker = fleet("a").workers[0]
    assert (worker.open_at_ns, worker.failures, worker.rests, worker.probing) == (OPEN, 0, 0, False)
    assert worker.line == b"X-Relayd-Worker: a\r\n"
    assert NEVER > 10**18


def test_a_new_client_has_no_lines_yet():
    assert (Client("10.0.0.1").address, Client("10.0.0.1").lines) == ("10.0.0.1", None)
