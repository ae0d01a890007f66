"""Which part of a prompt the engine has read before.

Engines keep the keys and values of whole blocks of tokens and find them again by a hash
that covers the block and everything before it, so that only a common *prefix* is ever
found.  Here a token is four bytes of prompt, a block 16 tokens, and the cache forgets
the block used least recently.
"""

from __future__ import annotations

from collections import OrderedDict

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 16
BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


def blocks_of(prompt: bytes) -> list[int]:
    """Return one chained hash for every whole block of `prompt`."""
    hashes = []
    chain = 0
    for start in range(0, len(prompt) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain = hash((chain, prompt[start : start + BLOCK_BYTES]))
        hashes.append(chain)
    return hashes


class PrefixCache:
    """The blocks in memory, least recently used first."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, blocks: list[int]) -> int:
        """Return how many tokens at the start are known, and mark them as used."""
        known = 0
        for block in blocks:
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            known += 1
        return known * BLOCK_TOKENS

    def insert(self, blocks: list[int]) -> None:
        """Remember `blocks`, forgetting the oldest beyond the capacity."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.capacity_blocks:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
