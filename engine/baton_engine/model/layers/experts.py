"""The feed-forward block of a layer with experts, hidden_size → hidden_size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.model.layers.linear import Linear
from baton_kernels.dense.quantised_stack import QuantisedStack
from baton_kernels.experts.experts import (
    BiasedStacks,
    Mxfp4Stacks,
    biased_experts,
    grouped_experts,
    quantised_experts,
    route,
)
from baton_wire.models.decoder_spec import ClampedGate


@dataclass(frozen=True, slots=True)
class Router:
    """Which experts a token takes, and their shares."""

    weight: Tensor  # [experts, hidden_size]
    bias: Tensor | None
    per_token: int
    normalised: bool
    arrived: Tensor
    """int32 [1], as `route` takes it."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return route(x, self.weight, self.bias, self.per_token, self.normalised, self.arrived)


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts' weights as two tensors, on a GPU."""

    router: Router
    gate_up: Tensor  # [experts, 2 · intermediate_size, hidden_size], gate first
    down: Tensor  # [experts, hidden_size, intermediate_size]

    def __call__(self, x: Tensor) -> Tensor:
        return grouped_experts(x, self.gate_up, self.down, *self.router(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class QuantisedExperts:
    """The same as small as they are stored, on a Hopper GPU."""

    router: Router
    gate_up: QuantisedStack
    down: QuantisedStack

    def __call__(self, x: Tensor) -> Tensor:
        return quantised_experts(x, self.gate_up, self.down, *self.router(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class BiasedExperts:
    """All experts' weights and biases as tensors of all, on a GPU (gpt-oss)."""

    router: Router
    stacks: BiasedStacks | Mxfp4Stacks
    gate: ClampedGate

    def __call__(self, x: Tensor) -> Tensor:
        return biased_experts(x, self.stacks, *self.router(x), self.gate.limit, self.gate.alpha)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """Each expert's weights as the device multiplies them fastest; the host goes through the experts that are asked."""

    router: Router
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]

    def __call__(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        self.add_to(total, x)
        return total

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += self(x), experts in ascending order."""
        shares, experts = self.router(x)
        for expert in torch.unique(experts).tolist():
            tokens, place = (experts == expert).nonzero(as_tuple=True)
            y = self.down[expert](self.gate_up[expert].gated(x.index_select(0, tokens)))
            total.index_add_(0, tokens, y * shares[tokens, place][:, None].to(y.dtype))
