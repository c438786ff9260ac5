"""The head of a model that changes its logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from baton_engine.model.layers.linear import Projection


@dataclass(frozen=True, slots=True)
class AdjustedHead:
    """Logits of a head as all their readers get them: c · tanh(logits / c). Float32."""

    head: Projection
    cap: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(x).float().div_(self.cap).tanh_().mul_(self.cap)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


def adjust_head(head: Projection, cap: float | None) -> Projection:
    """The head with the changes of its logits, if there are any."""
    return head if cap is None else AdjustedHead(head, cap)
