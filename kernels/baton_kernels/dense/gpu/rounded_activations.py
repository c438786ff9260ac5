"""Rows of activations in e4m3 or integers of 8 bits with a scale each, or in e4m3 with one for each 128 columns, in
Triton; and the scaling, gating and rounding of a product of such rows that had no scales applied. Columns are in the
order of stored quantised weights (`quantised_weight`).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.dense.quantised_weight import GROUP
from baton_kernels.launching.dependent_launch import after_previous, chain

GREATEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""The code of a row's greatest value, by the codes' dtype."""
LIBRARY_ROWS = 4
"""Number whose multiples of rows cuBLAS takes with scales of groups: 16 bytes of float32."""


@triton.jit
def _stored(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x [ROWS, COLUMNS] with columns in stored order: of every 16, 2q, 2q + 8, 2q + 1 and 2q + 9 side by side."""
    halves = tl.reshape(x, (ROWS * COLUMNS // 16, 2, 4, 2))
    return tl.reshape(tl.permute(halves, (0, 2, 3, 1)), (ROWS, COLUMNS))


@triton.jit
def greatest_of_rows(x):
    """Find the greatest size in each row of x [R, C] → float32 [R]."""
    return tl.maximum(tl.max(tl.abs(x), 1), 1e-12)


@triton.jit
def rounded_codes(x, greatest, dtype: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows in e4m3 or int8, rounded to nearest, the greatest as TOP, in stored order."""
    scaled = x * (TOP / greatest)[:, None]
    if dtype == tl.int8:
        # Added to 1.5 · 2²³, a float has no bits for fractions: they are rounded away, ties to even.
        scaled = (scaled + 12582912.0) - 12582912.0
    return _stored(scaled.to(dtype), ROWS, COLUMNS)


@triton.jit
def _rows_kernel(x_ptr, out_ptr, scale_ptr, K, BLOCK: tl.constexpr, TOP: tl.constexpr, CHAINED: tl.constexpr):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    place = row * K + tl.arange(0, BLOCK)[None, :]
    inside = tl.arange(0, BLOCK)[None, :] < K
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)  # [1, BLOCK] of [K]
    greatest = greatest_of_rows(x)
    tl.store(out_ptr + place, rounded_codes(x, greatest, out_ptr.dtype.element_ty, TOP, 1, BLOCK), mask=inside)
    tl.store(scale_ptr + row + tl.arange(0, 1), greatest / TOP)


