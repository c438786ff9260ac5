"""Decode steps as CUDA graphs: one per batch size, captured before the worker is ready.

A step of N rows replays the graph of the smallest size from N up. Rows beyond N are padding: slot `max_slots`, context
0, pool place -1, so they read and write nothing. The graph runs the layers and leaves hidden states; what is drawn from
them is another graph's (`draw_graph.py`) or the sampler's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch

from baton_engine.model.decoder import Decoder
from baton_engine.model.layers.attention import StepRows
from baton_engine.running.capturing import Recorder, smallest_at_least
from baton_engine.running.graph_buffers import GraphBuffers
from baton_engine.running.slot_state import DecodeInputs
from baton_kernels.attention.attention_inputs import DecodeRows

LARGEST: Final = 512
"""Larger batches run eagerly: their kernels take longer than their launches."""


def row_numbers(groups: int) -> int:
    """Per row: slot, position, context length, and for each group the place in the pool."""
    return 3 + groups


def graph_sizes(max_slots: int) -> tuple[int, ...]:
    """Batch sizes to capture, ascending: dense where padding would cost most, up to max_slots or LARGEST."""
    dense = [*range(1, 9), *range(12, 33, 4), *range(40, 129, 8), *range(144, 257, 16), *range(288, LARGEST + 1, 32)]
    largest = min(max_slots, LARGEST)
    return (*(size for size in dense if size < largest), largest)


class DecodeGraphs:
    def __init__(self, buffers: GraphBuffers, recorder: Recorder, sizes: Iterable[int]) -> None:
        self._buffers = buffers
        # The largest first: the smaller ones fit into its memory.
        self._by_rows = smallest_at_least({size: self._capture(recorder, size) for size in sorted(sizes, reverse=True)})
        self.largest = len(self._by_rows) - 1

    def run(self, inputs: DecodeInputs) -> None:
        """The layers over the rows: their normed hidden states are the buffers'."""
        size, graph = self._by_rows[len(inputs.slots)]
        self._buffers.load(_pad(inputs, size, self._buffers.padding_slot))
        graph.replay()

    @staticmethod
    def rehearse(buffers: GraphBuffers, sizes: Iterable[int]) -> None:
        """Go through all that will be captured."""
        for size in sizes:
            _load_padding(buffers, size)
            _run(buffers, size, buffers.sample)

    def _capture(self, recorder: Recorder, size: int) -> tuple[int, torch.cuda.CUDAGraph]:
        """Capture a step of padding alone: nothing in the pool changes."""
        buffers = self._buffers
        _load_padding(buffers, size)
        (graph,) = recorder.capture(
            lambda: _run(buffers, size, buffers.sample), lambda _: _run(buffers, size, buffers.model)
        )
        return size, graph


def _run(buffers: GraphBuffers, size: int, model: Decoder) -> None:
    """Run the layers, and leave the normed hidden states in the buffers. `model`: the buffers' own, or a sample of
    it."""
    numbers = row_numbers(model.kv_groups)
    slots, positions, lens, *places = buffers.numbers[: numbers * size].view(numbers, size)
    contexts = lens.int()
    decode = [DecodeRows(table.index_select(0, slots), contexts) for table in buffers.tables]
    rows = StepRows.of_groups(positions, places, [None] * len(places), decode)
    hidden = model.hidden_states(buffers.last_tokens.index_select(0, slots), rows, buffers.kv_pool)
    buffers.hidden[:size].copy_(hidden)


def _load_padding(buffers: GraphBuffers, size: int) -> None:
    none = np.zeros(0, dtype=np.int64)
    nothing = DecodeInputs(none, none, np.zeros((buffers.model.kv_groups, 0), dtype=np.int64))
    buffers.load(_pad(nothing, size, buffers.padding_slot))


def _pad(inputs: DecodeInputs, size: int, padding_slot: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Slots, positions, lengths, and the places of each group, each padded to `size` at its end."""
    rows = len(inputs.slots)
    numbers = np.zeros((row_numbers(len(inputs.places)), size), dtype=np.int64)
    numbers[0, rows:] = padding_slot
    numbers[3:, rows:] = -1
    numbers[0, :rows] = inputs.slots
    numbers[1, :rows] = inputs.positions
    numbers[2, :rows] = inputs.positions + 1
    numbers[3:, :rows] = inputs.places
    return numbers.reshape(-1)
