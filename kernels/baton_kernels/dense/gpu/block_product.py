"""Products of rows and weights in e4m3 with scales by blocks of 128, in Triton: for up to 128 rows and few features.

The library has a program for each tile of outputs, too few for a GPU where features are few. Here programs share a
tile's columns and store their parts in float32; a kernel adds these, always in the same order.

Each step is a block of 128 columns: its products are added up by themselves, then scaled, as the library does.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from baton_kernels.dense.quantised_weight import GROUP, QuantisedWeight
from baton_kernels.launching.dependent_launch import after_previous, chain

MULTIPROCESSORS = 132
ROWS = 128
"""Rows of a tile, the most that are multiplied so."""
FEATURES = 64
"""Features of a tile."""
MOST_FEATURES = 5120
"""The most features of such a product: the library has programs enough for more."""
LEAST_STEPS = 16
"""Steps that a program has at least: parts of fewer cost more than they win."""
SUMMED = 1024
"""Outputs that a program adds up."""


@triton.jit(do_not_specialize=["rows"])
def _block_kernel(
    x, weight, part_ptr, row_scale_ptr, scale_ptr, rows, features, steps, row_scale_stride, scale_stride,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    n, split = tl.program_id(0) * N, tl.program_id(1)
    row = tl.arange(0, M)
    feature = n + tl.arange(0, N)
    is_row = row < rows
    first = split * steps // SPLITS
    scales = scale_ptr + (n // K) * scale_stride
    row_scales = row_scale_ptr + row
    row_scale = tl.load(row_scales + first * row_scale_stride, mask=is_row, other=0.0)
    scale = tl.load(scales + first)
    total = tl.zeros([M, N], tl.float32)
    for step in range(first, (split + 1) * steps // SPLITS):
        left = x.load([0, step * K])
        right = weight.load([n, step * K])
        own_scale = row_scale * scale
        later = tl.minimum(step + 1, steps - 1)  # asked for before it is wanted
        row_scale = tl.load(row_scales + later * row_scale_stride, mask=is_row, other=0.0)
        scale = tl.load(scales + later)
        total += tl.dot(left, right.T) * own_scale[:, None]
    place = (split * rows + row).to(tl.int64)[:, None] * features + feature[None, :]
    inside = is_row[:, None] & (feature < features)[None, :]
    tl.store(part_ptr + place, total.to(part_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _parts_kernel(part_ptr, out_ptr, count, BLOCK: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr):
    after_previous(CHAINED)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    total = tl.load(part_ptr + place, mask=inside, other=0.0)
    for part in tl.static_range(1, SPLITS):
        total += tl.load(part_ptr + part * count + place, mask=inside, other=0.0)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)


@cache
def splits_of_columns(features: int, columns: int) -> int:
    """Programs that share a tile's columns: as many as two a multiprocessor, if each has steps enough."""
    tiles, steps, splits = triton.cdiv(features, FEATURES), triton.cdiv(columns, GROUP), 1
    while splits < 8 and tiles * splits * 2 <= 2 * MULTIPROCESSORS and steps >= 2 * splits * LEAST_STEPS:
        splits *= 2
    return splits


def pays(rows: int, features: int, columns: int) -> bool:
    """Decide if this is faster than the library."""
    return rows <= ROWS and features <= MOST_FEATURES and splits_of_columns(features, columns) > 1


def block_product(codes: Tensor, scales: Tensor, weight: QuantisedWeight, rows: int, dtype: torch.dtype) -> Tensor:
    """Multiply `rows` rows of codes e4m3 [T', K], up to ROWS, with scales [T', K/128] whose rows are neighbours, by a
    weight with blocks → [rows, N] of the dtype."""
    assert weight.blocks is not None
    features, columns = weight.values.shape
    splits = splits_of_columns(features, columns)
    tiles = triton.cdiv(features, FEATURES)
    out = torch.empty(rows, features, dtype=dtype, device=codes.device)
    parts = out
    if splits > 1:
        parts = torch.empty(splits, rows, features, dtype=torch.float32, device=codes.device)
    launch = chain(codes)
    _block_kernel[(tiles, splits)](
        TensorDescriptor.from_tensor(codes, [ROWS, GROUP]),
        TensorDescriptor.from_tensor(weight.values.view(torch.float8_e4m3fn), [FEATURES, GROUP]),
        parts, scales, weight.blocks, rows, features, columns // GROUP, scales.stride(1), weight.blocks.stride(0),
        ROWS, FEATURES, GROUP, splits, bool(launch), num_warps=4,
        num_stages=6 if tiles * splits <= MULTIPROCESSORS else 4, **launch,
    )  # fmt: skip
    if splits > 1:
        _parts_kernel[(triton.cdiv(out.numel(), SUMMED),)](
            parts, out, out.numel(), SUMMED, splits, bool(launch), **launch
        )
    return out
