"""The head of a model that changes its logits: divided by a factor, or capped."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from baton_engine.model.layers.linear import Projection


@dataclass(frozen=True, slots=True)
class AdjustedHead:
    """Logits of a head as all their readers get them: c · tanh(l / (d · c)), without a cap l / d. Float32."""

    head: Projection
    divisor: float
    cap: float | None

    def __call__(self, x: Tensor) -> Tensor:
        logits = self.head(x).float()
        if self.divisor != 1.0:
            logits = logits.div_(self.divisor)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


def adjust_head(head: Projection, divisor: float, cap: float | None) -> Projection:
    """The head with the changes of its logits, if there are any."""
    return head if divisor == 1.0 and cap is None else AdjustedHead(head, divisor, cap)
