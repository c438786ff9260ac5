"""RMSNorm in Triton: one row a program, float32 accumulation, the residual addition in the same pass."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent_launch import after_previous, chain


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    CHAINED: tl.constexpr,
):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64) * H
    column = tl.arange(0, BLOCK)
    inside = column < H
    x = tl.load(x_ptr + row + column, mask=inside, other=0.0)  # [H]
    if ADD:
        residual = tl.load(residual_ptr + row + column, mask=inside, other=0.0)  # [H]
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + row + column, x, mask=inside)
    x32 = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x32 * x32, axis=0) / H + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)  # [H]
    normed = (x32 * scale).to(x.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + row + column, normed.to(x.dtype), mask=inside)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `baton_kernels.rms_norm.rms_norm`."""
    out = torch.empty_like(x)
    _launch(x, x, weight, out, out, eps, add=False)
    return out


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `baton_kernels.rms_norm.add_rms_norm`."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, weight, out, total, eps, add=True)
    return out, total


def _launch(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, add: bool) -> None:
    rows, hidden = x.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(hidden)
    warps = 4 if block <= 2048 else 8
    launch = chain(x)
    _rms_norm_kernel[(rows,)](
        x, residual, weight, out, total, eps, hidden, block, add, bool(launch), num_warps=warps, **launch
    )
