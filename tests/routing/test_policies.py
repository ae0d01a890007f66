"""What every policy must do, whichever it is: the suite runs on each that is registered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayd._fast.leg import Leg, Limits, Pool, RequestBody, Sweeper, Terms
from relayd._fast.sink import Sink
from relayd.records import Facts, Worker
from relayd.registry import plugins

POLICIES = plugins("routing")
EVERY = pytest.mark.parametrize("policy", [make() for make in POLICIES.values()], ids=list(POLICIES))
FACTS = Facts("m", 100, 50)
NOW = 10**15


class Fleet:
    """Workers whose load a test sets by beginning legs, as the product does."""

    def __init__(self, count: int) -> None:
        self.workers = [
            Worker(f"w{n}", f"http://w{n}", Pool(f"w{n}", b"w", lambda pool: None)) for n in range(count)
        ]
        self.terms = Terms(Limits(1, 1, 1, 1, 1), Sweeper(None), 0, False, False, 0, b"")
        self.legs: list[Leg] = []

    def load(self, worker: Worker, prompt: int = 0, output: int = 0) -> Leg:
        """Begin a leg on `worker`."""
        leg = Leg(worker.pool, Sink(), None, None, b"", RequestBody(-2, 0), self.terms, b"", b"")
        leg.expect(False, False, False, prompt, output, 0, 0)
        leg.begin()
        self.legs.append(leg)
        return leg

    def pass_through(self, worker: Worker) -> None:
        """Let a request come and go: the worker was picked, and has nothing in hand."""
        self.load(worker).cancel()


@EVERY
def test_a_policy_needs_no_arguments_and_explains_itself(policy):
    assert type(policy)()
    assert type(policy).__doc__
    assert type(policy).pick.__doc__


@EVERY
def test_one_candidate_is_no_choice(policy):
    worker = Fleet(1).workers[0]
    assert policy.pick(FACTS, [worker], NOW) is worker


LOADS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=4
)


@EVERY
@settings(max_examples=60)
@given(loads=LOADS, data=st.data())
def test_never_picks_outside_the_candidates(policy, loads, data):
    fleet = Fleet(6)
    for number, prompt, output in loads:
        fleet.load(fleet.workers[number], prompt, output)
    candidates = data.draw(st.lists(st.sampled_from(fleet.workers), min_size=1, unique=True))
    before = list(candidates)
    assert policy.pick(FACTS, candidates, NOW) in candidates
    assert candidates == before, "a policy only reads"


@EVERY
def test_ties_go_to_the_least_recently_picked(policy):
    fleet = Fleet(5)
    for index in (3, 0, 4, 2):
        fleet.pass_through(fleet.workers[index])
    order = []
    for _ in range(10):
        worker = policy.pick(FACTS, fleet.workers, NOW)
        order.append(worker.name)
        fleet.pass_through(worker)
    assert order == ["w1", "w3", "w0", "w4", "w2"] * 2


@EVERY
def test_an_idle_fleet_shares_its_first_burst(policy):
    fleet = Fleet(4)
    picked = [policy.pick(FACTS, fleet.workers, NOW) for _ in range(1)]
    fleet.load(picked[0], 10, 10)
    for _ in range(7):
        picked.append(policy.pick(FACTS, fleet.workers, NOW))
        fleet.load(picked[-1], 10, 10)
    assert sorted(worker.name for worker in picked) == ["w0", "w0", "w1", "w1", "w2", "w2", "w3", "w3"]


@EVERY
def test_the_order_of_the_candidates_does_not_matter(policy):
    fleet = Fleet(4)
    for index in (2, 0, 3, 1):
        fleet.pass_through(fleet.workers[index])
    assert policy.pick(FACTS, fleet.workers, NOW) is policy.pick(FACTS, fleet.workers[::-1], NOW)


# --- those that look at load --------------------------------------------------------------------------

BLIND = {"round_robin"}
SEEING = pytest.mark.parametrize("name", sorted(set(POLICIES) - BLIND))


@SEEING
def test_prefers_an_idle_worker(name):
    policy = POLICIES[name]()
    for idle in range(4):
        fleet = Fleet(4)
        fleet.pass_through(fleet.workers[idle])  # the most recently picked of all
        for index in range(4):
            if index != idle:
                fleet.load(fleet.workers[index], 500, 500)
        fleet.pass_through(fleet.workers[idle])
        assert policy.pick(FACTS, fleet.workers, NOW) is fleet.workers[idle]


@SEEING
def test_forgets_what_has_ended(name):
    fleet = Fleet(2)
    leg = fleet.load(fleet.workers[0], 500, 500)
    policy = POLICIES[name]()
    assert policy.pick(FACTS, fleet.workers, NOW) is fleet.workers[1]
    leg.cancel()
    fleet.load(fleet.workers[1], 1, 1)
    assert policy.pick(FACTS, fleet.workers, NOW) is fleet.workers[0]


# --- one by one ---------------------------------------------------------------------------------------


def test_round_robin_is_blind_to_load():
    fleet = Fleet(2)
    for _ in range(5):
        fleet.load(fleet.workers[0], 1000, 1000)
    fleet.pass_through(fleet.workers[1])
    assert POLICIES["round_robin"]().pick(FACTS, fleet.workers, NOW) is fleet.workers[0]


def test_least_conn_counts_requests_whatever_their_size():
    fleet = Fleet(2)
    fleet.load(fleet.workers[0], 100_000, 100_000)
    fleet.load(fleet.workers[1], 1, 1)
    fleet.load(fleet.workers[1], 1, 1)
    assert POLICIES["least_conn"]().pick(FACTS, fleet.workers, NOW) is fleet.workers[0]


def test_least_tokens_counts_work_whatever_the_number():
    fleet = Fleet(2)
    fleet.load(fleet.workers[0], 30_000, 100)
    for _ in range(50):
        fleet.load(fleet.workers[1], 100, 100)
    assert POLICIES["least_tokens"]().pick(FACTS, fleet.workers, NOW) is fleet.workers[1]


@pytest.mark.parametrize(("prompt", "output", "winner"), [(9, 0, 0), (11, 0, 1), (0, 90, 0), (0, 110, 1)])
def test_least_tokens_weighs_output_at_a_tenth(prompt, output, winner):
    """Ten tokens of prompt are as heavy as a hundred of output (policies 2.4)."""
    fleet = Fleet(2)
    fleet.load(fleet.workers[1], 10 if output == 0 else 0, 0 if output == 0 else 100)
    fleet.load(fleet.workers[0], prompt, output)
    assert POLICIES["least_tokens"]().pick(FACTS, fleet.workers, NOW) is fleet.workers[winner]
    fleet = Fleet(2)
    fleet.load(fleet.workers[0], 10, 0)
    fleet.load(fleet.workers[1], 0, 99)
    assert POLICIES["least_tokens"]().pick(FACTS, fleet.workers, NOW) is fleet.workers[1]
