"""The feed-forward block of a layer with experts, hidden_size → hidden_size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.model.layers.linear import Linear, Projection
from baton_kernels.experts.corrected_routing import route_corrected
from baton_kernels.experts.expert_inputs import Correction, Routing, Stacks
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
class CorrectedRouter:
    """A layer's choice of experts by scores with a bias, on every device by torch."""

    weight: Tensor  # [experts, hidden_size] float32
    bias: Tensor | None  # [experts] float32
    per_token: int
    normalised: bool
    correction: Correction

    def __call__(self, x: Tensor) -> Routing:
        return route_corrected(x, self.weight, self.bias, self.per_token, self.normalised, self.correction)


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts' weights as one stack of each projection, on a GPU."""

    router: Router | CorrectedRouter
    stacks: Stacks

    def __call__(self, x: Tensor) -> Tensor:
        return self.routed(x, self.router(x))

    def routed(self, x: Tensor, routing: Routing) -> Tensor:
        """The sum of the experts that a routing gives each row."""
        return experts(x, self.stacks, routing)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """Each expert's weights as the device multiplies them fastest; the host loops over the experts that tokens take."""

    router: Router | CorrectedRouter
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return self.routed(x, self.router(x))

    def routed(self, x: Tensor, routing: Routing) -> Tensor:
        """The sum of the experts that a routing gives each row."""
        total = torch.zeros_like(x)
        self._add(total, x, routing)
        return total

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add self(x) to `total`, experts in ascending order."""
        self._add(total, x, self.router(x))

    def _add(self, total: Tensor, x: Tensor, routing: Routing) -> None:
        shares, chosen = routing
        for expert in torch.unique(chosen).tolist():
            tokens, place = (chosen == expert).nonzero(as_tuple=True)
            y = self.down[expert](self.gate_up[expert].gated(x.index_select(0, tokens)))
            total.index_add_(0, tokens, y * shares[tokens, place][:, None].to(y.dtype))


@dataclass(frozen=True, slots=True)
class InputScaledExperts:
    """Experts whose inputs are multiplied with a token's shares, instead of their outputs (Llama 4)."""

    experts: StackedExperts | SeparateExperts

    def __call__(self, x: Tensor) -> Tensor:
        shares, chosen = self.experts.router(x)
        rows = (x[:, None] * shares[..., None].to(x.dtype)).flatten(0, 1)
        alone = Routing(torch.ones_like(shares).view(-1, 1), chosen.view(-1, 1))
        return self.experts.routed(rows, alone).view(*shares.shape, -1).sum(1)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class WithSharedExpert:
    """Chosen experts and a block that every token takes, added up."""

    experts: StackedExperts | SeparateExperts | InputScaledExperts
    shared: Projection
    gate: Tensor | None  # [1, hidden_size]
    """The shared block is multiplied with the sigmoid of its product."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.experts(x).add_(self._shared(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        shared = self._shared(x)
        self.experts.add_to(total, x)
        total.add_(shared)

    def _shared(self, x: Tensor) -> Tensor:
        y = self.shared(x)
        return y if self.gate is None else y * torch.sigmoid(functional.linear(x, self.gate))
