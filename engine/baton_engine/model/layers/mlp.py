"""The gated MLP as one projection: down(silu(gate(x)) · up(x)), hidden_size → hidden_size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from baton_engine.model.layers.linear import Linear, QuantisedLinear, ReadsRounded
from baton_kernels.dense.gated_activations import clamped_gate, geglu
from baton_kernels.dense.quantised_linear import quantised_mlp, quantised_mlp_product, rounded_dtype
from baton_kernels.dense.rounded_rows import RoundedRows, ScaledProduct
from baton_wire.models.decoder_spec import ClampedGate, GeluGate

TILE_BYTES: Final = 3 << 19
"""Most of gate and up that is computed at a time on the CPU: the next product finds it in the cache."""

LEAST_TILE_ROWS: Final = 256
"""Fewer rows read the weights too often."""


@dataclass(frozen=True, slots=True)
class GatedMlp:
    gate_up: Linear  # hidden_size → 2 · intermediate_size, gate first
    down: Linear  # intermediate_size → hidden_size
    intermediate_size: int

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.gate_up.gated(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += self(x), some rows at a time."""
        rows = max(LEAST_TILE_ROWS, TILE_BYTES // (2 * self.intermediate_size * x.element_size()))
        if x.shape[0] <= rows:
            self.down.add_to(total, self.gate_up.gated(x))
            return
        for part, part_total in zip(torch.split(x, rows), torch.split(total, rows), strict=True):
            self.down.add_to(part_total, self.gate_up.gated(part))


@dataclass(frozen=True, slots=True)
class QuantisedMlp(ReadsRounded):
    """An MLP of two quantised weights, on a GPU."""

    gate_up: QuantisedLinear
    down: QuantisedLinear

    def __call__(self, x: Tensor | RoundedRows) -> Tensor:
        return quantised_mlp(x, self.gate_up.weight, self.gate_up.bias, self.down.weight, self.down.bias)

    def product(self, x: Tensor | RoundedRows) -> Tensor | ScaledProduct:
        return quantised_mlp_product(x, self.gate_up.weight, self.gate_up.bias, self.down.weight, self.down.bias)

    def rounded_dtype(self, rows: Tensor) -> torch.dtype | None:
        return rounded_dtype(rows, self.gate_up.weight, gated=True)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class OtherGate:
    """A gate and up projection whose gate is not silu's: `gated` alone differs from the product's own."""

    product: Linear
    gate: GeluGate | ClampedGate

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x)

    def gated(self, x: Tensor) -> Tensor:
        match self.gate:
            case GeluGate():
                return geglu(self.product(x))
            case ClampedGate(limit, alpha):
                return clamped_gate(self.product(x), limit, alpha)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self.product.add_to(total, x)


def gated_mlp(gate_up: Linear, down: Linear, intermediate_size: int) -> GatedMlp | QuantisedMlp:
    if isinstance(gate_up, QuantisedLinear) and isinstance(down, QuantisedLinear):
        return QuantisedMlp(gate_up, down)
    return GatedMlp(gate_up, down, intermediate_size)
