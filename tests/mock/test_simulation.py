"""The simulated GPU, with a clock that moves when told."""

import pytest

from relayd.mock.prefix import BLOCK_BYTES, BLOCK_TOKENS, PrefixCache, blocks_of
from relayd.mock.profiles import PROFILES, Profile
from relayd.mock.simulation import BatchSimulation, PacedSimulation, Sequence, Simulation

# 1 s a step, 1 ms a prompt token, 10 ms a sequence, 0.1 ms a token in memory
PLAIN = Profile("plain", 1.0, 0.001, 0.010, 0.0001, kv_tokens=10_000, max_num_seqs=2)


def paced(ttft_s: float | None = 0.5, itl_s: float | None = 0.1, **more: int) -> PacedSimulation:
    return PacedSimulation(PLAIN, more.get("max_num_seqs"), ttft_s=ttft_s, itl_s=itl_s)


def both() -> list[Simulation]:
    return [BatchSimulation(PLAIN), paced()]


def run_out(simulation: Simulation) -> dict[Sequence, list[float]]:
    """Let everything finish; return when each sequence wrote each of its tokens."""
    times: dict[Sequence, list[float]] = {}
    while (now := simulation.next_at()) is not None:
        for sequence, count in simulation.advance(now):
            times.setdefault(sequence, []).extend([now] * count)
    return times


def test_a_step_takes_as_long_as_what_is_in_it():
    simulation = BatchSimulation(PLAIN)
    sequence = Sequence(prompt_tokens=100, output_tokens=3)
    simulation.submit(sequence, now=10.0)
    first, second, third = run_out(simulation)[sequence]
    assert first == pytest.approx(10.0 + 1.0 + 0.1)
    assert second - first == pytest.approx(1.0 + 0.010 + 101 * 0.0001)
    assert third - second == pytest.approx(1.0 + 0.010 + 102 * 0.0001)


def test_a_long_prompt_is_read_in_pieces_while_others_write():
    simulation = BatchSimulation(PLAIN)
    short, long = Sequence(1, 50), Sequence(5_000, 1)
    simulation.submit(short, 0.0)
    simulation.submit(long, 0.0)
    times = run_out(simulation)
    assert len([t for t in times[short] if t < times[long][0]]) >= 2  # 5,000 tokens are three steps


def test_sequences_in_a_batch_write_in_lockstep():
    simulation = BatchSimulation(PLAIN)
    one, two = Sequence(10, 4), Sequence(10, 4)
    simulation.submit(one, 0.0)
    simulation.submit(two, 0.0)
    times = run_out(simulation)
    assert times[one][1:] == times[two][:3]  # the second joined a step later


@pytest.mark.parametrize("simulation", both(), ids=["batch", "paced"])
def test_the_queue_is_first_in_first_out(simulation):
    sequences = [Sequence(10, 5) for _ in range(5)]
    for sequence in sequences:
        simulation.submit(sequence, 0.0)
    assert (simulation.num_running, simulation.num_waiting) in {(2, 3), (1, 4)}
    times = run_out(simulation)
    firsts = [times[sequence][0] for sequence in sequences]
    assert firsts == sorted(firsts)
    assert firsts[2] >= times[sequences[0]][-1]


@pytest.mark.parametrize("simulation", both(), ids=["batch", "paced"])
def test_everything_is_given_back(simulation):
    for index in range(20):
        simulation.submit(Sequence(50 + index, 1 + index % 7, width=1 + index % 2), 0.0)
    run_out(simulation)
    assert (simulation.num_running, simulation.num_waiting) == (0, 0)
    assert (simulation.slots_used, simulation.kv_reserved, simulation.kv_used) == (0, 0, 0)
    assert sum(simulation.meters.finished.values()) == 20


def test_memory_is_what_admits():
    simulation = paced(max_num_seqs=100)
    big = [Sequence(6_000, 100) for _ in range(2)]
    for sequence in big:
        simulation.submit(sequence, 0.0)
    assert (simulation.num_running, simulation.num_waiting) == (1, 1)
    assert simulation.kv_usage == pytest.approx(0.6)


def test_what_never_fits_is_told_beforehand():
    simulation = paced()
    assert simulation.can_hold(Sequence(9_000, 1_000))
    assert not simulation.can_hold(Sequence(9_000, 1_001))
    assert not simulation.can_hold(Sequence(1, 1, width=3))


@pytest.mark.parametrize("simulation", both(), ids=["batch", "paced"])
def test_leaving_frees_the_slot_at_once(simulation):
    sequences = [Sequence(100, 50) for _ in range(2)]
    for sequence in sequences:
        simulation.submit(sequence, 0.0)
    simulation.advance(2.2)
    before = simulation.kv_used
    simulation.cancel(sequences[0], 2.2)
    assert simulation.num_running == 1
    assert simulation.kv_used < before
    simulation.cancel(sequences[0], 2.2)  # twice does nothing
    assert simulation.num_running == 1
    assert sequences[0] not in run_out(simulation)
    assert simulation.meters.finished == {"stop": 1, "length": 0, "abort": 1}


def test_leaving_lets_the_next_one_in():
    simulation = paced(max_num_seqs=1)
    first, second, third = (Sequence(10, 10) for _ in range(3))
    for sequence in (first, second, third):
        simulation.submit(sequence, 0.0)
    simulation.cancel(second, 0.1)  # from the queue
    simulation.cancel(first, 0.2)  # from its slot
    assert list(simulation.running) == [third]
    assert run_out(simulation)[third][0] == pytest.approx(0.2 + 0.5)


