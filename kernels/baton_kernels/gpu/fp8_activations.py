"""Rows of activations in e4m3 with a scale each, or one for each 128 columns, in Triton; and what follows a product of
such rows that knew of no scales. Columns stand in the order in which quantised weights are stored (`quantised_weight`).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent_launch import after_previous, chain
from baton_kernels.quantised_weight import GROUP

LIBRARY_ROWS = 4
"""cuBLAS takes scales of groups for multiples of so many rows: 16 bytes of float32."""


@triton.jit
def _stored(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x [ROWS, COLUMNS] with columns in stored order: of every 16, 2q, 2q + 8, 2q + 1 and 2q + 9 side by side."""
    halves = tl.reshape(x, (ROWS * COLUMNS // 16, 2, 4, 2))
    return tl.reshape(tl.permute(halves, (0, 2, 3, 1)), (ROWS, COLUMNS))


@triton.jit
def _greatest(x):
    """Of each row [R] of x [R, C], float32."""
    return tl.maximum(tl.max(tl.abs(x), 1), 1e-12)


@triton.jit
def _codes(x, greatest, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows in e4m3, the greatest as 448, in stored order."""
    return _stored((x * (448.0 / greatest)[:, None]).to(tl.float8e4nv), ROWS, COLUMNS)


@triton.jit
def _rows_kernel(x_ptr, out_ptr, scale_ptr, K, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    place = row * K + tl.arange(0, BLOCK)[None, :]
    inside = tl.arange(0, BLOCK)[None, :] < K
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)  # [1, BLOCK] of [K]
    greatest = _greatest(x)
    tl.store(out_ptr + place, _codes(x, greatest, 1, BLOCK), mask=inside)
    tl.store(scale_ptr + row + tl.arange(0, 1), greatest / 448.0)


@triton.jit
def _groups_kernel(
    x_ptr, out_ptr, scale_ptr, K, scale_stride, GROUPS: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr
):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    place = group[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = place < K
    x = tl.load(x_ptr + row * K + place, mask=inside, other=0.0).to(tl.float32)  # [GROUPS, WIDTH]
    greatest = _greatest(x)
    tl.store(out_ptr + row * K + place, _codes(x, greatest, GROUPS, WIDTH), mask=inside)
    tl.store(scale_ptr + group * scale_stride + row, greatest / 448.0, mask=group * WIDTH < K)


@triton.jit
def _scale_kernel(y_ptr, row_scale_ptr, scale_ptr, bias_ptr, N, BLOCK: tl.constexpr, BIAS: tl.constexpr,
                  CHAINED: tl.constexpr):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < N
    y = tl.load(y_ptr + row * N + feature, mask=inside, other=0.0)  # [BLOCK] of [N]
    scaled = y.to(tl.float32) * (tl.load(row_scale_ptr + row) * tl.load(scale_ptr + feature, mask=inside, other=0.0))
    if BIAS:
        scaled += tl.load(bias_ptr + feature, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * N + feature, scaled.to(y.dtype), mask=inside)


@triton.jit
def _side(y_ptr, row_scale, scale_ptr, bias_ptr, feature, inside, BIAS: tl.constexpr):
    y = tl.load(y_ptr + feature, mask=inside, other=0.0)
    scaled = y.to(tl.float32) * (row_scale * tl.load(scale_ptr + feature, mask=inside, other=0.0))
    if BIAS:
        scaled += tl.load(bias_ptr + feature, mask=inside, other=0.0).to(tl.float32)
    return scaled.to(y.dtype).to(tl.float32)


@triton.jit
def _swiglu_kernel(
    y_ptr, row_scale_ptr, scale_ptr, bias_ptr, out_ptr, out_scale_ptr, F,
    BLOCK: tl.constexpr, BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, BLOCK)[None, :]
    inside = feature < F
    row_scale = tl.load(row_scale_ptr + row)
    gate = _side(y_ptr + row * 2 * F, row_scale, scale_ptr, bias_ptr, feature, inside, BIAS)  # [1, BLOCK] of [F]
    up = _side(y_ptr + row * 2 * F + F, row_scale, scale_ptr + F, bias_ptr + F, feature, inside, BIAS)
    x = gate / (1.0 + tl.exp(-gate)) * up
    greatest = _greatest(x)
    tl.store(out_ptr + row * F + feature, _codes(x, greatest, 1, BLOCK), mask=inside)
    tl.store(out_scale_ptr + row + tl.arange(0, 1), greatest / 448.0)


def scale_product(y: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """y [T, N] contiguous becomes y · row_scales [T, 1] · scales [N] + bias [N], in place."""
    rows, features = y.shape
    block = min(1024, triton.next_power_of_2(features))
    launch = chain(y)
    _scale_kernel[(rows, triton.cdiv(features, block))](
        y, row_scales, scales, scales if bias is None else bias, features, block, bias is not None, bool(launch),
        **launch,
    )  # fmt: skip
    return y


def swiglu_rounded(y: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of y [T, 2F], scaled as `scale_product` does and gated: e4m3 [T, F] in stored order and float32 scales [T, 1]."""
    rows, inner = y.shape[0], y.shape[1] // 2
    out = torch.empty(rows, inner, dtype=torch.float8_e4m3fn, device=y.device)
    out_scales = torch.empty(rows, 1, dtype=torch.float32, device=y.device)
    block = triton.next_power_of_2(inner)
    launch = chain(y)
    _swiglu_kernel[(rows,)](
        y, row_scales, scales, scales if bias is None else bias, out, out_scales, inner, block, bias is not None,
        bool(launch), num_warps=min(16, max(1, block // 512)), **launch,
    )  # fmt: skip
    return out, out_scales


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] contiguous → e4m3 [T, K] in stored order, and float32 scales [T, 1]."""
    rows, columns = x.shape
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    launch = chain(x)
    _rows_kernel[(rows,)](
        x, out, scales, columns, block, bool(launch), num_warps=min(16, max(1, block // 1024)), **launch
    )
    return out, scales


def quantise_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] contiguous → e4m3 [T', K] in stored order, and float32 scales [T', ⌈K/128⌉], whose rows are neighbours.

    T' is T rounded up to LIBRARY_ROWS; what the added rows hold is nobody's.
    """
    rows, columns = x.shape
    padded = triton.cdiv(rows, LIBRARY_ROWS) * LIBRARY_ROWS
    out = torch.empty(padded, columns, dtype=torch.float8_e4m3fn, device=x.device)
    groups = triton.cdiv(columns, GROUP)
    scales = torch.empty(groups, padded, dtype=torch.float32, device=x.device)
    per_program = min(16, triton.next_power_of_2(groups))
    launch = chain(x)
    _groups_kernel[(rows, triton.cdiv(groups, per_program))](
        x, out, scales, columns, padded, per_program, GROUP, bool(launch), num_warps=per_program // 4 or 1, **launch
    )
    return out, scales.t()
