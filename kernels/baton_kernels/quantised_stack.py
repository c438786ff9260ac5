"""Stacks of experts' weights of 8 bits as a GPU streams them: weights packed as in `quantised_weight`, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.quantised_weight import GROUP, QuantisedWeight, column_order


@dataclass(frozen=True, slots=True)
class QuantisedStack:
    """Weights [experts, features, columns]."""

    values: Tensor
    """[E, N, K]: uint8 of e4m3, or int8, columns in stored order."""
    scales: Tensor
    """float32 [E, N], or of blocks of 128 x 128 [E, N / 128, K / 128]."""

    @property
    def has_blocks(self) -> bool:
        return self.scales.dim() == 3


def stacked(parts: Sequence[QuantisedWeight], sides: int) -> QuantisedStack | None:
    """One weight of each expert; `sides` are products one below the other in it (gate and up: 2). None where they have
    not 8 bits each and all a scale a channel, or all blocks of which none reaches into two sides."""
    first = parts[0]
    blocks = [part.blocks for part in parts if part.blocks is not None]
    has_blocks = len(blocks) == len(parts) and first.values.shape[0] // sides % GROUP == 0
    for part in parts:
        alike = part.bits == 8 and part.order is None and part.is_float == first.is_float
        if not alike or not (has_blocks or part.scales.dim() == 1):
            return None
    scales = torch.stack(blocks if has_blocks else [part.scales for part in parts])
    return QuantisedStack(torch.stack([part.values for part in parts]), scales)


def dequantise_stack(stack: QuantisedStack, dtype: torch.dtype) -> Tensor:
    """W [E, N, K] with columns in their own order, rounded to the dtype once."""
    values = column_order(stack.values.flatten(0, 1)).view(stack.values.shape)
    codes = (values if values.dtype == torch.int8 else values.view(torch.float8_e4m3fn)).float()
    scales = stack.scales
    if not stack.has_blocks:
        return (codes * scales[..., None]).to(dtype)
    return (codes * scales.repeat_interleave(GROUP, 1).repeat_interleave(GROUP, 2)).to(dtype)
