"""Matrix multiplication by a weight, behind the seam at which a quantisation method will plug in.

A `LinearMethod` decides how a weight is stored; what it returns multiplies. Two methods: rows as in the checkpoint
(GPU, and 16-bit types on the CPU), and column panels for float32 on the CPU, where MKL reads a transposed weight up to
twice as fast at the batch sizes of decode (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

PANEL_COLUMNS: Final = 512
"""Width of a column panel: wider rows of a power of two share cache sets, narrower ones call MKL too often."""

WHOLE_COLUMNS: Final = 3_072
"""Up to this many output features a weight is one panel: calls cost more than they gain."""


class Linear(Protocol):
    """y = x Wᵀ + b for x [T, in_features] → [T, out_features], in x's dtype."""

    def __call__(self, x: Tensor) -> Tensor: ...


class LinearMethod(Protocol):
    """How weights are stored on a device and multiplied there."""

    def pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Take over weight [out_features, in_features] and bias [out_features], which already have device and dtype."""
        ...


@dataclass(frozen=True, slots=True)
class RowLinear:
    """The weight as the checkpoint has it, [out_features, in_features]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class RowMethod:
    def pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return RowLinear(weight, bias)


@dataclass(frozen=True, slots=True)
class TransposedLinear:
    """One panel: the weight as [in_features, out_features], contiguous."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """Several panels, each [in_features, width] contiguous; widths add up to out_features."""

    panels: tuple[Tensor, ...]
    widths: tuple[int, ...]
    out_features: int
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], self.out_features)
        for panel, part in zip(self.panels, out.split_with_sizes(self.widths, 1), strict=True):
            torch.mm(x, panel, out=part)
        return out if self.bias is None else out.add_(self.bias)


class PanelMethod:
    def pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if weight.shape[0] <= WHOLE_COLUMNS:
            return TransposedLinear(weight.t().contiguous(), bias)
        panels = tuple(panel.t().contiguous() for panel in torch.split(weight, PANEL_COLUMNS))
        return PanelLinear(panels, tuple(panel.shape[1] for panel in panels), weight.shape[0], bias)


def linear_method(dtype: torch.dtype, device: torch.device) -> LinearMethod:
    """The method for unquantised weights of a dtype on a device."""
    if device.type == "cpu" and dtype == torch.float32:
        return PanelMethod()
    return RowMethod()
