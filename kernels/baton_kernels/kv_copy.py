"""Moving KV: pack (blocks → stream), scatter (stream → blocks), both with checksums from the same loads, and block copy.

    stream[u - first, layer, side, head, t, :] = pool[blocks[u·unit_tokens // block_tokens], layer, side, head, (u·unit_tokens) % block_tokens + t, :]

Bytes: reads and writes the stream once (2 × its size); checksums add 8 bytes per piece. A block copy reads and writes whole blocks.
"""

from __future__ import annotations

from torch import Tensor

from baton_kernels.kv_checksum import kv_checksums_reference
from baton_kernels.kv_units import UnitRange, check_units, stream_elements, unit_places, unit_view


def _stream_view(stream: Tensor, kv_pool: Tensor, units: UnitRange) -> Tensor:
    expected = stream_elements(kv_pool, units)
    if stream.dtype != kv_pool.dtype or stream.numel() != expected:
        raise ValueError(
            f"stream holds {stream.numel()} elements of {stream.dtype}; these units take {expected} of {kv_pool.dtype}"
        )
    _, layers, _, heads, _, head_dim = kv_pool.shape
    return stream.view(units.count, layers, 2, heads, units.tokens, head_dim)


def pack_kv_reference(
    kv_pool: Tensor,
    blocks: Tensor,
    unit_tokens: int,
    first_unit: int,
    end_unit: int,
    stream: Tensor,
    checksums: Tensor | None = None,
) -> None:
    """The formula above, unit by unit. Shapes as in `pack_kv`."""
    units = UnitRange(unit_tokens, first_unit, end_unit)
    check_units(kv_pool, blocks, units)
    target, source = _stream_view(stream, kv_pool, units), unit_view(kv_pool, unit_tokens)
    for n, (block, part) in enumerate(unit_places(kv_pool, blocks, units)):
        target[n].copy_(source[block, part])
    if checksums is not None:
        checksums.copy_(kv_checksums_reference(kv_pool, blocks, unit_tokens, first_unit, end_unit))


def scatter_kv_reference(
    stream: Tensor,
    kv_pool: Tensor,
    blocks: Tensor,
    unit_tokens: int,
    first_unit: int,
    end_unit: int,
    checksums: Tensor | None = None,
) -> None:
    """The formula above backwards, unit by unit. Shapes as in `scatter_kv`."""
    units = UnitRange(unit_tokens, first_unit, end_unit)
    check_units(kv_pool, blocks, units)
    source, target = _stream_view(stream, kv_pool, units), unit_view(kv_pool, unit_tokens)
    for n, (block, part) in enumerate(unit_places(kv_pool, blocks, units)):
        target[block, part].copy_(source[n])
    if checksums is not None:
        checksums.copy_(kv_checksums_reference(kv_pool, blocks, unit_tokens, first_unit, end_unit))


def pack_kv(
    kv_pool: Tensor,
    blocks: Tensor,
    unit_tokens: int,
    first_unit: int,
    end_unit: int,
    stream: Tensor,
    checksums: Tensor | None = None,
) -> None:
    """Fill `stream` (flat, the pool's dtype, exactly the units' size) from blocks [n], the sequence's block table.

    With checksums [units, layers, 2] int64 those are filled too. Raises ValueError on a size or range that does not fit.
    """
    pack_kv_reference(kv_pool, blocks, unit_tokens, first_unit, end_unit, stream, checksums)


def scatter_kv(
    stream: Tensor,
    kv_pool: Tensor,
    blocks: Tensor,
    unit_tokens: int,
    first_unit: int,
    end_unit: int,
    checksums: Tensor | None = None,
) -> None:
    """Write `stream` (flat, the pool's dtype) into the blocks; slots outside the units stay as they are.

    With checksums [units, layers, 2] int64 those of the stream are filled from the same reads. Raises ValueError as `pack_kv`.
    """
    scatter_kv_reference(stream, kv_pool, blocks, unit_tokens, first_unit, end_unit, checksums)


def copy_blocks_reference(kv_pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """pool[targets[i]] = pool[sources[i]], all layers."""
    kv_pool[targets.long()] = kv_pool[sources.long()]


def copy_blocks(kv_pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy whole blocks (copy-on-write of a forked sequence): sources, targets [n]; no block is both source and target."""
    copy_blocks_reference(kv_pool, sources, targets)
