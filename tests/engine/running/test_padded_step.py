"""A step with prompts, padded to a captured shape, computes what the step alone computes. Run eagerly: the same code as
in a graph, without the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baton_engine.model.loading import LoadedModel
from baton_engine.running.drawing import DrawingRows
from baton_engine.running.graph_buffers import GraphBuffers
from baton_engine.running.mixed_graph import MixedStep
from baton_engine.running.padded_step import count_numbers
from baton_engine.running.step_shapes import CHUNKS, StepShape
from baton_engine.scheduling.step_plan import PrefillChunk, StepPlan
from baton_testing.engine.model_steps import ModelSteps, all_updates, chunk
from baton_testing.engine.models import FAMILIES

SLOTS, BLOCKS = 6, 8
DRAWS = 80
SHAPES = [StepShape(64, 4), StepShape(64, 2), StepShape(96, 64), StepShape(47, 2)]
"""Padding after both, none among decode rows, more decode rows than the step has, not one row of padding."""


class Padded(ModelSteps):
    """Steps through the buffers of captured graphs."""

    def __init__(self, loaded: LoadedModel, shape: StepShape) -> None:
        super().__init__(loaded, SLOTS, 16, BLOCKS)
        self.shape = shape
        groups = loaded.model.kv_groups
        numbers = count_numbers(shape, DRAWS, groups)
        last_tokens = self.state.last_tokens
        self.buffers = GraphBuffers(loaded.model, self.pool.tensor, last_tokens, BLOCKS, draws=DRAWS, numbers=numbers)
        for slot in range(SLOTS):
            self.buffers.set_blocks(all_updates(slot, SLOTS, BLOCKS, groups))
        self.step = MixedStep(self.buffers)

    @torch.inference_mode()
    def padded(self, plan: StepPlan) -> torch.Tensor:
        """Logits of the rows that draw."""
        drawing = DrawingRows.of(plan.prefill, plan.decode)
        decode, chunks = self.state.decode_inputs(plan.decode), self.state.chunk_inputs(plan.prefill)
        self.step.load(self.shape, decode, chunks, drawing)
        self.step.run(self.shape, self.model)
        assert self.buffers.numbers[: len(drawing.slots)].tolist() == list(drawing.slots)
        return self.model.logits(self.buffers.hidden[: len(drawing.rows)])


def begun(steps: ModelSteps, tokens: list[int]) -> StepPlan:
    """Slots 0 and 4 decode; slot 1 ends its prompt after a prefix; slot 2 is cut; slot 3's whole prompt draws."""
    steps.prefill(chunk(0, tokens[:20]), chunk(4, tokens[:33]))
    steps.prefill(chunk(1, tokens[:5]))
    chunks = (
        chunk(1, tokens[5:23], 5, sample=(1,)),
        chunk(2, tokens[:10]),
        chunk(3, tokens[:17], sample=(3,)),
    )
    return StepPlan(0, prefill=chunks, decode=steps.force({4: tokens[33], 0: tokens[20]}))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_neither_logits_nor_pool(family: str, shape: StepShape, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    exact, padded = ModelSteps(model.loaded, SLOTS, 16, BLOCKS), Padded(model.loaded, shape)
    expected = exact.drawn(begun(exact, list(model.tokens)))
    logits = padded.padded(begun(padded, list(model.tokens)))
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(padded.pool.tensor, exact.pool.tensor, rtol=0, atol=2e-5, equal_nan=True)


def test_contexts_go_on_behind_a_padded_step(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    exact, padded = ModelSteps(model.loaded, SLOTS, 16, BLOCKS), Padded(model.loaded, SHAPES[0])
    exact.drawn(begun(exact, list(model.tokens)))
    padded.padded(begun(padded, list(model.tokens)))
    following = {1: 3, 4: 5, 3: 7, 0: 9}
    torch.testing.assert_close(padded.decode(following), exact.decode(following), rtol=0, atol=2e-5)


def test_a_worker_that_only_prefills_has_no_decode_rows(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    exact, padded = ModelSteps(model.loaded, SLOTS, 16, BLOCKS), Padded(model.loaded, StepShape(64, 0))
    plan = StepPlan(0, prefill=(chunk(2, model.tokens[:9]), chunk(0, model.tokens[:31], sample=(0,))))
    torch.testing.assert_close(padded.padded(plan), exact.drawn(plan), rtol=0, atol=2e-5)
    torch.testing.assert_close(padded.pool.tensor, exact.pool.tensor, rtol=0, atol=2e-5, equal_nan=True)


def test_a_chunk_that_draws_for_several_has_one_row(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    exact, padded = ModelSteps(model.loaded, SLOTS, 16, BLOCKS), Padded(model.loaded, StepShape(64, 4))
    plan = StepPlan(0, prefill=(chunk(2, model.tokens[:9], sample=(2, 3)), chunk(0, model.tokens[:31], sample=(0,))))
    drawing = DrawingRows.of(plan.prefill, ())
    padded.step.load(padded.shape, padded.state.decode_inputs(()), padded.state.chunk_inputs(plan.prefill), drawing)
    with torch.inference_mode():
        padded.step.run(padded.shape, padded.model)
        logits = model.loaded.model.logits(padded.buffers.hidden[: len(drawing.rows)])
    torch.testing.assert_close(logits, exact.drawn(plan), rtol=0, atol=2e-5)


@pytest.mark.parametrize("shape", [StepShape(32, 4), StepShape(32, 0)], ids=str)
def test_a_step_of_padding_alone_writes_nothing(shape: StepShape, tiny: Callable[[str], Any]) -> None:
    steps = Padded(tiny("llama-gqa").loaded, shape)
    steps.step.load_padding(shape)
    with torch.inference_mode():
        steps.step.run(shape, steps.model)
    assert steps.pool.tensor.isnan().all()
    assert not steps.buffers.hidden[: shape.draws].isnan().any()


def test_as_many_chunks_as_a_shape_has(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    slots = CHUNKS + 1
    steps = ModelSteps(model.loaded, slots, 16, 1)
    loads = [PrefillChunk(slot, 0, tuple(model.tokens[: 1 + slot % 3]), (slot,)) for slot in range(CHUNKS)]
    chunks = steps.state.chunk_inputs(loads)
    shape = StepShape(64, 4)
    from baton_engine.running.padded_step import pad_step

    numbers = pad_step(
        shape, steps.state.decode_inputs(()), chunks, DrawingRows.of(loads, ()), drawing_slots=20, padding_slot=slots
    )
    assert numbers[:20].tolist() == [*range(CHUNKS), *[slots] * 4]
    assert numbers[-(shape.rows + CHUNKS + 2) : -shape.rows].tolist() == [
        0,
        *np.cumsum(chunks.counts),
        chunks.counts.sum(),
    ]
    assert len(numbers) == count_numbers(shape, 20, 1)
