"""64-bit checksums of KV, one per piece: catches torn, swapped, shifted and flipped KV (forgery is the link's
matter).

    checksum(piece) = Σ_i int64(word_i) · c(i)  mod 2⁶⁴,   c(i) = splitmix64(i + 1) | 1

word_i are the piece's little-endian int32 words in stream order (kv_head, slot, dim), sign-extended. Every
coefficient is odd, so a change of any one bit changes the sum; they depend on the position, so a swap does; the sum
is commutative, so any order of summation, any split over threads and any layout gives the same value.

Bytes: reads the pieces once, writes 8 bytes per piece.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.kv.cpu.kv_copy import kv_checksums_cpu
from baton_kernels.kv.kv_coefficients import coefficients
from baton_kernels.kv.kv_units import UnitRange, check_units, unit_places, unit_view


def kv_checksums_reference(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> Tensor:
    """The formula above, piece by piece. Shapes as in `kv_checksums`."""
    check_units(kv_pool, blocks, units)
    layers = kv_pool.shape[1]
    out = torch.zeros(units.count, layers, 2, dtype=torch.int64, device=kv_pool.device)
    view = unit_view(kv_pool, units.tokens)
    for n, (block, part) in enumerate(unit_places(kv_pool, blocks, units)):
        for layer in range(layers):
            for side in range(2):
                words = view[block, part, layer, side].contiguous().view(-1).view(torch.int32)
                out[n, layer, side] = (words.long() * coefficients(words.numel(), words.device)).sum()
    return out


def kv_checksums(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> Tensor:
    """Checksums of a sequence's units: blocks [n] int, its block table → [units, layers, 2] int64.

    The values are bit patterns of unsigned 64-bit integers; flattened they are in stream order. Raises ValueError
    when the range leaves the blocks or its tokens do not divide the pool's block.
    """
    check_units(kv_pool, blocks, units)
    if kv_pool.is_cuda:
        from baton_kernels.kv.gpu.kv_copy import kv_checksums_triton

        return kv_checksums_triton(kv_pool, blocks, units)
    return kv_checksums_cpu(kv_pool, blocks, units)
