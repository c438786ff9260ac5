"""The norm after a sum over ranks: one exchange does both, whatever the projection before and the one after it read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from baton_engine.collectives.collective import RankShare
from baton_engine.model.layers.linear import Projection, ReadsRounded, RowLinear
from baton_engine.model.layers.norm import RoundingRmsNorm, WeightedRmsNorm
from baton_engine.model.layers.summed import sum_over_ranks
from baton_kernels.dense.rms_norm import add_rms_norm
from baton_kernels.dense.rounded_rows import RoundedRows, plain


class Twice:
    """The collective of two ranks that bring the same. Records its calls."""

    share = RankShare(0, 2)

    def __init__(self) -> None:
        self.calls: list[str] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        self.calls.append("sum")
        return x + x

    def all_reduce_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        self.calls.append("sum and norm")
        return add_rms_norm(x + x, residual, weight, eps)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat((x, x), -1)

    def check(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class EightBits(ReadsRounded):
    """As a projection of 8 bits is used."""

    linear: RowLinear

    def __call__(self, x: Tensor | RoundedRows) -> Tensor:
        return self.linear(plain(x))

    def product(self, x: Tensor | RoundedRows) -> Tensor:
        return self(x)

    def rounded_dtype(self, rows: Tensor) -> torch.dtype | None:
        return None

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@pytest.mark.parametrize("rounds", [False, True], ids=["norm", "norm that would round many rows"])
@pytest.mark.parametrize("eight_bits", [False, True], ids=["16 bits", "8 bits"])
def test_sum_and_norm_are_one_exchange(eight_bits: bool, rounds: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    weight, x, residual = (torch.randn(shape, generator=draw) for shape in ((8, 8), (3, 8), (3, 8)))
    linear, collective = RowLinear(weight, None), Twice()
    block: Projection = EightBits(linear) if eight_bits else linear
    scale = torch.rand(8, generator=draw)
    norm = RoundingRmsNorm(scale, 1e-5, lambda rows: None) if rounds else WeightedRmsNorm(scale, 1e-5)
    normed, total = norm.after(sum_over_ranks(block, collective), x, residual.clone())
    expected, added = add_rms_norm(2 * linear(x), residual, scale, 1e-5)
    assert torch.equal(plain(normed), expected)
    assert torch.equal(total, added)
    assert collective.calls == ["sum and norm"]