@triton.jit
def _groups_kernel(
    x_ptr, out_ptr, scale_ptr, K, scale_stride,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr, GATED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    place = group[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = place < K
    own_ptr = x_ptr + row * (2 * K if GATED else K)
    stored = tl.load(own_ptr + place, mask=inside, other=0.0)  # [GROUPS, WIDTH]
    x = stored.to(tl.float32)
    if GATED:  # rounded as the kernel of SwiGLU rounds, so that both ways give the same codes
        silu = (x / (1.0 + tl.exp(-x))).to(stored.dtype).to(tl.float32)
        up = tl.load(own_ptr + K + place, mask=inside, other=0.0).to(tl.float32)
        x = (silu * up).to(stored.dtype).to(tl.float32)
    greatest = greatest_of_rows(x)
    tl.store(out_ptr + row * K + place, rounded_codes(x, greatest, tl.float8e4nv, 448.0, GROUPS, WIDTH), mask=inside)
    tl.store(scale_ptr + group * scale_stride + row, greatest / 448.0, mask=group * WIDTH < K)


@triton.jit
def _summed(y_ptr, place, part_stride, inside, PARTS: tl.constexpr):
    """Parts of a product, added."""
    total = tl.load(y_ptr + place, mask=inside, other=0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(y_ptr + part * part_stride + place, mask=inside, other=0)
    return total.to(tl.float32)


@triton.jit
def _scale_kernel(
    y_ptr, row_scale_ptr, scale_ptr, bias_ptr, out_ptr, N, part_stride,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < N
    y = _summed(y_ptr, row * N + feature, part_stride, inside, PARTS)  # [BLOCK] of [N]
    scaled = y * (tl.load(row_scale_ptr + row) * tl.load(scale_ptr + feature, mask=inside, other=0.0))
    if BIAS:
        scaled += tl.load(bias_ptr + feature, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * N + feature, scaled.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _side(y_ptr, row_scale, scale_ptr, bias_ptr, feature, inside, SCALED: tl.constexpr, BIAS: tl.constexpr):
    y = tl.load(y_ptr + feature, mask=inside, other=0.0)
    wide = y.to(tl.float32)
    if SCALED:
        return wide
    wide *= row_scale * tl.load(scale_ptr + feature, mask=inside, other=0.0)
    if BIAS:
        wide += tl.load(bias_ptr + feature, mask=inside, other=0.0).to(tl.float32)
    return wide.to(y.dtype).to(tl.float32)


@triton.jit
def _swiglu_kernel(
    y_ptr, row_scale_ptr, scale_ptr, bias_ptr, out_ptr, out_scale_ptr, F,
    BLOCK: tl.constexpr, TOP: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, BLOCK)[None, :]
    inside = feature < F
    scale = 1.0 if SCALED else tl.load(row_scale_ptr + row)
    own_ptr = y_ptr + row * 2 * F
    gate = _side(own_ptr, scale, scale_ptr, bias_ptr, feature, inside, SCALED, BIAS)  # [1, BLOCK] of [F]
    up = _side(own_ptr + F, scale, scale_ptr + F, bias_ptr + F, feature, inside, SCALED, BIAS)
    x = gate / (1.0 + tl.exp(-gate)) * up
    greatest = greatest_of_rows(x)
    tl.store(
        out_ptr + row * F + feature, rounded_codes(x, greatest, out_ptr.dtype.element_ty, TOP, 1, BLOCK), mask=inside
    )
    tl.store(out_scale_ptr + row + tl.arange(0, 1), greatest / TOP)


def scale_product(
    y: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """y [T, N] contiguous times row_scales [T, 1] and scales [N], plus bias [N]: into `out`, or in place. Parts of a
    product y [parts, T, N] are added up first."""
    rows, features = y.shape[-2:]
    parts = y.shape[0] if y.dim() == 3 else 1
    out = y if out is None else out
    block = min(1024, triton.next_power_of_2(features))
    launch = chain(y)
    _scale_kernel[(rows, triton.cdiv(features, block))](
        y, row_scales, scales, scales if bias is None else bias, out, features, rows * features, block, parts,
        bias is not None, bool(launch), **launch,
    )  # fmt: skip
    return out


def swiglu_rounded(
    y: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None, codes: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Scale y [T, 2F] as `scale_product` does, gate it and round it → codes of a dtype of GREATEST [T, F] in stored
    order and float32 scales [T, 1]."""
    return _gated_codes(y, row_scales, scales, bias, codes, is_scaled=False)


def gate_rounded(y: Tensor, codes: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same of a product y [T, 2F] that is scaled."""
    return _gated_codes(y, y, y, None, codes, is_scaled=True)


def _gated_codes(
    y: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None, codes: torch.dtype, *, is_scaled: bool
) -> tuple[Tensor, Tensor]:
    rows, inner = y.shape[0], y.shape[1] // 2
    out = torch.empty(rows, inner, dtype=codes, device=y.device)
    out_scales = torch.empty(rows, 1, dtype=torch.float32, device=y.device)
    block = triton.next_power_of_2(inner)
    launch = chain(y)
    warps = min(16 if is_scaled else 32, max(1, block // 512))
    _swiglu_kernel[(rows,)](
        y, row_scales, scales, scales if bias is None else bias, out, out_scales, inner, block, GREATEST[codes],
        is_scaled, bias is not None, bool(launch), num_warps=warps, **launch,
    )  # fmt: skip
    return out, out_scales


def quantise_rows(x: Tensor, codes: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """x [T, K] contiguous → codes of a dtype of GREATEST [T, K] in stored order, and float32 scales [T, 1]."""
    rows, columns = x.shape
    out = torch.empty(rows, columns, dtype=codes, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    launch = chain(x)
    _rows_kernel[(rows,)](
        x, out, scales, columns, block, GREATEST[codes], bool(launch), num_warps=min(16, max(1, block // 1024)),
        **launch,
    )  # fmt: skip
    return out, scales


def quantise_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] contiguous → e4m3 [T', K] in stored order, and float32 scales [T', ⌈K/128⌉], whose rows are neighbours.

    T' is T rounded up to LIBRARY_ROWS; the contents of added rows are undefined.
    """
    return _group_codes(x, x.shape[1], is_gated=False)


def gate_groups(y: Tensor) -> tuple[Tensor, Tensor]:
    """The same of SwiGLU of a product y [T, 2K]: `quantise_groups(swiglu(y))` in one pass, bit for bit."""
    return _group_codes(y, y.shape[1] // 2, is_gated=True)


def _group_codes(x: Tensor, columns: int, *, is_gated: bool) -> tuple[Tensor, Tensor]:
    rows = x.shape[0]
    padded = triton.cdiv(rows, LIBRARY_ROWS) * LIBRARY_ROWS
    out = torch.empty(padded, columns, dtype=torch.float8_e4m3fn, device=x.device)
    groups = triton.cdiv(columns, GROUP)
    scales = torch.empty(groups, padded, dtype=torch.float32, device=x.device)
    per_program = min(16, triton.next_power_of_2(groups))
    launch = chain(x)
    _groups_kernel[(rows, triton.cdiv(groups, per_program))](
        x, out, scales, columns, padded, per_program, GROUP, is_gated, bool(launch),
        num_warps=per_program // 4 or 1, **launch,
    )  # fmt: skip
    return out, scales.t()
