"""RoPE tables: cos and sin per position, as transformers computes them for each scaling type.

inv_freq_i = theta^(-2i/D) before scaling; angle(p, i) = p · inv_freq_i; the table repeats the D/2 angles twice because
the rotation pairs dimension i with i + D/2 ("rotate half").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_wire.models.rope_config import (
    AlphaScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)


@dataclass(frozen=True, slots=True)
class RopeTables:
    """cos and sin, each [positions, head_dim]."""

    cos: Tensor
    sin: Tensor


def rope_tables(
    rope: RopeConfig, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device
) -> RopeTables:
    """Tables for positions [0, positions): float32 on the CPU (devices differ in cos and sin), then rounded."""
    inverse = inverse_frequencies(rope, rope.rotated(head_dim), positions)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    factor = attention_factor(rope.scaling)
    still = (0, head_dim // 2 - angles.shape[1])  # pairs that are not rotated: cos 1, sin 0
    cos = torch.nn.functional.pad(angles.cos() * factor, still, value=1.0).repeat(1, 2)
    sin = torch.nn.functional.pad(angles.sin() * factor, still).repeat(1, 2)
    return RopeTables(cos.to(device=device, dtype=dtype), sin.to(device=device, dtype=dtype))


def inverse_frequencies(rope: RopeConfig, head_dim: int, positions: int) -> Tensor:
    """Rotation per position of each pair of the rotated dimensions: [head_dim / 2] float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    powers = rope.theta**exponents
    match rope.scaling:
        case None:
            return 1.0 / powers
        case LinearScaling(factor):
            return (1.0 / powers) / factor
        case AlphaScaling(alpha):
            base: float = rope.theta * alpha ** (head_dim / (head_dim - 2))
            return 1.0 / base**exponents
        case Llama3Scaling():
            return _llama3(1.0 / powers, rope.scaling)
        case YarnScaling():
            return _yarn(powers, rope.scaling, rope.theta, head_dim)
        case LongropeScaling():
            factors = rope.scaling.long_factor if rope.is_long(positions) else rope.scaling.short_factor
            return 1.0 / (torch.tensor(factors) * powers)


def attention_factor(scaling: RopeScaling | None) -> float:
    """Factor of cos and sin: YaRN's or LongRoPE's correction of the attention's temperature, else 1."""
    if isinstance(scaling, LongropeScaling):
        return scaling.attention_factor
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _llama3(inverse: Tensor, scaling: Llama3Scaling) -> Tensor:
    low_wavelength = scaling.original_positions / scaling.low_freq_factor
    high_wavelength = scaling.original_positions / scaling.high_freq_factor
    wavelength = 2 * math.pi / inverse
    scaled = torch.where(wavelength > low_wavelength, inverse / scaling.factor, inverse)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    if span == 0:  # Llama 4 Scout has no step between the two
        return scaled
    smooth = (scaling.original_positions / wavelength - scaling.low_freq_factor) / span
    between = (1 - smooth) * scaled / scaling.factor + smooth * scaled
    is_between = (wavelength >= high_wavelength) & (wavelength <= low_wavelength)
    return torch.where(is_between, between, scaled)


def _yarn(powers: Tensor, scaling: YarnScaling, theta: float, head_dim: int) -> Tensor:
    def dimension_of(rotations: float) -> float:
        """The dimension whose wave makes this many rotations over the original context."""
        return head_dim * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # as transformers does, against a division by zero
    unscaled = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    # Written as transformers does: (1 - unscaled) rounds differently from the ramp, which shows at late positions.
    return (1.0 / (scaling.factor * powers)) * (1 - unscaled) + (1.0 / powers) * unscaled
