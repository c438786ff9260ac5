"""The shape of a KV pool, as its owner, the transfer and the pair fingerprint need it. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Shape of a pool's blocks, `[layers, 2, kv_heads, block_tokens, head_dim]` elements each.

    Raises ValueError naming the field when one is not positive.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    block_tokens: int

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "element_bytes", "block_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: {getattr(self, field)} is not positive")

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token over all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer (K and V) of one block."""
        return self.block_bytes // self.layers

    @property
    def whole(self) -> PoolPart:
        """All layers and heads."""
        return PoolPart(0, self.layers, 0, self.kv_heads)


@dataclass(frozen=True, slots=True)
class PoolPart:
    """Layers [first_layer, end_layer) and heads [first_head, end_head) of a pool's blocks."""

    first_layer: int
    end_layer: int
    first_head: int
    end_head: int


@dataclass(frozen=True, slots=True)
class Units:
    """Units [first, end) of one sequence: what a hand-over moves at once.

    Unit u covers tokens [u * tokens, (u + 1) * tokens) of the sequence; of these, `part` says which layers and heads.
    """

    blocks: Sequence[int]
    """The sequence's block table in logical order."""
    tokens: int
    first: int
    end: int
    part: PoolPart
    groups: int = 1
    """A stream of them holds all units of the first of so many equal groups of the part's layers, then of the next."""

    @property
    def count(self) -> int:
        return self.end - self.first
