"""Checksum, pack and scatter on the CPU: in turns of units that stay in the core's cache, so memory is read once.

A checksum is a product of the pieces' int32 words and int64 coefficients; numpy wraps modulo 2⁶⁴ as the formula wants.
Its `einsum` widens the words on the way (4 GB/s on one core of a Xeon with AVX-512); torch would need them as int64 in
memory first (2 GB/s).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_kernels.kv_coefficients import coefficients
from baton_kernels.kv_units import UnitRange, unit_places, unit_view

PART_WORDS = 64 * 1024
"""Words of a turn: 256 KiB."""


def kv_checksums_cpu(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> Tensor:
    """[units, layers, 2] int64."""
    out = torch.empty(units.count, kv_pool.shape[1], 2, dtype=torch.int64)
    factors = _factors(kv_pool, units)
    for source, sums in zip(_pool_units(kv_pool, blocks, units), out, strict=True):
        _sum_pieces(source, factors, sums)
    return out


def pack_kv_cpu(kv_pool: Tensor, blocks: Tensor, units: UnitRange, stream: Tensor, checksums: Tensor | None) -> None:
    """stream [units, layers, 2, kv_heads, unit_tokens, head_dim]."""
    factors = _factors(kv_pool, units)
    sources = _pool_units(kv_pool, blocks, units)
    for turn in _turns(stream):
        for target, source in zip(stream[turn], sources[turn], strict=True):
            target.copy_(source)
        if checksums is not None:
            _sum_pieces(stream[turn], factors, checksums[turn])


def scatter_kv_cpu(stream: Tensor, kv_pool: Tensor, blocks: Tensor, units: UnitRange, checksums: Tensor | None) -> None:
    """stream [units, layers, 2, kv_heads, unit_tokens, head_dim]. The checksums are of the stream, as read."""
    factors = _factors(kv_pool, units)
    targets = _pool_units(kv_pool, blocks, units)
    for turn in _turns(stream):
        if checksums is not None:
            _sum_pieces(stream[turn], factors, checksums[turn])
        for target, source in zip(targets[turn], stream[turn], strict=True):
            target.copy_(source)


def _pool_units(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> list[Tensor]:
    """Views [layers, 2, kv_heads, unit_tokens, head_dim] of the range's units, in order."""
    view = unit_view(kv_pool, units.tokens)
    return [view[block, part] for block, part in unit_places(kv_pool, blocks, units)]


def _turns(stream: Tensor) -> list[slice]:
    """Which units are moved together."""
    unit_words = max(1, stream[0].numel() * stream.element_size() // 4) if len(stream) else 1
    units = max(1, PART_WORDS // unit_words)
    return [slice(first, first + units) for first in range(0, len(stream), units)]


def _factors(kv_pool: Tensor, units: UnitRange) -> NDArray[np.int64]:
    """Coefficients of a piece's words: [kv_heads, unit_tokens, words of a row]."""
    heads, row_words = kv_pool.shape[3], kv_pool.shape[5] * kv_pool.element_size() // 4
    factors: NDArray[np.int64] = coefficients(heads * units.tokens * row_words, kv_pool.device).numpy()
    return factors.reshape(heads, units.tokens, row_words)


def _sum_pieces(pieces: Tensor, factors: NDArray[np.int64], out: Tensor) -> None:
    """pieces [..., kv_heads, unit_tokens, head_dim], rows contiguous → out [...] int64."""
    np.einsum("...htd,htd->...", pieces.view(torch.int32).numpy(), factors, out=out.numpy())
