"""Steps with prompts as CUDA graphs: one for each shape of `step_shapes.py`, captured before the worker is ready.

A graph runs the layers over decode rows and pieces of prompts at once and leaves the hidden states of the rows that
draw. On a prefill worker it is cut after some layers, so that their KV can be reported and sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from baton_engine.model.decoder import Decoder
from baton_engine.running.capturing import LayersWritten, Recorder
from baton_engine.running.drawing import DrawingRows
from baton_engine.running.graph_buffers import GraphBuffers
from baton_engine.running.padded_step import count_numbers, pad_step, step_rows
from baton_engine.running.slot_state import ChunkInputs, DecodeInputs
from baton_engine.running.step_shapes import CHUNKS, StepShape


class MixedStep:
    """The layers of a step with prompts, which reads its numbers from the buffers."""

    def __init__(self, buffers: GraphBuffers) -> None:
        self._buffers = buffers
        self._draws = buffers.hidden.shape[0]

    def load(self, shape: StepShape, decode: DecodeInputs, chunks: ChunkInputs, drawing: DrawingRows) -> None:
        slot = self._buffers.padding_slot
        self._buffers.load(pad_step(shape, decode, chunks, drawing, drawing_slots=self._draws, padding_slot=slot))

    def load_padding(self, shape: StepShape) -> None:
        """Load a step of padding alone."""
        none, empty = np.zeros(0, dtype=np.int64), np.zeros(CHUNKS, dtype=np.int64)
        nowhere = np.zeros((self._buffers.model.kv_groups, 0), dtype=np.int64)
        chunks = ChunkInputs(none, none, nowhere, empty + self._buffers.padding_slot, empty, empty)
        self.load(shape, DecodeInputs(none, none, nowhere), chunks, DrawingRows.of((), ()))

    def run(self, shape: StepShape, model: Decoder, written: LayersWritten | None = None) -> None:
        """Run the layers, and leave the normed hidden states of the rows that draw in the buffers. `model`: the
        buffers' own, or a sample of it."""
        buffers = self._buffers
        numbers = buffers.numbers[: count_numbers(shape, self._draws, buffers.model.kv_groups)]
        ids, rows = step_rows(
            numbers, shape, self._draws, buffers.tables, buffers.last_tokens, buffers.model.layers[-1].place.kv_group
        )
        hidden = model.hidden_states(ids, rows, buffers.kv_pool, written)
        buffers.hidden[: shape.draws].copy_(hidden)


class MixedGraphs:
    """The graphs of all shapes of one worker."""

    def __init__(self, buffers: GraphBuffers, recorder: Recorder, shapes: Mapping[StepShape, Sequence[int]]) -> None:
        """`shapes`: for each, the numbers of layers after which its graph is cut; the last is all layers."""
        self._step = MixedStep(buffers)
        self._model, self._sample = buffers.model, buffers.sample
        self._ends = shapes
        # The largest first: the smaller ones fit into its memory.
        largest_first = sorted(shapes, key=lambda shape: -shape.rows)
        self._graphs = {shape: self._capture(recorder, shape) for shape in largest_first}

    @staticmethod
    def rehearse(buffers: GraphBuffers, shapes: Iterable[StepShape]) -> None:
        """Launch every kernel that will be captured."""
        step = MixedStep(buffers)
        for shape in shapes:
            step.load_padding(shape)
            step.run(shape, buffers.sample)

    def run(
        self,
        shape: StepShape,
        decode: DecodeInputs,
        chunks: ChunkInputs,
        drawing: DrawingRows,
        written: Callable[[int], None] | None,
    ) -> None:
        """The layers over the rows, which fit into the shape. `written` as in `Decoder.hidden_states`, where the graph
        is cut and at its end."""
        self._step.load(shape, decode, chunks, drawing)
        for part, layers in zip(self._graphs[shape], self._ends[shape], strict=True):
            part.replay()
            if written is not None:
                written(layers)

    def _capture(self, recorder: Recorder, shape: StepShape) -> tuple[torch.cuda.CUDAGraph, ...]:
        """Only padding: nothing in the pool changes."""
        self._step.load_padding(shape)
        return recorder.capture(
            lambda: self._step.run(shape, self._sample),
            lambda written: self._step.run(shape, self._model, written),
            self._ends[shape][:-1],
        )
