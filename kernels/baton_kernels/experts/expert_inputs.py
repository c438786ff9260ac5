"""Inputs of a mixture of experts: which experts each token takes, and a layer's weights in the forms that a GPU has
kernels for.

H is the hidden size, F an expert's inner one, E the number of experts. Gate comes first in `gate_up`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from baton_kernels.dense.mxfp4_stack import Mxfp4Stack
from baton_kernels.dense.mxfp4_weight import dequantise_mxfp4
from baton_kernels.dense.quantised_stack import QuantisedStack


class Routing(NamedTuple):
    """The experts of T tokens, k each, and their shares in the sum."""

    shares: Tensor  # float32 [T, k]
    experts: Tensor  # int64 [T, k]

    @property
    def pairs(self) -> int:
        """Number of pairs of a token and an expert."""
        return self.experts.numel()


@dataclass(frozen=True, slots=True)
class Correction:
    """How a router with a bias that corrects its choice takes groups of experts, and weighs experts."""

    groups: int
    """Groups of equally many experts, at least two in each; 1: there are none."""
    groups_per_token: int
    """Groups that a token may take experts of."""
    scale: float
    """Factor of all shares."""
    is_softmax: bool = False
    """True: scores are a softmax over all experts; False: sigmoids of logits."""
    least_sum: float = 1e-20
    """Sum of the chosen scores below which shares no longer add up to 1."""


@dataclass(frozen=True, slots=True)
class PlainStacks:
    """Weights of 16 bits, gated with SwiGLU. Rows of H and F have whole 16 bytes."""

    gate_up: Tensor  # [E, 2F, H]
    down: Tensor  # [E, H, F]

    @property
    def count(self) -> int:
        return self.gate_up.shape[0]


@dataclass(frozen=True, slots=True)
class BiasedStacks:
    """Weights of 16 bits with biases, gated with the clamped gate of gpt-oss."""

    gate_up: Tensor  # [E, 2F, H]
    gate_up_bias: Tensor  # [E, 2F]
    down: Tensor  # [E, H, F]
    down_bias: Tensor  # [E, H]
    limit: float
    """Clamp of gate and up."""
    alpha: float
    """Factor in the gate's sigmoid."""

    @property
    def count(self) -> int:
        return self.gate_up.shape[0]


@dataclass(frozen=True, slots=True)
class Mxfp4Stacks:
    """The same with weights in MXFP4, on a Hopper GPU. H and F are multiples of 16."""

    gate_up: Mxfp4Stack
    gate_up_bias: Tensor
    down: Mxfp4Stack
    down_bias: Tensor
    limit: float
    alpha: float

    @property
    def count(self) -> int:
        return self.gate_up.values.shape[0]

    def dequantised(self, dtype: torch.dtype) -> BiasedStacks:
        gate_up, down = dequantise_mxfp4(self.gate_up, dtype), dequantise_mxfp4(self.down, dtype)
        return BiasedStacks(gate_up, self.gate_up_bias, down, self.down_bias, self.limit, self.alpha)


@dataclass(frozen=True, slots=True)
class QuantisedStacks:
    """Weights of 8 or 4 bits, gated with SwiGLU, on a Hopper GPU. Rows of H and F have whole 16 bytes."""

    gate_up: QuantisedStack
    down: QuantisedStack

    @property
    def count(self) -> int:
        return self.gate_up.values.shape[0]


Stacks = PlainStacks | BiasedStacks | Mxfp4Stacks | QuantisedStacks
"""All experts of a layer, in one of the forms that `experts` multiplies."""
