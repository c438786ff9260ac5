"""Checksum, pack and scatter on the CPU: unit by unit, in parts that stay in the core's cache, so memory is read
once.

A checksum is an int64 matrix–vector product of the pieces' words and the coefficients; torch wraps modulo 2⁶⁴ as
the formula wants.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from baton_kernels.kv_coefficients import coefficients
from baton_kernels.kv_units import UnitRange, unit_places, unit_view

PART_WORDS = 64 * 1024
"""Words checksummed at a time: 256 KiB of KV and 512 KiB as int64, within a 1–2 MiB L2."""


def kv_checksums_cpu(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> Tensor:
    """[units, layers, 2] int64."""
    out = torch.empty(units.count, kv_pool.shape[1], 2, dtype=torch.int64)
    summer = _PieceSummer(kv_pool, units.tokens)
    for n, source in enumerate(_pool_units(kv_pool, blocks, units)):
        summer.fill(source, out[n])
    return out


def pack_kv_cpu(kv_pool: Tensor, blocks: Tensor, units: UnitRange, stream: Tensor, checksums: Tensor | None) -> None:
    """stream [units, layers, 2, kv_heads, unit_tokens, head_dim]."""
    summer = None if checksums is None else _PieceSummer(kv_pool, units.tokens)
    for n, source in enumerate(_pool_units(kv_pool, blocks, units)):
        stream[n].copy_(source)
        if summer is not None and checksums is not None:
            summer.fill(stream[n], checksums[n])


def scatter_kv_cpu(stream: Tensor, kv_pool: Tensor, blocks: Tensor, units: UnitRange, checksums: Tensor | None) -> None:
    """stream [units, layers, 2, kv_heads, unit_tokens, head_dim]. The checksums are of the stream, as read."""
    summer = None if checksums is None else _PieceSummer(kv_pool, units.tokens)
    for n, target in enumerate(_pool_units(kv_pool, blocks, units)):
        if summer is not None and checksums is not None:
            summer.fill(stream[n], checksums[n])
        target.copy_(stream[n])


def _pool_units(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> Iterator[Tensor]:
    """Views [layers, 2, kv_heads, unit_tokens, head_dim] of the range's units, in order."""
    view = unit_view(kv_pool, units.tokens)
    for block, part in unit_places(kv_pool, blocks, units):
        yield view[block, part]


class _PieceSummer:
    """Checksums of one unit's pieces at a time, with the scratch that this takes."""

    def __init__(self, kv_pool: Tensor, unit_tokens: int) -> None:
        heads, row_words = kv_pool.shape[3], kv_pool.shape[5] * kv_pool.element_size() // 4
        words = heads * unit_tokens * row_words
        self._coefficients = coefficients(words, kv_pool.device)
        self._layers = max(1, PART_WORDS // (2 * words))
        self._scratch = torch.empty(self._layers, 2, heads, unit_tokens, row_words, dtype=torch.int64)

    def fill(self, unit: Tensor, out: Tensor) -> None:
        """unit [layers, 2, kv_heads, unit_tokens, head_dim], last dimension contiguous → out [layers, 2] int64."""
        words = unit.view(torch.int32)
        flat = out.view(-1)
        for layer in range(0, unit.shape[0], self._layers):
            part = words[layer : layer + self._layers]
            scratch = self._scratch[: part.shape[0]].copy_(part)
            pieces = 2 * part.shape[0]
            torch.mv(scratch.view(pieces, -1), self._coefficients, out=flat[2 * layer : 2 * layer + pieces])
