"""Checksum, pack and scatter on the CPU: compiled, or by torch and numpy where that cannot be.

A checksum is a product of the pieces' int32 words and int64 coefficients; numpy wraps modulo 2⁶⁴ as the formula wants,
and its `einsum` widens the words on the way (torch would need them as int64 in memory first).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_kernels.kv.cpu.compiled_kv_copy import Rows, copy_pieces, suits_copy
from baton_kernels.kv.kv_coefficients import coefficients
from baton_kernels.kv.kv_units import UnitRange, unit_places, unit_view


def kv_checksums_cpu(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> Tensor:
    """[units, layers, 2] int64."""
    out = torch.empty(units.count, kv_pool.shape[1], 2, dtype=torch.int64)
    view, places = _pool_units(kv_pool, blocks, units)
    if suits_copy(_head_words(view)):
        copy_pieces(Rows.of(view, places), None, _shape(view), _factors(view), out)
    else:
        for place, sums in zip(places, out, strict=True):
            _sum_pieces(view[place], sums)
    return out


def pack_kv_cpu(kv_pool: Tensor, blocks: Tensor, units: UnitRange, stream: Tensor, checksums: Tensor | None) -> None:
    """stream [units, layers, 2, kv_heads, unit_tokens, head_dim]."""
    view, places = _pool_units(kv_pool, blocks, units)
    _copy(view, places, stream, _in_order(stream), checksums)


def scatter_kv_cpu(stream: Tensor, kv_pool: Tensor, blocks: Tensor, units: UnitRange, checksums: Tensor | None) -> None:
    """stream [units, layers, 2, kv_heads, unit_tokens, head_dim]. The checksums are of the stream, as read."""
    view, places = _pool_units(kv_pool, blocks, units)
    _copy(stream, _in_order(stream), view, places, checksums)


Places = list[tuple[int, ...]]
"""Each unit's index in the first dimensions of a tensor [..., layers, 2, kv_heads, unit_tokens, head_dim]."""


def _copy(source: Tensor, source_places: Places, target: Tensor, target_places: Places, sums: Tensor | None) -> None:
    if suits_copy(_head_words(source)):
        factors = None if sums is None else _factors(source)
        copy_pieces(Rows.of(source, source_places), Rows.of(target, target_places), _shape(source), factors, sums)
        return
    for n, (here, there) in enumerate(zip(source_places, target_places, strict=True)):
        target[there] = source[here]
        if sums is not None:
            _sum_pieces(source[here], sums[n])


def _pool_units(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> tuple[Tensor, Places]:
    """The pool by unit and where in it the range's units are. Raises IndexError for a block that is none of it."""
    places = unit_places(kv_pool, blocks, units)
    if not all(0 <= block < len(kv_pool) for block, _ in places):
        raise IndexError(f"blocks {blocks.tolist()}: the pool has {len(kv_pool)}")
    return unit_view(kv_pool, units.tokens), list(places)


def _in_order(stream: Tensor) -> Places:
    return [(n,) for n in range(len(stream))]


def _head_words(view: Tensor) -> int:
    return view.shape[-2] * view.shape[-1] * view.element_size() // 4


def _shape(view: Tensor) -> tuple[int, int, int]:
    """Pieces of a unit, heads, words of a head."""
    return view.shape[-5] * 2, view.shape[-3], _head_words(view)


def _factors(view: Tensor) -> Tensor:
    """Coefficients of a piece's words: [kv_heads · words of a head] int64."""
    return coefficients(view.shape[-3] * _head_words(view), view.device)


def _sum_pieces(pieces: Tensor, out: Tensor) -> None:
    """pieces [layers, 2, kv_heads, unit_tokens, head_dim], rows side by side → out [layers, 2] int64."""
    words = pieces.view(torch.int32)
    factors = _factors(pieces).view(words.shape[2:]).numpy()
    np.einsum("...htd,htd->...", words.numpy(), factors, out=out.numpy())
