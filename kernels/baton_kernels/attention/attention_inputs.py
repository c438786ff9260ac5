"""Inputs of attention and of the write of K and V before it: one layer of the paged pool, and the rows of a step.

Rows are the same for every layer. A backend derives values from them once, when the first layer asks (`StepMemo`), so
the ops take no parameters for these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast

from torch import Tensor

from baton_kernels.kv.kv_scales import check_scales

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KvLayer:
    """One layer of the pool. Raises ValueError unless scales are given exactly for a float8 pool."""

    pool: Tensor
    """[blocks, layers, 2 (K, V), kv_heads, block_tokens, head_dim]."""
    layer: int
    scales: Tensor | None = None
    """Scales of a float8 pool, [layers, 2, kv_heads] float32 (`kv_scales.py`)."""

    def __post_init__(self) -> None:
        check_scales(self.pool, self.scales)


class StepMemo:
    """Values that a backend derives from a step's rows, once for all layers. They live as long as the rows."""

    def __init__(self) -> None:
        self._made: dict[Hashable, object] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """One row for each of N sequences. Table entries beyond a sequence's blocks are never used, whatever they hold."""

    block_tables: Tensor
    """[N, max_blocks] int32."""
    context_lens: Tensor
    """[N] int32, the current token included; 0 is padding."""
    memo: StepMemo = field(default_factory=StepMemo, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Chunks of N sequences, side by side among T rows; a chunk without rows is padding.

    Table entries beyond a sequence's blocks are never used, whatever they hold.
    """

    block_tables: Tensor
    """[N, max_blocks] int32."""
    query_starts: Tensor
    """[N + 1] int32: where each chunk's rows begin, and where the last one's end."""
    context_lens: Tensor
    """[N] int32, this chunk included."""
    memo: StepMemo = field(default_factory=StepMemo, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """T rows with their positions, and the places of their K and V in the pool."""

    positions: Tensor
    """[T] int64."""
    slot_mapping: Tensor
    """[T] int64: block · block_tokens + slot; -1 writes nowhere (padding of a static grid)."""
    cos: Tensor
    """[max_position, head_dim], as `sin`; the second half repeats the first."""
    sin: Tensor
    memo: StepMemo = field(default_factory=StepMemo, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorm of every query and key head before the rotation (Qwen3)."""

    q: Tensor
    """[head_dim], as `k`."""
    k: Tensor
    eps: float
