"""How many bytes of KV a sequence keeps: layers with a window stop growing at it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvSize:
    """Of one model. Without windows every token takes equally much."""

    per_token: float
    """Bytes that each token adds, however long the sequence is: those of the layers without a window."""
    windows: tuple[tuple[int, float], ...] = ()
    """(window in tokens, bytes of a token in the layers that have it)"""

    def of(self, tokens: float) -> float:
        """Bytes of a sequence of so many tokens."""
        return self.per_token * tokens + sum(each * min(tokens, window) for window, each in self.windows)
