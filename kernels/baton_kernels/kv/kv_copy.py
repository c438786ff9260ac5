"""Moving KV: pack (blocks → stream), scatter (stream → blocks), both with checksums from the same loads, and block
copy.

    stream[u - first, layer, side, head, t] = pool[blocks[s // block_tokens], layer, side, head, s % block_tokens + t]
                                              s = u · unit_tokens, for each unit u of the range and t < unit_tokens

Bytes: reads and writes the stream once; checksums add 8 bytes per piece. A block copy reads and writes whole blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.kv.cpu.kv_copy import pack_kv_cpu, scatter_kv_cpu
from baton_kernels.kv.kv_checksum import kv_checksums_reference
from baton_kernels.kv.kv_units import UnitRange, check_units, stream_view, unit_places, unit_view


def pack_kv_reference(
    kv_pool: Tensor,
    blocks: Tensor,
    units: UnitRange,
    stream: Tensor,
    checksums: Tensor | None = None,
) -> None:
    """The formula above, unit by unit. Shapes as in `pack_kv`."""
    check_units(kv_pool, blocks, units)
    target, source = stream_view(stream, kv_pool, units), unit_view(kv_pool, units.tokens)
    for n, (block, part) in enumerate(unit_places(kv_pool, blocks, units)):
        target[n].copy_(source[block, part])
    if checksums is not None:
        checksums.copy_(kv_checksums_reference(kv_pool, blocks, units))


def scatter_kv_reference(
    stream: Tensor,
    kv_pool: Tensor,
    blocks: Tensor,
    units: UnitRange,
    checksums: Tensor | None = None,
) -> None:
    """The formula above backwards, unit by unit. Shapes as in `scatter_kv`."""
    check_units(kv_pool, blocks, units)
    source, target = stream_view(stream, kv_pool, units), unit_view(kv_pool, units.tokens)
    for n, (block, part) in enumerate(unit_places(kv_pool, blocks, units)):
        target[block, part].copy_(source[n])
    if checksums is not None:
        checksums.copy_(kv_checksums_reference(kv_pool, blocks, units))


def pack_kv(
    kv_pool: Tensor,
    blocks: Tensor,
    units: UnitRange,
    stream: Tensor,
    checksums: Tensor | None = None,
) -> None:
    """Fill `stream` (flat, the pool's dtype, exactly the units' size) from blocks [n] int, the sequence's block
    table.

    checksums [units, layers, 2] int64, when given, is filled too. Raises ValueError on a size or range that does
    not fit.
    """
    check_units(kv_pool, blocks, units)
    target = stream_view(stream, kv_pool, units)
    if kv_pool.is_cuda:
        from baton_kernels.kv.gpu.kv_copy import pack_kv_triton

        pack_kv_triton(kv_pool, blocks, units, target, checksums)
    else:
        pack_kv_cpu(kv_pool, blocks, units, target, checksums)


def scatter_kv(
    stream: Tensor,
    kv_pool: Tensor,
    blocks: Tensor,
    units: UnitRange,
    checksums: Tensor | None = None,
    groups: int = 1,
) -> None:
    """Write `stream` (flat, the pool's dtype) into the blocks; slots outside the units stay as they are.

    The stream holds all units of the first of `groups` equal groups of layers, then all units of the next. checksums
    [groups, units, layers / groups, 2] int64, when given, gets those of the stream, from the same reads. Raises as
    `pack_kv`, and ValueError when the layers do not divide.
    """
    check_units(kv_pool, blocks, units)
    layers = kv_pool.shape[1]
    if groups < 1 or layers % groups:
        raise ValueError(f"groups: {groups} does not divide {layers} layers")
    source = stream_view(stream, kv_pool, units)
    if kv_pool.is_cuda:
        from baton_kernels.kv.gpu.kv_copy import scatter_kv_triton

        scatter_kv_triton(source, kv_pool, blocks, units, checksums, groups)
        return
    parts = zip(torch.split(kv_pool, layers // groups, 1), stream.view(groups, -1), strict=True)
    for group, (pool, part) in enumerate(parts if units.count else ()):
        sums = None if checksums is None else checksums.view(groups, units.count, layers // groups, 2)[group]
        scatter_kv_cpu(stream_view(part, pool, units), pool, blocks, units, sums)


def copy_blocks_reference(kv_pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """pool[targets[i]] = pool[sources[i]], all layers."""
    kv_pool[targets.long()] = kv_pool[sources.long()]


def copy_blocks(kv_pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy whole blocks (copy-on-write of a forked sequence): sources, targets [n] int; none is both source and
    target."""
    if kv_pool.is_cuda:
        from baton_kernels.kv.gpu.kv_copy import copy_blocks_triton

        copy_blocks_triton(kv_pool, sources, targets)
    else:
        copy_blocks_reference(kv_pool, sources, targets)
