"""RMSNorm with its weight, kept as the device multiplies fastest.

    norm(x) = x / sqrt(mean(x²) + eps) · weight = x / sqrt(|x|² + H·eps) · (weight · sqrt(H))

The right-hand form is three torch calls for float32 on the CPU once weight · sqrt(H) and sqrt(H·eps) are stored (4 µs a
row against 12 for the left one); its result differs by rounding only. Elsewhere the kernels' op is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton_kernels.rms_norm import add_rms_norm, rms_norm


class RmsNorm(Protocol):
    """Over the last dimension: x [T, H] contiguous → [T, H] in x's dtype."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual). Both arguments belong to the op afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class KernelRmsNorm:
    weight: Tensor  # [H]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class ScaledRmsNorm:
    """float32 on the CPU."""

    scaled_weight: Tensor  # [H]: weight · sqrt(H)
    floor: Tensor  # []: sqrt(H · eps)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return x.div(length.hypot_(self.floor)).mul_(self.scaled_weight)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = residual.add_(x)
        return self(total), total


def pack_norm(weight: Tensor, eps: float) -> RmsNorm:
    """The form for the weight's device and dtype."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return KernelRmsNorm(weight, eps)
    size = float(weight.shape[0])
    return ScaledRmsNorm(weight * size**0.5, torch.tensor((size * eps) ** 0.5))
