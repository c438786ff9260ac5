"""A quantised weight back to 16 bits, in Triton: one pass over what is stored, one over what comes out.

Columns keep the order in which they are stored: bringing x in that order is cheaper than scattering a weight.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.dense.mxfp4_stack import BLOCK, LINE_COLUMNS, Mxfp4Stack
from baton_kernels.dense.quantised_weight import GROUP, QuantisedWeight

ROWS = 16
"""Features a program."""


@triton.jit
def _bytes_kernel(
    values_ptr, scale_ptr, out_ptr, N, K,
    FLOAT: tl.constexpr, GROUPED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    place = group * WIDTH + tl.arange(0, WIDTH)
    at = feature.to(tl.int64)[:, None] * K
    inside = (feature < N)[:, None] & (place < K)[None, :]
    codes = tl.load(values_ptr + at + place[None, :], mask=inside, other=0)
    if FLOAT:
        codes = codes.to(tl.float8e4nv, bitcast=True)
    scales = scale_ptr + group * N + feature if GROUPED else scale_ptr + feature
    scale = tl.load(scales, mask=feature < N, other=0.0)  # [ROWS]
    wide = codes.to(tl.float32) * scale[:, None]
    tl.store(out_ptr + at + place[None, :], wide.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _int4_kernel(
    values_ptr, scale_ptr, zero_ptr, out_ptr, N, K, LINE, ZEROS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    feature = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    line = tl.program_id(1)
    place = tl.arange(0, WIDTH)
    known = feature < N
    both = tl.load(
        values_ptr + feature.to(tl.int64)[:, None] * LINE + line * WIDTH + place[None, :], mask=known[:, None], other=0
    ).to(tl.int32)  # [ROWS, WIDTH]
    for half in tl.static_range(2):
        group = 2 * line + half
        inside = known[:, None] & (group * WIDTH + place < K)[None, :]
        scale = tl.load(scale_ptr + group * N + feature, mask=known & (group * WIDTH < K), other=0.0).to(tl.float32)
        codes = ((both >> 4 * half) & 15).to(tl.float32)
        if ZEROS:
            zero = tl.load(zero_ptr + group * N + feature, mask=known & (group * WIDTH < K), other=0.0).to(tl.float32)
            codes = codes - (zero[:, None] - 128.0)
        else:
            codes = codes - 8.0
        out = out_ptr + feature.to(tl.int64)[:, None] * K + (group * WIDTH + place)[None, :]
        tl.store(out, (codes * scale[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def dequantise_triton(weight: QuantisedWeight, dtype: torch.dtype) -> Tensor:
    """W [features, columns] as `dequantise` gives it, but columns in stored order."""
    features, size = weight.values.shape
    out = torch.empty(features, weight.columns, dtype=dtype, device=weight.values.device)
    grid = (triton.cdiv(features, ROWS), triton.cdiv(size, GROUP))
    if weight.bits == 8:
        grouped = weight.scales.dim() == 2
        _bytes_kernel[grid](
            weight.values, weight.scales, out, features, weight.columns, weight.is_float, grouped, ROWS, GROUP
        )
    else:
        zeros = weight.scales if weight.zeros is None else weight.zeros
        _int4_kernel[grid](
            weight.values, weight.scales, zeros, out, features, weight.columns, size, weight.zeros is not None,
            ROWS, GROUP,
        )  # fmt: skip
    return out


@triton.jit
def _mxfp4_kernel(
    words_ptr, scale_ptr, out_ptr, N, K, LINES, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    feature = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.program_id(2).to(tl.int64)
    line = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    known = feature < N
    # Of every 16 columns of a plane, those of a pair stand two apart, and the second eight between the first.
    within = column % (COLUMNS // 2)
    pair = within // 16 * 8 + within % 8 // 2 * 2 + within % 2
    at = ((expert * LINES + line) * N + feature) * (COLUMNS // 4)
    word = tl.load(words_ptr + at[:, None] + pair[None, :], mask=known[:, None], other=0).to(tl.int32)
    # Which of a word's four, and where `mxfp4_weight.py` puts their bits.
    which = (column // (COLUMNS // 2) * 2 + within % 16 // 8)[None, :]
    sign = (word >> tl.where(which == 0, 15, tl.where(which == 1, 12, tl.where(which == 2, 9, 10)))) & 1
    exponent = (word >> tl.where(which == 0, 7, tl.where(which == 1, 4, tl.where(which == 2, 1, 13)))) & 3
    low = (word >> tl.where(which == 0, 6, tl.where(which == 1, 3, tl.where(which == 2, 0, 11)))) & 1
    mantissa = low.to(tl.float32)
    size = tl.where(exponent == 0, mantissa * 0.5, (1.0 + mantissa * 0.5) * (1 << exponent).to(tl.float32) * 0.5)
    value = tl.where(sign == 1, -size, size)
    scales = (
        scale_ptr + ((expert * LINES + line) * N + feature)[:, None] * (COLUMNS // BLOCK) + (column // BLOCK)[None, :]
    )
    scale = tl.load(scales, mask=known[:, None], other=0).to(tl.int32)
    power = tl.where(scale == 0, 5.877471754111438e-39, (scale << 23).to(tl.float32, bitcast=True))  # 2⁻¹²⁷
    inside = known[:, None] & (line * COLUMNS + column < K)[None, :]
    out = out_ptr + ((expert * N + feature) * K)[:, None] + (line * COLUMNS + column)[None, :]
    tl.store(out, (value * power).to(out_ptr.dtype.element_ty), mask=inside)


def mxfp4_triton(stack: Mxfp4Stack, dtype: torch.dtype) -> Tensor:
    """As `baton_kernels.dense.mxfp4_weight.dequantise_mxfp4`; columns in their own order."""
    experts, lines, features, _ = stack.values.shape
    out = torch.empty(experts, features, stack.columns, dtype=dtype, device=stack.values.device)
    _mxfp4_kernel[(triton.cdiv(features, ROWS), lines, experts)](
        stack.values.view(torch.int16), stack.scales, out, features, stack.columns, lines, ROWS, LINE_COLUMNS, BLOCK
    )
    return out
