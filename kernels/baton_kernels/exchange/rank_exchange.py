"""Sums and exchanges between ranks on GPUs.

    rank_sum      out = Σ_r x_r                                          in the order of the ranks, float32
    rank_sum_norm total = residual + Σ_r x_r, out = rms_norm(total)      as `add_rms_norm` of the rounded sum
    rank_gather   out[row, r · n + i] = x_r[row, i]

All ranks make the same calls in the same order, with tensors of the same shape and dtype, and all get the same bits:
each element is added up in one order, and rounded once. Calls may be recorded in graphs; their numbers are counted on
the device. A rank that does not arrive ends all waits of the region for good; `is_lost` says so.

Bytes: `rank_sum` of S bytes writes and reads S, and reads (R − 1)·S of other GPUs up to ONE_SHOT_BYTES and with two
ranks; beyond, 2·(R − 1)/R·S.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from baton_kernels.dense.rms_norm import add_rms_norm_reference
from baton_kernels.exchange.rank_region import SLOT_BYTES, RankRegion, wide_dtype

ONE_SHOT_BYTES: Final = 1 << 20
"""Up to this every rank adds up everything; beyond, a part each, which all read then. Two ranks read as much of each
other either way, so they always add up everything."""


def rank_sum_reference(parts: Sequence[Tensor]) -> Tensor:
    """The formula above, written out: every rank's x, of one shape."""
    total = parts[0].to(wide_dtype(parts[0].dtype))
    for part in parts[1:]:
        total = total + part.to(total.dtype)
    return total.to(parts[0].dtype)


def rank_sum_norm_reference(
    parts: Sequence[Tensor], residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The formula above, written out."""
    return add_rms_norm_reference(rank_sum_reference(parts), residual, weight, eps)


def rank_gather_reference(parts: Sequence[Tensor]) -> Tensor:
    """The formula above, written out."""
    return torch.cat(list(parts), -1)


def rank_sum(x: Tensor, region: RankRegion) -> Tensor:
    """Sums of tensors of floats, of any size: x on the rank's GPU → the sum in a tensor of its own."""
    from baton_kernels.exchange.gpu.rank_sum import LARGE, LAUNCH, one_shot, two_shot

    x = x.contiguous()
    out = torch.empty_like(x)
    add_up = one_shot if x.nbytes <= ONE_SHOT_BYTES or region.ranks == 2 else two_shot
    launch = LAUNCH if x.nbytes < ONE_SHOT_BYTES else LARGE
    most = SLOT_BYTES // x.element_size()
    for piece, target in zip(torch.split(x.view(-1), most), torch.split(out.view(-1), most), strict=True):
        add_up(piece, target, region, launch)
    return out


def norms_together(x: Tensor) -> bool:
    """True where `rank_sum_norm` takes rows of this size: small ones, whose sums every rank adds up whole."""
    return x.nbytes <= ONE_SHOT_BYTES


def rank_sum_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, region: RankRegion) -> tuple[Tensor, Tensor]:
    """x, residual [T, H] contiguous, weight [H] → (normed [T, H], new residual [T, H]). `norms_together(x)` holds."""
    from baton_kernels.exchange.gpu.rank_sum_norm import sum_norm

    return sum_norm(x.contiguous(), residual, weight, eps, region)


def rank_gather(x: Tensor, region: RankRegion) -> Tensor:
    """[..., n] of each rank → [..., ranks · n], in the order of the ranks; any dtype."""
    from baton_kernels.exchange.gpu.rank_gather import gather

    width = x.shape[-1]
    rows = x.reshape(-1, width)
    out = torch.empty(rows.shape[0], region.ranks * width, dtype=x.dtype, device=x.device)
    most = max(1, SLOT_BYTES // max(1, width * x.element_size()))
    if width * x.element_size() > SLOT_BYTES:
        raise ValueError(f"x: rows of {width * x.element_size()} bytes; allowed: up to {SLOT_BYTES}")
    for piece, target in zip(torch.split(rows, most), torch.split(out, most), strict=True):
        gather(piece, target, region)
    return out.view(*x.shape[:-1], region.ranks * width)


def is_lost(region: RankRegion) -> bool:
    """True once a rank has not arrived. Waits for the device."""
    return bool(region.state[-1].item())
