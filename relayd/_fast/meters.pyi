from collections.abc import Iterable

from relayd._fast.leg import Leg

class Histogram:
    def __init__(self, bounds: Iterable[float]) -> None: ...
    bounds: tuple[float, ...]
    @property
    def count(self) -> int: ...
    @property
    def sum_s(self) -> float: ...
    def observe_ns(self, ns: int) -> int: ...
    def buckets(self) -> list[tuple[str, int]]: ...
    def exposed(self, name: str, labels: str) -> str: ...
    def quantile(self, share: float) -> float: ...

class Cost:
    input: int
    output: int
    cached_input: int
    cache_write: int
    reasoning: int
    input_estimated: bool
    output_estimated: bool
    @property
    def estimated(self) -> bool: ...
    @property
    def total(self) -> int: ...

def cost_of(leg: Leg, prompt_estimate: int, writes: bool, uncached_input: bool) -> Cost: ...

class Meters:
    def __init__(
        self,
        model: str,
        worker: str,
        ttft: Histogram,
        tpot: Histogram,
        duration: Histogram,
        overhead: Histogram,
    ) -> None: ...
    model: str
    worker: str
    ttft: Histogram
    tpot: Histogram
    duration: Histogram
    overhead: Histogram
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated_input_tokens: int
    estimated_output_tokens: int
    refused_usages: int
    def ended(self, arrived_ns: int, now_ns: int) -> int: ...
    def answered(self, leg: Leg, cost: Cost, arrived_ns: int, ready_ns: int, leg_ns: int) -> int: ...
