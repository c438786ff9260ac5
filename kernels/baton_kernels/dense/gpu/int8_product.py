"""Products of rows and weights that both are integers of 8 bits, in Triton: sums are exact in 32 bits.

Sums are scaled before they are stored. Few rows have too few tiles for a GPU, so programs share a tile's columns and
store their parts, which are added and scaled after (`scale_product`). Integers add up to the same in any order.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from baton_kernels.dense.gpu.rounded_activations import scale_product
from baton_kernels.dense.quantised_weight import QuantisedWeight
from baton_kernels.launching.dependent_launch import after_previous, chain

MULTIPROCESSORS = 132
COLUMNS = 128
"""A step: 128 bytes, as wide as the swizzle."""
TURN = tl.constexpr(8)
"""Tiles of rows that are gone through before the next features: what they share stays in the L2 cache."""


@dataclass(frozen=True, slots=True)
class Int8Config:
    rows: int
    """Rows of a tile: 64 to 256."""
    features: int
    """Features of a tile: 64 to 256."""
    splits: int
    """Programs that share a tile's columns."""
    stages: int
    """Steps under way."""
    warps: int


@triton.jit(do_not_specialize=["rows"])
def _int8_kernel(
    x, weight, out_ptr, row_scale_ptr, scale_ptr, bias_ptr, rows, features, steps, part_stride,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    down, across = tl.cdiv(rows, M), tl.cdiv(features, N)
    place = tl.program_id(0)
    first = place // (TURN * across) * TURN
    turn = tl.minimum(down - first, TURN)
    m = (first + place % (TURN * across) % turn) * M
    n = place % (TURN * across) // turn * N
    column = tl.program_id(1) * steps * K
    total = tl.zeros([M, N], tl.int32)
    for step in range(steps):
        left = x.load([m, column + step * K])
        right = weight.load([n, column + step * K])
        total = tl.dot(left, right.T, total, out_dtype=tl.int32)
    row = m + tl.arange(0, M)
    feature = n + tl.arange(0, N)
    is_feature = feature < features
    at = out_ptr + row.to(tl.int64)[:, None] * features + feature[None, :]
    inside = (row < rows)[:, None] & is_feature[None, :]
    if SCALED:
        row_scale = tl.load(row_scale_ptr + row, mask=row < rows, other=0.0)
        scale = tl.load(scale_ptr + feature, mask=is_feature, other=0.0)
        y = total.to(tl.float32) * (row_scale[:, None] * scale[None, :])
        if BIAS:
            y += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)[None, :]
        tl.store(at, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(at + tl.program_id(1).to(tl.int64) * part_stride, total, mask=inside)


def int8_product(
    codes: Tensor, scales: Tensor, weight: QuantisedWeight, bias: Tensor | None, dtype: torch.dtype,
    config: Int8Config | None = None,
) -> Tensor:  # fmt: skip
    """codes int8 [T, K] in stored order and scales [T, 1] times W of a scale a channel, plus bias [N]: [T, N] of the
    dtype."""
    rows, features = codes.shape[0], weight.values.shape[0]
    config = config or default_config(rows, *weight.values.shape)
    out = torch.empty(rows, features, dtype=dtype, device=codes.device)
    if config.splits == 1:
        _launch(codes, weight, out, scales, bias, config)
        return out
    parts = torch.empty(config.splits, rows, features, dtype=torch.int32, device=codes.device)
    _launch(codes, weight, parts, scales, None, config)
    return scale_product(parts, scales, weight.scales, bias, out)


def _launch(
    codes: Tensor, weight: QuantisedWeight, out: Tensor, row_scales: Tensor, bias: Tensor | None, config: Int8Config
) -> None:
    rows, features = codes.shape[0], weight.values.shape[0]
    tiles = triton.cdiv(rows, config.rows) * triton.cdiv(features, config.features)
    launch = chain(codes)
    _int8_kernel[(tiles, config.splits)](
        TensorDescriptor.from_tensor(codes, [config.rows, COLUMNS]),
        TensorDescriptor.from_tensor(weight.values, [config.features, COLUMNS]),
        out, row_scales, weight.scales, weight.scales if bias is None else bias, rows, features,
        triton.cdiv(codes.shape[1], COLUMNS * config.splits), rows * features, config.rows, config.features, COLUMNS,
        config.splits == 1, bias is not None, bool(launch), num_warps=config.warps, num_stages=config.stages, **launch,
    )  # fmt: skip


@cache
def default_config(rows: int, features: int, columns: int) -> Int8Config:
    """Up to one program a multiprocessor, with steps under way in all of its memory; of more programs two share one."""
    # Three tiles of 64 rows instead of two of 128.
    height, room = (64, 2 * MULTIPROCESSORS) if 128 < rows <= 192 else (128, MULTIPROCESSORS)
    tiles, steps = triton.cdiv(rows, height) * triton.cdiv(features, 128), triton.cdiv(columns, COLUMNS)
    splits = 1
    while splits < 8 and tiles * splits * 2 <= room and steps >= 8 * splits:
        splits *= 2
    if height == 64:
        return Int8Config(64, 128, splits, 4, 4)
    return Int8Config(128, 128, splits, 4, 8) if tiles * splits <= room else Int8Config(128, 128, 1, 3, 4)
