"""Results of encoded prompts: their hidden states, pooled or scored, as float32 bytes.

Encoded prompts pass the model apart from the rest of their step. On a CPU each of them passes it alone, because a
product of more rows may round differently: so a result does not depend on what else is in the step. On a GPU all of a
step pass it together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from baton_engine.memory.host_memory import upload
from baton_engine.memory.kv_pool import KvPool
from baton_engine.model.decoder import Decoder
from baton_engine.running.drawing import DrawingRows
from baton_engine.running.slot_state import SlotState
from baton_engine.scheduling.step_plan import EncodedChunk, PrefillChunk, StepPlan
from baton_wire.messages.encoding import Encoding, EncodingKind, pack_floats
from baton_wire.models.pooling import Pooling, PoolingSpec

LEAST_LENGTH: Final = 1e-12
"""Shorter vectors are divided by it, as torch's `normalize` does."""


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """One chunk's result [N] float32. On a GPU it is being copied to the host until the step is done by its clock."""

    chunk: int
    values: Tensor

    def read(self) -> EncodedChunk:
        return EncodedChunk(self.chunk, pack_floats(self.values.tolist()))


class HiddenStateEncoder:
    """Runs chunks of encoded prompts and keeps what of longer prompts later chunks need."""

    def __init__(self, model: Decoder, pool: KvPool, slots: SlotState, pooling: PoolingSpec) -> None:
        self._model, self._pool, self._slots, self._pooling = model, pool, slots, pooling
        self._sums: dict[int, tuple[Tensor, int]] = {}
        """By slot, the sum of the hidden states so far [hidden_size] float32 and their number; or the first one."""

    def close(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._sums.pop(slot, None)

    def run(self, plan: StepPlan) -> tuple[EncodedRow, ...]:
        """Compute the plan's encoded chunks. Results come of those that end their prompts."""
        places = [place for place, chunk in enumerate(plan.prefill) if chunk.encoding is not None]
        if not places:
            return ()
        if self._model.embedding.is_cuda:
            return self._pass(plan, places)
        return tuple(row for place in places for row in self._pass(plan, [place]))

    def _pass(self, plan: StepPlan, places: Sequence[int]) -> tuple[EncodedRow, ...]:
        chunks = [plan.prefill[place] for place in places]
        takes_all = any(self._method(chunk) is not Pooling.LAST for chunk in chunks)
        drawing = None if takes_all else _ends(chunks)
        token_ids, rows = self._slots.rows(StepPlan(plan.step, prefill=tuple(chunks)), drawing)
        hidden = self._model.hidden_states(token_ids, rows, self._pool.tensor)
        results, begin, row = [], 0, 0
        for place, chunk in zip(places, chunks, strict=True):
            end = begin + len(chunk.tokens)
            if takes_all:
                states = hidden[begin:end]
            else:
                states = hidden[row : row + chunk.ends]
                row += chunk.ends
            begin = end
            pooled = self._pool_states(chunk, states)
            if pooled is not None:
                values = self._finish(pooled, chunk.encoding) if chunk.encoding is not None else pooled
                results.append(EncodedRow(place, values.to("cpu", non_blocking=True)))
        return tuple(results)

    def _method(self, chunk: PrefillChunk) -> Pooling:
        embeds = chunk.encoding is not None and chunk.encoding.kind is EncodingKind.EMBEDDING
        return self._pooling.method if embeds else Pooling.LAST

    def _pool_states(self, chunk: PrefillChunk, states: Tensor) -> Tensor | None:
        """The prompt's pooled state [1, hidden_size]; None while more of it follows."""
        match self._method(chunk):
            case Pooling.LAST:
                return states[-1:] if chunk.ends else None
            case Pooling.FIRST:
                if chunk.start == 0:
                    self._sums[chunk.slot] = states[:1].clone(), 1
            case Pooling.MEAN:
                total, count = self._model.normed(states).sum(0, keepdim=True), len(states)
                if chunk.start:
                    before, counted = self._sums[chunk.slot]
                    total, count = before + total, counted + count
                self._sums[chunk.slot] = total, count
        if not chunk.ends:
            return None
        total, count = self._sums.pop(chunk.slot)
        return total / count if self._method(chunk) is Pooling.MEAN else total

    def _finish(self, pooled: Tensor, encoding: Encoding) -> Tensor:
        """The result [N] float32 of a pooled state [1, hidden_size]."""
        model = self._model
        if encoding.kind is EncodingKind.TOKENS:
            ids = upload(np.array(encoding.token_ids, dtype=np.int64), pooled.device)
            return model.logits(pooled)[0].index_select(0, ids)
        is_normed = encoding.kind is EncodingKind.EMBEDDING and self._pooling.method is Pooling.MEAN
        vector = pooled[0] if is_normed else model.normed(pooled)[0]
        if encoding.kind is EncodingKind.LABELS:
            assert model.label_head is not None, "a gateway asks for labels only where the model has some"
            return model.label_head @ vector
        vector = vector[: encoding.dimensions]
        is_normalised = self._pooling.is_normalised if encoding.is_normalised is None else encoding.is_normalised
        return vector / torch.linalg.vector_norm(vector).clamp_min(LEAST_LENGTH) if is_normalised else vector


def _ends(chunks: Sequence[PrefillChunk]) -> DrawingRows:
    """The last rows of the chunks that end their prompts."""
    ends = np.cumsum([len(chunk.tokens) for chunk in chunks], dtype=np.int64) - 1
    wanted = [place for place, chunk in enumerate(chunks) if chunk.ends]
    slots = np.array([chunks[place].slot for place in wanted], dtype=np.int64)
    return DrawingRows((), ends[wanted], slots, np.zeros(0, dtype=np.int64))
