"""RMSNorm, alone and fused with the residual addition before it.

    y = weight * (x / sqrt(mean(x²) + eps))            x [T, H], weight [H]

The mean and the division are done in float32 and rounded to x's dtype before the weight is applied, as the Hugging
Face models do. The weight may be float32 whatever x is.

Where products have 8 bits on both sides, the scales of the product before it and the rounding of its result go along
(`rounded_rows`).

Bytes: rms_norm reads and writes T·H elements; add_rms_norm reads 2·T·H and writes 2·T·H (unfused: one read more).
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.dense.rounded_rows import RoundedRows, ScaledProduct


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula above, written out. x [T, H], weight [H] → [T, H] in x's dtype."""
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * (x32 * scale).to(x.dtype)).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual), the sum rounded to x's dtype first."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension: x [T, H] contiguous, weight [H] → [T, H] in x's dtype."""
    if x.is_cuda:
        from baton_kernels.dense.gpu.rms_norm import rms_norm_triton

        return rms_norm_triton(x, weight, eps)
    return _rms_norm_cpu(x, weight, eps)


def add_rms_norm(x: Tensor | ScaledProduct, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add, then normalise: x, residual [T, H] → (normed [T, H], new residual [T, H]). The inputs are not changed."""
    if residual.is_cuda:
        from baton_kernels.dense.gpu.rms_norm import add_rms_norm_triton

        return add_rms_norm_triton(x, residual, weight, eps)
    x = x.product() if isinstance(x, ScaledProduct) else x
    total = x + residual
    return _rms_norm_cpu(total, weight, eps), total


def add_rms_norm_rounded(
    x: Tensor | ScaledProduct, residual: Tensor, weight: Tensor, eps: float, codes: torch.dtype
) -> tuple[RoundedRows, Tensor]:
    """The same on a GPU, with the normed rows also in codes of e4m3 or int8. H is a multiple of 16."""
    from baton_kernels.dense.gpu import rms_norm as on_gpu

    return on_gpu.add_rms_norm_rounded(x, residual, weight, eps, codes)


def _rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype != torch.float32:
        return rms_norm_reference(x, weight, eps)
    return (x * inverse_rms(x, eps)).mul_(weight)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x²) + eps) over the last dimension, kept as 1. One norm op: half the time of square, mean, add,
    rsqrt."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.mul_(norm).mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
