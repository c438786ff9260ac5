"""Rows of activations in e4m3 with a scale each, or one for each 128 columns, in Triton; columns in the order in which
quantised weights are stored (`quantised_weight`)."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent_launch import after_previous, chain
from baton_kernels.quantised_weight import GROUP

GREATEST = tl.constexpr(448.0)
"""Of e4m3."""
LIBRARY_ROWS = 4
"""cuBLAS takes scales of groups for multiples of so many rows: 16 bytes of float32."""


@triton.jit
def stored_column(place):
    """The column that stands in a stored place: of every 16, a thread's 2q, 2q + 8, 2q + 1, 2q + 9 side by side."""
    return (place & ~15) + 2 * ((place >> 2) & 3) + 8 * (place & 1) + ((place >> 1) & 1)


@triton.jit
def _rows_kernel(x_ptr, out_ptr, scale_ptr, K, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < K
    x = tl.load(x_ptr + row * K + stored_column(place), mask=inside, other=0.0).to(tl.float32)  # [BLOCK] of [K]
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-12) / GREATEST
    tl.store(out_ptr + row * K + place, (x / scale).to(tl.float8e4nv), mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _groups_kernel(
    x_ptr, out_ptr, scale_ptr, K, scale_stride, GROUPS: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr
):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    place = group[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = place < K
    x = tl.load(x_ptr + row * K + stored_column(place), mask=inside, other=0.0).to(tl.float32)  # [GROUPS, WIDTH]
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-12) / GREATEST
    tl.store(out_ptr + row * K + place, (x / scale[:, None]).to(tl.float8e4nv), mask=inside)
    tl.store(scale_ptr + group * scale_stride + row, scale, mask=group * WIDTH < K)


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
