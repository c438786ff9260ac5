"""RMSNorm in Triton: one row a program, float32 accumulation, the residual addition in the same pass. The kernel
also applies the scales of the product before it and rounds for the product after it, where callers ask for that.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.dense.gpu.rounded_activations import GREATEST, greatest_of_rows, rounded_codes
from baton_kernels.dense.rounded_rows import RoundedRows, ScaledProduct, scales_apart
from baton_kernels.launching.dependent_launch import after_previous, chain

ROUNDED_ROWS = 512
"""Most rows whose rounding gains from twice the warps: hardly any program shares a multiprocessor."""


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    row_scale_ptr,
    scale_ptr,
    codes_ptr,
    code_scale_ptr,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    SCALED: tl.constexpr,
    TOP: tl.constexpr,
    CHAINED: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    row = number * H
    column = tl.arange(0, BLOCK)
    inside = column < H
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)  # [H]; nothing writes it, nor the scales
    scales = 1.0
    if SCALED:
        scales = tl.load(scale_ptr + column, mask=inside, other=0.0)
    after_previous(CHAINED)
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)  # [H]
    if SCALED:
        x = (x.to(tl.float32) * (tl.load(row_scale_ptr + number) * scales)).to(x.dtype)
    if ADD:
        residual = tl.load(residual_ptr + row + column, mask=inside, other=0.0)  # [H]
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + row + column, x, mask=inside)
    x32 = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x32 * x32, axis=0) / H + eps)
    normed = ((x32 * scale).to(x.dtype).to(tl.float32) * weight.to(tl.float32)).to(x.dtype)
    tl.store(out_ptr + row + column, normed, mask=inside)
    if TOP > 0:
        wide = tl.reshape(tl.where(inside, normed.to(tl.float32), 0.0), (1, BLOCK))
        greatest = greatest_of_rows(wide)
        codes = tl.reshape(rounded_codes(wide, greatest, codes_ptr.dtype.element_ty, TOP, 1, BLOCK), (BLOCK,))
        tl.store(codes_ptr + row + column, codes, mask=inside)
        tl.store(code_scale_ptr + number + tl.arange(0, 1), greatest / TOP)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `baton_kernels.dense.rms_norm.rms_norm`."""
    out = torch.empty_like(x)
    _launch(x, x, weight, out, out, eps, add=False)
    return out


def add_rms_norm_triton(
    x: Tensor | ScaledProduct, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """As `baton_kernels.dense.rms_norm.add_rms_norm`."""
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _launch(x, residual, weight, out, total, eps, add=True)
    return out, total


def add_rms_norm_rounded(
    x: Tensor | ScaledProduct, residual: Tensor, weight: Tensor, eps: float, codes: torch.dtype
) -> tuple[RoundedRows, Tensor]:
    """The same, with the normed rows in codes of a dtype of GREATEST too. H is a multiple of 16."""
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    rounded = torch.empty(residual.shape, dtype=codes, device=residual.device)
    scales = torch.empty(residual.shape[0], 1, dtype=torch.float32, device=residual.device)
    _launch(x, residual, weight, out, total, eps, add=True, rounded=(rounded, scales))
    return RoundedRows(out, rounded, scales), total


def _launch(
    x: Tensor | ScaledProduct,
    residual: Tensor,
    weight: Tensor,
    out: Tensor,
    total: Tensor,
    eps: float,
    add: bool,
    rounded: tuple[Tensor, Tensor] | None = None,
) -> None:
    rows, hidden = residual.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(hidden)
    many = rounded is not None and rows <= ROUNDED_ROWS
    warps = min(16 if many else 8, max(4, block // (256 if many else 512)))
    launch = chain(residual)
    values, row_scales, scales = scales_apart(x)
    codes, code_scales = (out, weight) if rounded is None else rounded
    top = 0.0 if rounded is None else GREATEST[codes.dtype]
    _rms_norm_kernel[(rows,)](
        values, residual, weight, out, total, row_scales, scales, codes, code_scales, eps, hidden, block, add,
        scales is not None, top, bool(launch), num_warps=warps, **launch,
    )  # fmt: skip
