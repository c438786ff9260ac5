"""Layers whose result needs the other ranks of a worker: sums of projections, and the head's logits.

A rank computes with its part of the columns, or of the vocabulary; every rank gets the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.collectives.collective import Collective
from baton_engine.model.layers.linear import Projection, ReadsRounded
from baton_kernels.dense.rounded_rows import RoundedRows, plain

_BELOW_SIGN: Final = 0x7FFF_FFFF
_LOW_WORD: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class SummedProjection:
    """The sum of the ranks' projections."""

    projection: Projection
    collective: Collective

    def __call__(self, x: Tensor) -> Tensor:
        return self.collective.all_reduce(self.projection(x))

    def part(self, x: Tensor | RoundedRows) -> Tensor:
        """This rank's part of the sum."""
        return self.projection(plain(x))

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

    def part(self, x: Tensor | RoundedRows) -> Tensor:
        """This rank's part of the sum."""
        return self.projection(x)

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
class VocabularyShare:
    """One rank's part of the vocabulary, for logits and winners that exist in parts (`vocabulary_part`)."""

    collective: Collective
    first: int
    """The part's first token."""
    width: int
    """Tokens of the longest part."""
    vocab_size: int

    def gather(self, logits: Tensor) -> Tensor:
        """Logits [N, part] of each rank → [N, vocab_size]."""
        if logits.shape[1] < self.width:
            logits = functional.pad(logits, (0, self.width - logits.shape[1]))
        gathered = self.collective.all_gather(logits)
        return gathered if gathered.shape[1] == self.vocab_size else gathered[:, : self.vocab_size].contiguous()

    def choose(self, scores: Tensor, ids: Tensor) -> Tensor:
        """The id of each row's best score over the ranks, the first of equals: float32 [N], int64 [N] → int64 [N].

        Score and id are exchanged as one integer of 64 bits that is ordered like the pair.
        """
        bits = (scores + 0.0).view(torch.int32)  # without a zero below zero
        ordered = (bits ^ (bits >> 31 & _BELOW_SIGN)).long()
        best = self.collective.all_gather((ordered << 32 | _BELOW_SIGN - ids)[:, None]).amax(-1)
        return _BELOW_SIGN - (best & _LOW_WORD)


@dataclass(frozen=True, slots=True)
class GatheredHead:
    """The logits of the whole vocabulary from heads of one part each."""

    part: Projection  # hidden_size → the rank's part of the vocabulary
    vocabulary: VocabularyShare

    def __call__(self, x: Tensor) -> Tensor:
        return self.vocabulary.gather(self.part(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))
