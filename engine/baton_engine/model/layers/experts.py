"""The feed-forward block of a layer with experts, hidden_size → hidden_size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.model.layers.linear import Linear
from baton_kernels.experts.expert_inputs import Routing, Stacks
from baton_kernels.experts.experts import experts, route


@dataclass(frozen=True, slots=True)
class Router:
    """A layer's choice of experts for each token, and their shares."""

    weight: Tensor  # [experts, hidden_size]
    bias: Tensor | None
    per_token: int
    normalised: bool
    arrived: Tensor
    """int32 [1], as `route` takes it."""

    def __call__(self, x: Tensor) -> Routing:
        return route(x, self.weight, self.bias, self.per_token, self.normalised, self.arrived)


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts' weights as one stack of each projection, on a GPU."""

    router: Router
    stacks: Stacks

    def __call__(self, x: Tensor) -> Tensor:
        return experts(x, self.stacks, self.router(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """Each expert's weights as the device multiplies them fastest; the host loops over the experts that tokens take."""

    router: Router
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]

    def __call__(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        self.add_to(total, x)
        return total

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add self(x) to `total`, experts in ascending order."""
        shares, chosen = self.router(x)
        for expert in torch.unique(chosen).tolist():
            tokens, place = (chosen == expert).nonzero(as_tuple=True)
            y = self.down[expert](self.gate_up[expert].gated(x.index_select(0, tokens)))
            total.index_add_(0, tokens, y * shares[tokens, place][:, None].to(y.dtype))
