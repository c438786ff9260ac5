"""The numbers of a step with prompts, padded to a captured shape, as one flat array. Pure.

Padding writes nothing and reads nothing: its place in the pool is -1, its contexts are 0, its chunks have no rows. Its
slot is the one after the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from baton_engine.model.layers.attention import LastRows, StepRows
from baton_engine.running.drawing import DrawingRows
from baton_engine.running.slot_state import ChunkInputs, DecodeInputs
from baton_engine.running.step_shapes import CHUNKS, StepShape
from baton_kernels.attention.attention_inputs import DecodeRows, PrefillRows

Ints = np.ndarray[Any, np.dtype[np.int64]]

LAST_TOKEN: Final = -1
"""Placeholder of a decode row's token id, which only the device knows."""


def _lengths(shape: StepShape, drawing_slots: int, groups: int) -> tuple[int, ...]:
    """Lengths of the array's parts: slots that draw; each decode row's slot and context length; each row's token id and
    position; for each row that draws, its number, the slot of its blocks and its context length; each chunk's slot and
    context length; where chunks begin; each row's place for each group. All are even, so that each part begins at a
    multiple of 16 bytes."""
    rows, decode, draws = shape.rows, shape.decode_rows, shape.draws
    sizes = (drawing_slots, decode, decode, rows, rows, draws, draws, draws, CHUNKS, CHUNKS, CHUNKS + 2)
    return (*sizes, *[rows] * groups)


def pad_step(
    shape: StepShape,
    decode: DecodeInputs,
    chunks: ChunkInputs,
    drawing: DrawingRows,
    *,
    drawing_slots: int,
    padding_slot: int,
) -> Ints:
    """The whole array. Each of `drawing_slots` places has a row of its own, as long as no chunk draws for several
    or later."""
    decoding = len(decode.slots)
    ends = decoding + chunks.counts.cumsum()
    positions = np.concatenate((decode.positions, chunks.positions))
    slots = drawing.slots if drawing.is_in_order else ()
    parts: tuple[tuple[int, Sequence[int] | Ints], ...] = (
        (padding_slot, slots),
        (padding_slot, decode.slots),
        (0, decode.positions + 1),
        (0, np.concatenate((np.full(decoding, LAST_TOKEN), chunks.ids))),
        (0, positions),
        (0, drawing.rows),
        (padding_slot, drawing.tables),
        (0, positions[drawing.rows] + 1),
        (padding_slot, chunks.slots),
        (0, chunks.context_lens),
        (int(ends[-1]), np.concatenate(([decoding], ends))),
        *((-1, places) for places in np.concatenate((decode.places, chunks.places), axis=1)),
    )
    sizes = _lengths(shape, drawing_slots, len(decode.places))
    out = np.repeat(np.array([padding for padding, _ in parts], dtype=np.int64), sizes)
    for begin, (_, values) in zip(np.cumsum((0, *sizes)), parts, strict=False):
        out[begin : begin + len(values)] = values
    return out


def step_rows(
    numbers: Tensor, shape: StepShape, drawing_slots: int, tables: Tensor, last_tokens: Tensor, last_group: int
) -> tuple[Tensor, StepRows]:
    """Token ids and metadata out of the array on the device: tables [groups, slots + 1, max_blocks], last_tokens
    [slots + 1]; `last_group`: of the last layer."""
    parts = torch.split(numbers, list(_lengths(shape, drawing_slots, len(tables))))
    _, slots, lens, ids, positions, drawing, draw_tables, draw_lens, chunk_slots, chunk_lens, starts, *places = parts
    first = ids[: shape.decode_rows]
    known = torch.where(first == LAST_TOKEN, last_tokens.index_select(0, slots), first)
    ids = torch.cat((known, ids[shape.decode_rows :]))
    contexts, chunk_starts, chunk_contexts = lens.int(), starts[: CHUNKS + 1].int(), chunk_lens.int()
    decode = [DecodeRows(table.index_select(0, slots), contexts) for table in tables]
    prefill = [PrefillRows(table.index_select(0, chunk_slots), chunk_starts, chunk_contexts) for table in tables]
    last = LastRows(drawing, DecodeRows(tables[last_group].index_select(0, draw_tables), draw_lens.int()))
    return ids, StepRows.of_groups(positions, places, prefill, decode, last)


def count_numbers(shape: StepShape, drawing_slots: int, groups: int) -> int:
    return sum(_lengths(shape, drawing_slots, groups))
