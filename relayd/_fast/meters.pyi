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
    def quantile(self, share: float) -> float: ...

class Meters:
    def __init__(
        self, ttft: Histogram, tpot: Histogram, duration: Histogram, overhead: Histogram, decision: Histogram
    ) -> None: ...
    ttft: Histogram
    tpot: Histogram
    duration: Histogram
    overhead: Histogram
    decision: Histogram
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    estimated_input_tokens: int
    estimated_output_tokens: int
    refused_usages: int
    def ended(self, arrived_ns: int, now_ns: int) -> int: ...
    def answered(
        self,
        leg: Leg,
        arrived_ns: int,
        ready_ns: int,
        leg_ns: int,
        decision_ns: int,
        prompt_estimate: int,
        uncached_input: bool,
    ) -> int: ...
