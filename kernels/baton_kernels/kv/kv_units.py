"""Where the units of a sequence lie: the arithmetic that checksum, pack and scatter share.

A *unit* is `unit_tokens` consecutive tokens of a sequence (unit u: tokens [u·unit_tokens, (u+1)·unit_tokens)), the
grain of the KV stream between prefill and decode. It divides the block, so a unit lies inside one block. The stream
is unit-major `[unit][layer][K, V][kv_head][slot][head_dim]`; one *piece* is the `[kv_head][slot][head_dim]` of one
(unit, layer, K or V).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Units [first, end) of a sequence, `tokens` slots each."""

    tokens: int
    first: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.first


def check_units(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> None:
    """Raise ValueError when the range does not lie in the sequence's blocks or a head's row is no whole number of
    words."""
    block_tokens = kv_pool.shape[4]
    if units.tokens <= 0 or block_tokens % units.tokens:
        raise ValueError(f"unit_tokens is {units.tokens}; it must divide the pool's block of {block_tokens} tokens")
    if not 0 <= units.first <= units.end or units.end * units.tokens > blocks.numel() * block_tokens:
        raise ValueError(
            f"units [{units.first}, {units.end}) of {units.tokens} tokens "
            f"lie outside {blocks.numel()} blocks of {block_tokens}"
        )
    row_bytes = kv_pool.shape[5] * kv_pool.element_size()
    if row_bytes % 4:
        raise ValueError(f"a head's row is {row_bytes} bytes; it must be a whole number of 4-byte words")


def unit_view(kv_pool: Tensor, unit_tokens: int) -> Tensor:
    """The pool as a view by unit: [blocks, units per block, layers, 2, kv_heads, unit_tokens, head_dim]."""
    blocks, layers, _, heads, block_tokens, head_dim = kv_pool.shape
    split = kv_pool.view(blocks, layers, 2, heads, block_tokens // unit_tokens, unit_tokens, head_dim)
    return split.permute(0, 4, 1, 2, 3, 5, 6)


def stream_view(stream: Tensor, kv_pool: Tensor, units: UnitRange) -> Tensor:
    """A flat stream as [units, layers, 2, kv_heads, unit_tokens, head_dim]. Raises ValueError on another size or
    dtype."""
    _, layers, _, heads, _, head_dim = kv_pool.shape
    expected = units.count * layers * 2 * heads * units.tokens * head_dim
    if stream.dtype != kv_pool.dtype or stream.numel() != expected:
        raise ValueError(
            f"stream holds {stream.numel()} elements of {stream.dtype}; these units take {expected} of {kv_pool.dtype}"
        )
    return stream.view(units.count, layers, 2, heads, units.tokens, head_dim)


def unit_places(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> list[tuple[int, int]]:
    """(block id, unit within the block) of each unit of the range, on the host."""
    per_block = kv_pool.shape[4] // units.tokens
    table = blocks.tolist()
    return [(table[u // per_block], u % per_block) for u in range(units.first, units.end)]
