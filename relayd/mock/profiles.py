"""How fast a simulated GPU is.

One engine step costs

    step = fixed + per_prefill_token * p + per_sequence * n + per_context_token * c

seconds, where p is the prompt tokens read in the step, n the sequences that write one
token each and c the tokens those sequences have in the KV cache.  `fixed` is the time to
read the weights once, `per_context_token` the time to read one token's keys and values:
both follow the card's memory bandwidth.  `per_prefill_token` follows its arithmetic.

Where the numbers come from:

* a100: a model of about 8 billion parameters in 16 bits on an 80 GB card, the profile
  relayd's routing simulator is calibrated on.
* t4: a model of that size in 4 bits on a 16 GB card, from the same calibration.
* h200: the a100 row scaled by the makers' published figures: bandwidth 4.8 to 2.04 TB/s
  (2.35), dense 16-bit arithmetic 989 to 312 TFLOPS (3.17), memory left beside 22 GB of
  weights and buffers 119 to 58 GB (2.05).  Not measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """One card with one model on it.  Times in seconds, sizes in tokens."""

    name: str
    fixed_s: float
    per_prefill_token_s: float
    per_sequence_s: float
    per_context_token_s: float
    kv_tokens: int
    max_num_seqs: int

    def step_s(self, prefill_tokens: int, sequences: int, context_tokens: int) -> float:
        """Return how long one step takes."""
        return (
            self.fixed_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_sequence_s * sequences
            + self.per_context_token_s * context_tokens
        )


PROFILES = {
    "a100": Profile("a100", 0.011, 1 / 10_000, 50e-6, 94e-9, 400_000, 256),
    "t4": Profile("t4", 0.022, 1 / 1_400, 100e-6, 590e-9, 60_000, 64),
    "h200": Profile("h200", 0.0047, 1 / 31_700, 21e-6, 40e-9, 820_000, 256),
}
