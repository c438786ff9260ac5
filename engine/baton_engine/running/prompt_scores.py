"""Log probabilities of prompt tokens, from the hidden states of a step's prompts.

The vocabulary is wide: logits exist for a few rows at a time. What is kept of each row is its token's log probability,
its rank, and the likeliest alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from baton_engine.memory.host_memory import upload
from baton_engine.model.decoder import Decoder
from baton_engine.scheduling.step_plan import PrefillChunk, ScoredChunk
from baton_kernels.sampling.logprobs import logprobs
from baton_wire.messages.values import PromptLogprob

LOGITS_BYTES: Final = 32 << 20
"""Float32 logits that exist at once."""


@dataclass(frozen=True, slots=True)
class ChunkScores:
    """One chunk's R scored rows: `chosen` [R] float32, `ranks` [R] int64, `top_ids` and `top` [R, k].

    On a GPU they are being copied to the host until the step is done by its clock.
    """

    chunk: int
    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top: Tensor

    def read(self) -> ScoredChunk:
        """The scores as plain values; only once the step is done."""
        columns = (part.tolist() for part in (self.chosen, self.ranks, self.top_ids, self.top))
        return ScoredChunk(
            self.chunk,
            tuple(
                PromptLogprob(chosen, rank, tuple(zip(ids, values, strict=True)))
                for chosen, rank, ids, values in zip(*columns, strict=True)
            ),
        )


def score(model: Decoder, hidden: Tensor, chunks: Sequence[PrefillChunk], first_row: int) -> tuple[ChunkScores, ...]:
    """Score the chunks that ask for it. hidden [T, hidden_size]: all rows of the step, the chunks' in order from
    `first_row` on."""
    scored = []
    start = first_row
    for number, chunk in enumerate(chunks):
        if chunk.targets:
            targets = upload(np.array(chunk.targets, dtype=np.int64), hidden.device)
            rows = hidden[start : start + len(chunk.targets)]
            scored.append(_score_chunk(number, model, rows, targets, chunk.alternatives))
        start += len(chunk.tokens)
    return tuple(scored)


def _score_chunk(number: int, model: Decoder, hidden: Tensor, targets: Tensor, alternatives: int) -> ChunkScores:
    pieces = list(_pieces(model, hidden, targets, alternatives))
    columns = (torch.cat(parts).to("cpu", non_blocking=True) for parts in zip(*pieces, strict=True))
    return ChunkScores(number, *columns)


def _pieces(
    model: Decoder, hidden: Tensor, targets: Tensor, alternatives: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    rows = max(1, LOGITS_BYTES // (4 * model.embedding.shape[0]))
    for first in range(0, len(targets), rows):
        logits = model.logits(hidden[first : first + rows])
        wanted = targets[first : first + rows]
        scores = logprobs(logits, wanted, alternatives)
        ranks = (logits > logits.gather(1, wanted[:, None])).sum(-1) + 1
        yield scores.chosen, ranks, scores.top_ids, scores.top
