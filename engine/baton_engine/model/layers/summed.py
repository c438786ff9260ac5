"""Layers whose result needs the other ranks of a worker: sums of projections, and the head's logits.

A rank computes with its part of the columns, or of the vocabulary; every rank gets the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.collectives.collective import Collective
from baton_engine.model.layers.linear import Projection, ReadsRounded
from baton_kernels.dense.rounded_rows import RoundedRows


@dataclass(frozen=True, slots=True)
class SummedProjection:
    """The sum of the ranks' projections."""

    projection: Projection
    collective: Collective

    def __call__(self, x: Tensor) -> Tensor:
        return self.collective.all_reduce(self.projection(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class SummedRounded(ReadsRounded):
    """The same for projections that read rounded rows. Its scales are no matter of the next kernel's: products are
    added up in the model's dtype."""

    projection: ReadsRounded
    collective: Collective

    def __call__(self, x: Tensor | RoundedRows) -> Tensor:
        return self.collective.all_reduce(self.projection(x))

    def product(self, x: Tensor | RoundedRows) -> Tensor:
        return self(x)

    def rounded_dtype(self, rows: Tensor) -> torch.dtype | None:
        return self.projection.rounded_dtype(rows)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


def sum_over_ranks(projection: Projection, collective: Collective) -> Projection:
    """The projection's sum over the ranks, where there are several."""
    if collective.share.ranks == 1:
        return projection
    if isinstance(projection, ReadsRounded):
        return SummedRounded(projection, collective)
    return SummedProjection(projection, collective)


@dataclass(frozen=True, slots=True)
class GatheredHead:
    """The logits of the whole vocabulary from heads of one part each (`vocabulary_part`)."""

    part: Projection  # hidden_size → the rank's part of the vocabulary
    collective: Collective
    width: int
    """Tokens of the longest part."""
    vocab_size: int

    def __call__(self, x: Tensor) -> Tensor:
        logits = self.part(x)
        if logits.shape[1] < self.width:
            logits = functional.pad(logits, (0, self.width - logits.shape[1]))
        gathered = self.collective.all_gather(logits)
        return gathered if gathered.shape[1] == self.vocab_size else gathered[:, : self.vocab_size].contiguous()

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))
