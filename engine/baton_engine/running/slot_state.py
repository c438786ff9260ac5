"""Per-slot state of the runner: block table, context length, last token; and the rows of a step made from it.

What the host can know without waiting for a step (tables, lengths) lives in numpy arrays on the host, so that a step's
inputs are a few array operations; what only the device knows (the last drawn token) lives there. On a CPU both are the
same memory. Which slot belongs to whom is the scheduler's business (`slots.py`), sampling state is in `sampler.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_engine.memory.host_memory import upload
from baton_engine.model.layers.attention import LastRows, StepRows
from baton_engine.running.drawing import DrawingRows
from baton_engine.scheduling.step_plan import BlockUpdate, OpenSlot, PrefillChunk, StepPlan
from baton_kernels.attention.attention_inputs import DecodeRows, PrefillRows
from baton_wire.kv_shape import KvGeometry

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """One decode row a slot: its position, and its places in the pool (block · block_tokens + slot within it)."""

    slots: Ints
    positions: Ints
    places: Ints
    """[groups, rows]."""


@dataclass(frozen=True, slots=True)
class ChunkInputs:
    """The P prompt tokens of a step, chunk by chunk, and its N chunks."""

    ids: Ints
    """[P], as the next."""
    positions: Ints
    places: Ints
    """[groups, P]."""
    slots: Ints
    """[N], as the next two."""
    counts: Ints
    context_lens: Ints
    """Context length after each chunk."""


class SlotState:
    """State of `max_slots` slots. Positions and blocks are trusted to be the scheduler's own."""

    def __init__(self, max_slots: int, max_blocks: int, geometry: KvGeometry, device: torch.device) -> None:
        self._block_tokens = geometry.block_tokens
        self._groups = len(geometry.windows)
        self._last_group = geometry.places[-1].kv_group
        self._device = device
        self._tables = np.zeros((self._groups, max_slots, max_blocks), dtype=np.int32)
        self._contexts: Ints = np.zeros(max_slots, dtype=np.int64)
        self.last_tokens = torch.zeros(max_slots + 1, dtype=torch.int64, device=device)
        """Last token by slot; the entry after the last slot belongs to padding."""
        self._decode: tuple[int, ...] = ()
        self._decode_slots: Ints = np.zeros(0, dtype=np.int64)
        self._decode_index = torch.zeros(0, dtype=torch.int64, device=device)
        self._asked: tuple[int, ...] = ()
        self._ordered: tuple[int, ...] = ()

    def open(self, opens: Sequence[OpenSlot]) -> None:
        """Begin these sequences. Last tokens are uploaded in one copy: setting an element would wait for the running
        step."""
        for opened in opens:
            self._contexts[opened.slot] = opened.context_tokens
        known = [(opened.slot, opened.last_token) for opened in opens if opened.last_token is not None]
        if known:
            slots, tokens = self._upload(np.array(known, dtype=np.int64).T.copy())
            self.last_tokens.index_copy_(0, slots, tokens)

    def set_blocks(self, updates: Sequence[BlockUpdate]) -> None:
        for update in updates:
            self._tables[update.kv_group, update.slot, update.index] = update.block

    def rows(self, plan: StepPlan, drawing: DrawingRows | None = None) -> tuple[Tensor, StepRows]:
        """Token ids [T] and metadata of a plan with at least one row. Contexts move on as if it had run.

        `drawing`: the rows whose hidden states are wanted, None for all.
        """
        if not plan.prefill:
            ids, inputs, decode = self._decode_rows(plan.decode)
            return ids, self._step_rows(inputs.positions, inputs.places, [None] * self._groups, decode)
        chunks = self.chunk_inputs(plan.prefill)
        ids, positions, places = self._upload(chunks.ids), chunks.positions, chunks.places
        decode_rows: Sequence[DecodeRows | None] = [None] * self._groups
        if plan.decode:
            decode_ids, inputs, decode_rows = self._decode_rows(plan.decode)
            ids = torch.cat((decode_ids, ids))
            positions = np.concatenate((inputs.positions, positions))
            places = np.concatenate((inputs.places, places), axis=1)
        last = None if drawing is None else self._last_rows(drawing, positions)
        prefill = self._prefill_rows(chunks, len(plan.decode))
        return ids, self._step_rows(positions, places, prefill, decode_rows, last)

    def _step_rows(
        self,
        positions: Ints,
        places: Ints,
        prefill: Sequence[PrefillRows | None],
        decode: Sequence[DecodeRows | None],
        last: LastRows | None = None,
    ) -> StepRows:
        # Each group's on its own, so that every tensor is aligned.
        uploaded = [self._upload(group) for group in places]
        return StepRows.of_groups(self._upload(positions), uploaded, prefill, decode, last)

    def _last_rows(self, drawing: DrawingRows, positions: Ints) -> LastRows:
        lens = (positions[drawing.rows] + 1).astype(np.int32)
        blocks = -(-int(lens.max(initial=0)) // self._block_tokens)
        tables = self._tables[self._last_group, drawing.tables, :blocks]
        return LastRows(self._upload(drawing.rows), DecodeRows(self._upload(tables), self._upload(lens)))

    def _decode_rows(self, decode: tuple[int, ...]) -> tuple[Tensor, DecodeInputs, list[DecodeRows]]:
        """Token ids, numbers and metadata of decode rows, for each group."""
        if decode != self._decode:
            self._decode, self._decode_slots = decode, np.array(decode, dtype=np.int64)
            self._decode_index = self._upload(self._decode_slots)
        inputs = self._advance(self._decode_slots)
        lens = (inputs.positions + 1).astype(np.int32)
        tables = self._tables_of(inputs.slots, int(inputs.positions.max()) // self._block_tokens + 1)
        ids = self.last_tokens.index_select(0, self._decode_index)
        uploaded = self._upload(lens)
        return ids, inputs, [DecodeRows(table, uploaded) for table in tables]

    def longest_first(self, decode: tuple[int, ...]) -> tuple[int, ...]:
        """The slots by length of context when they were first decoded together. Attention begins rows in their order,
        and a long row that is begun last would keep the device waiting."""
        if decode != self._asked:
            slots = np.array(decode, dtype=np.int64)
            order = np.argsort(-self._contexts[slots], kind="stable")
            self._asked, self._ordered = decode, tuple(slots[order].tolist())
        return self._ordered

    def decode_inputs(self, decode: tuple[int, ...]) -> DecodeInputs:
        """Decode rows of a step, for a captured graph. Contexts move on as if it had run."""
        return self._advance(np.array(decode, dtype=np.int64))

    def _advance(self, slots: Ints) -> DecodeInputs:
        positions = self._contexts[slots]
        self._contexts[slots] = positions + 1
        places = self._places(slots, positions)
        return DecodeInputs(slots, positions, places)

    def chunk_inputs(self, chunks: Sequence[PrefillChunk]) -> ChunkInputs:
        """Prompt rows of a step. Contexts advance as if it had run."""
        counts = np.array([len(chunk.tokens) for chunk in chunks])
        ids: Ints = np.fromiter(chain.from_iterable(chunk.tokens for chunk in chunks), np.int64, int(counts.sum()))
        lens = np.array([chunk.start for chunk in chunks]) + counts
        slots = np.array([chunk.slot for chunk in chunks])
        # Row r of chunk n is at position lens[n] - (ends[n] - r).
        positions: Ints = np.arange(len(ids)) + np.repeat(lens - counts.cumsum(), counts)
        places = self._places(np.repeat(slots, counts), positions)
        for chunk, length in zip(chunks, lens, strict=True):
            self._contexts[[chunk.slot, *chunk.sample]] = length
        return ChunkInputs(ids, positions, places, slots, counts, lens)

    def draw_later(self, chunk: PrefillChunk) -> None:
        """Record a chunk without tokens: its slots draw after what was computed before."""
        self._contexts[list(chunk.sample)] = chunk.start

    def _prefill_rows(self, chunks: ChunkInputs, first_row: int) -> list[PrefillRows]:
        """Inputs of the attention kernels for each group."""
        blocks = -(-int(chunks.context_lens.max()) // self._block_tokens)
        starts = first_row + np.concatenate(([0], chunks.counts.cumsum()))
        uploaded = self._upload(starts.astype(np.int32)), self._upload(chunks.context_lens.astype(np.int32))
        return [PrefillRows(table, *uploaded) for table in self._tables_of(chunks.slots, blocks)]

    def _places(self, slots: Ints, positions: Ints) -> Ints:
        """Each row's token slot within the pool, for each group."""
        block = positions // self._block_tokens
        blocks = np.ascontiguousarray(self._tables[:, slots, block])  # else in whatever order NumPy found handy
        return (blocks - block) * self._block_tokens + positions

    def _tables_of(self, slots: Ints, blocks: int) -> list[Tensor]:
        """The first `blocks` entries [slots, blocks] of each group's tables, on the device."""
        return [self._upload(table[slots, :blocks]) for table in self._tables]

    def _upload(self, array: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> Tensor:
        return upload(array, self._device)
