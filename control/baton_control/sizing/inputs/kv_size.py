"""How many bytes of KV a sequence keeps: layers with a window stop growing a little beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK_TOKENS: Final = 64
"""Of workers on a GPU, unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """Of one model. Without windows every token takes equally much."""

    per_token: float
    """Bytes that each token adds, however long the sequence is: those of the layers without a window."""
    windows: tuple[tuple[int, float], ...] = ()
    """(window in tokens, bytes of a token in the layers that have it)"""

    def of(self, tokens: float) -> float:
        """Bytes of a sequence of so many tokens. Layers with a window give back whole blocks: they keep some tokens
        more, on average over a sequence's life as many as a block has, less 2."""
        kept = ((min(tokens, window + BLOCK_TOKENS - 2), each) for window, each in self.windows)
        return self.per_token * tokens + sum(count * each for count, each in kept)
