"""The way of activations through the stages of a pipeline: from each stage to the next one, step by step."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from baton_wire.models.sharding.stages import StageShare


class StageRelay(Protocol):
    """One stage's neighbours. All stages carry out the same steps in the same order. Raises RankLostError where a
    neighbour does not come in time."""

    @property
    def share(self) -> StageShare: ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Wait for the residual stream of the stage before."""
        ...

    def send(self, residual: Tensor) -> None:
        """Hand the residual stream on to the next stage."""
        ...
