"""Stacks of experts' weights of 8 and 4 bits as a GPU streams them: weights packed as in `quantised_weight`, side by
side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.dense.quantised_weight import GROUP, QuantisedWeight, dequantise


@dataclass(frozen=True, slots=True)
class QuantisedStack:
    """Weights [experts, features, columns]."""

    values: Tensor
    """[E, N, bytes] as in `QuantisedWeight`."""
    scales: Tensor
    """8 bits: float32 [E, N], or of blocks of 128 x 128 [E, N / 128, K / 128]. 4 bits: bfloat16 of groups [E, K / 128,
    N]."""
    columns: int
    bits: int = 8
    zeros: Tensor | None = None
    """Zero points of 4 bits plus 128, bfloat16 [E, K / 128, N]."""
    rounds_inputs: bool = False
    """True if many rows are multiplied in 8 bits too, as in `QuantisedWeight`."""

    @property
    def has_blocks(self) -> bool:
        return self.bits == 8 and self.scales.dim() == 3

    def part(self, expert: int) -> QuantisedWeight:
        """An expert's weight, sharing the values."""
        scales = self.scales[expert]
        if self.has_blocks:
            scales = scales.repeat_interleave(GROUP, 0).t().contiguous()
        zeros = None if self.zeros is None else self.zeros[expert]
        arrived = torch.zeros(0, dtype=torch.int32, device=scales.device)
        values, rounds = self.values[expert], self.rounds_inputs
        return QuantisedWeight(values, scales, zeros, self.columns, self.bits, arrived, rounds_inputs=rounds)


def stacked(parts: Sequence[QuantisedWeight], sides: int) -> QuantisedStack | None:
    """One weight of each expert; `sides` are products one below the other in it (gate and up: 2). None where they are
    not stored alike, columns have an order, or 8 bits have scales other than of channels, or of blocks of which none
    reaches into two sides."""
    first = parts[0]
    for part in parts:
        kinds = [(p.bits, p.is_float, p.zeros is None, p.blocks is None, p.scales.dim()) for p in (part, first)]
        if part.order is not None or kinds[0] != kinds[1]:
            return None
    values, rounds = torch.stack([part.values for part in parts]), all(part.rounds_inputs for part in parts)
    if first.bits == 4:
        zeros = [part.zeros for part in parts if part.zeros is not None]
        scales = torch.stack([part.scales for part in parts])
        return QuantisedStack(values, scales, first.columns, 4, torch.stack(zeros) if zeros else None)
    if first.scales.dim() == 1:
        return QuantisedStack(values, torch.stack([p.scales for p in parts]), first.columns, rounds_inputs=rounds)
    blocks = [part.blocks for part in parts if part.blocks is not None]
    if not blocks or first.values.shape[0] // sides % GROUP:
        return None
    return QuantisedStack(values, torch.stack(blocks), first.columns, rounds_inputs=rounds)


def dequantise_stack(stack: QuantisedStack, dtype: torch.dtype) -> Tensor:
    """W [E, N, K] with columns in the order of the codes, rounded to the dtype once."""
    return torch.stack([dequantise(stack.part(expert), dtype) for expert in range(len(stack.values))])
