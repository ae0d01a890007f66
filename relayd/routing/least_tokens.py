"""Send the request where it will wait behind the least work.

Work is counted in tokens, not requests: one prompt of 30,000 tokens holds a GPU longer than fifty short
ones.  A worker's figure is the sum, over the requests it is serving, of prompt tokens still to be read and
a tenth of the output tokens still to be written: a batch decodes many outputs in one step, but prefill
is paid token by token (policies 2.4, theta = 0.1).  The counts are kept by the pool as bytes pass, so they
are never older than the last event.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayd.records import Facts, Worker
from relayd.registry import register

OUTPUT_WEIGHT = 0.1


def tokens_in_hand(worker: Worker) -> float:
    """Return the work that a worker has before it, in prompt tokens."""
    return worker.pool.prompt_tokens + OUTPUT_WEIGHT * worker.pool.output_tokens


@register("routing", "least_tokens")
class LeastTokens:
    """Count work.  A slow worker is spared because its work stays longer."""

    def pick(self, facts: Facts, candidates: Sequence[Worker], now_ns: int) -> Worker:
        """Return the worker with the fewest tokens in hand, the least recently picked of equals."""
        return min(candidates, key=lambda worker: (tokens_in_hand(worker), worker.pool.last_pick))
