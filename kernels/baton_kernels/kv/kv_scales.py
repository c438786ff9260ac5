"""KV kept as float8 (e4m3): a pool element is value / scale, one float32 scale for each (layer, K or V, kv head).

e4m3 has 3 bits of mantissa from 2⁻⁶ to 448 whatever the scale, so a scale only has to keep the values inside: no
calibration, and two workers of one model agree because scales follow from its weights. Scales are powers of two, so
dividing rounds nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

KV_FP8 = torch.float8_e4m3fn
GREATEST = 448.0
"""Greatest value of e4m3; larger values are stored as this."""


def to_pool(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """values [...] over scale (broadcast), clamped and rounded to the pool's dtype."""
    return (values.float() / scale).clamp(-GREATEST, GREATEST).to(dtype)


def as_bytes(kv: Tensor) -> Tensor:
    """A view that every torch op takes: float8 as uint8, anything else unchanged."""
    return kv.view(torch.uint8) if kv.dtype == KV_FP8 else kv


def check_scales(kv_pool: Tensor, kv_scales: Tensor | None) -> None:
    """Raise ValueError unless scales [layers, 2, kv_heads] are given exactly for a float8 pool."""
    expected = kv_pool.shape[1:4]
    if kv_pool.dtype != KV_FP8:
        if kv_scales is not None:
            raise ValueError(f"kv_scales: given for a pool of {kv_pool.dtype}; only {KV_FP8} has scales")
    elif kv_scales is None or kv_scales.shape != expected:
        shape = None if kv_scales is None else tuple(kv_scales.shape)
        raise ValueError(f"kv_scales: {shape} for a pool of {KV_FP8}; {tuple(expected)} is needed")
    elif not kv_pool.is_cuda:
        raise ValueError(f"kv_pool: {KV_FP8} on {kv_pool.device}; it is read on GPUs only")