def test_a_pace_of_its_own():
    simulation = paced(ttft_s=0.5, itl_s=0.1)
    one, two = Sequence(10, 3), Sequence(10, 3)
    simulation.submit(one, 1.0)
    simulation.submit(two, 1.03)
    times = run_out(simulation)
    assert times[one] == pytest.approx([1.5, 1.6, 1.7])
    assert times[two] == pytest.approx([1.53, 1.63, 1.73])


def test_looking_late_loses_nothing_and_shifts_nothing():
    simulation = paced(ttft_s=0.5, itl_s=0.1)
    sequence = Sequence(10, 10)
    simulation.submit(sequence, 0.0)
    assert simulation.advance(0.85) == [(sequence, 1)] * 4
    assert simulation.next_at() == pytest.approx(0.9)


def test_no_time_at_all():
    simulation = paced(ttft_s=0.0, itl_s=0.0)
    sequence = Sequence(10, 100)
    simulation.submit(sequence, 5.0)
    assert simulation.advance(5.0) == [(sequence, 100)]
    assert simulation.next_at() is None


def test_either_interval_may_be_left_to_the_gpu():
    simulation = paced(ttft_s=None, itl_s=0.1)
    sequence = Sequence(100, 2)
    simulation.submit(sequence, 0.0)
    assert run_out(simulation)[sequence] == pytest.approx([1.1, 1.2])
    simulation = paced(ttft_s=0.1, itl_s=None)
    sequence = Sequence(100, 2)
    simulation.submit(sequence, 0.0)
    first, second = run_out(simulation)[sequence]
    assert first == pytest.approx(0.1)
    assert second - first == pytest.approx(1.0 + 0.010 + 100 * 0.0001)


def test_meters_tell_the_same_story():
    simulation = paced(ttft_s=0.5, itl_s=0.1, max_num_seqs=1)
    simulation.submit(Sequence(10, 3, finish="length"), 0.0)
    simulation.submit(Sequence(20, 2), 0.0)
    run_out(simulation)
    meters = simulation.meters
    assert (meters.prompt_tokens, meters.generation_tokens) == (30, 5)
    assert meters.finished == {"stop": 1, "length": 1, "abort": 0}
    assert meters.ttft_s.count == 2
    assert meters.ttft_s.sum == pytest.approx(0.5 + (0.7 + 0.5))
    assert meters.inter_token_s.count == 3
    assert meters.inter_token_s.sum == pytest.approx(0.3)
    assert meters.e2e_s.sum == pytest.approx(0.7 + 1.3)
    assert meters.queue_s.sum == pytest.approx(0.7)


def test_an_embedding_writes_no_tokens():
    simulation = paced()
    simulation.submit(Sequence(10, 1, generates=False), 0.0)
    run_out(simulation)
    assert (simulation.meters.prompt_tokens, simulation.meters.generation_tokens) == (10, 0)


def test_several_answers_take_several_slots():
    simulation = paced()
    simulation.submit(Sequence(10, 4, width=2), 0.0)
    simulation.submit(Sequence(10, 4), 0.0)
    assert (simulation.num_running, simulation.num_waiting) == (1, 1)
    run_out(simulation)
    assert simulation.meters.generation_tokens == 4 * 2 + 4


def test_a_prefix_read_before_is_not_read_again():
    simulation = paced(ttft_s=None, itl_s=0.0)
    prompt = b"x" * (BLOCK_BYTES * 10)
    first = Sequence(BLOCK_TOKENS * 10, 1, blocks=blocks_of(prompt))
    longer = Sequence(BLOCK_TOKENS * 11, 1, blocks=blocks_of(prompt + b"y" * BLOCK_BYTES))
    other = Sequence(BLOCK_TOKENS * 10, 1, blocks=blocks_of(b"z" + prompt))
    for sequence in (first, longer, other):
        simulation.submit(sequence, simulation.next_at() or 0.0)
        run_out(simulation)
    assert (first.cached_tokens, longer.cached_tokens, other.cached_tokens) == (0, 160, 0)
    assert longer.first_at - longer.admitted_at == pytest.approx(1.0 + 16 * 0.001)
    assert (simulation.meters.prefix_hits, simulation.meters.prefix_queries) == (160, 496)


def test_the_last_token_of_a_prompt_is_always_read():
    simulation = paced()
    blocks = blocks_of(b"x" * BLOCK_BYTES)
    for _ in range(2):
        sequence = Sequence(BLOCK_TOKENS, 1, blocks=blocks)
        simulation.submit(sequence, 0.0)
        run_out(simulation)
    assert sequence.cached_tokens == BLOCK_TOKENS - 1


def test_the_cache_forgets_the_oldest():
    cache = PrefixCache(2)
    cache.insert([1])
    cache.insert([2])
    assert cache.match([1]) == BLOCK_TOKENS  # now 2 is the oldest
    cache.insert([3])
    assert (cache.match([1]), cache.match([2]), cache.match([3])) == (BLOCK_TOKENS, 0, BLOCK_TOKENS)
    assert len(cache) == 2


def test_the_better_card_is_faster_at_everything():
    for prefill, sequences, context in ((2_048, 0, 0), (0, 1, 1_000), (0, 64, 50_000)):
        t4, a100, h200 = (
            PROFILES[name].step_s(prefill, sequences, context) for name in ("t4", "a100", "h200")
        )
        assert t4 > a100 > h200
