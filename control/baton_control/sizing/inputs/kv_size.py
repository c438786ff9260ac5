"""How many bytes of KV a sequence keeps: layers with a window stop growing a little beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK_TOKENS: Final = 64
"""The default of workers on a GPU."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """KV bytes by sequence length, for one model. Without windows every token takes equally much."""

    per_token: float
    """Bytes that each token adds, however long the sequence is: those of the layers without a window."""
    windows: tuple[tuple[int, float], ...] = ()
    """(window in tokens, bytes of a token in the layers that have it)"""

    def of(self, tokens: float) -> float:
        """Bytes of a sequence of that many tokens. Layers with a window give back whole blocks: they keep some tokens
        more, on average over a sequence's life as many as a block has, less 2."""
        windowed = sum(min(tokens, window + BLOCK_TOKENS - 2) * per_token for window, per_token in self.windows)
        return self.per_token * tokens + windowed
