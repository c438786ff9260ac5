"""Rows that draw go through the whole last layer, the others only write its KV: same logits, same pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baton_engine.running.drawing import DrawingRows
from baton_engine.scheduling.step_plan import StepPlan
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import FAMILIES


def mixed_plan(steps: ModelSteps, tokens: tuple[int, ...]) -> StepPlan:
    """Slot 0 has 20 tokens and decodes; slot 1 ends its prompt after a prefix of 5; slot 2 is cut before its end; slot
    3's whole prompt draws for two."""
    steps.prefill(chunk(0, tokens[:20]))
    steps.prefill(chunk(1, tokens[:5]))
    chunks = (
        chunk(1, tokens[5:23], 5, sample=(1,)),
        chunk(2, tokens[:9]),
        chunk(3, tokens[:17], sample=(3, 2)),
    )
    return StepPlan(0, prefill=chunks, decode=steps.force({0: tokens[20]}))


def test_the_rows_that_draw_are_the_last_of_sampling_chunks_and_all_that_decode(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    plan = mixed_plan(ModelSteps(model.loaded), model.tokens)
    drawing = DrawingRows.of(plan.prefill, plan.decode)
    assert drawing.slots == (0, 1, 3, 2)
    assert drawing.rows.tolist() == [0, 18, 44]
    assert drawing.tables.tolist() == [0, 1, 3]
    assert drawing.logits_rows.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_drawing_rows_get_the_logits_and_the_pool_of_a_step_that_computes_all(
    family: str, tiny: Callable[[str], Any]
) -> None:
    model = tiny(family)
    whole, drawn = ModelSteps(model.loaded), ModelSteps(model.loaded)
    plan, same_plan = mixed_plan(whole, model.tokens), mixed_plan(drawn, model.tokens)
    rows = DrawingRows.of(plan.prefill, plan.decode).rows
    expected, drawn_logits = whole.forward(plan)[torch.from_numpy(rows)], drawn.drawn(same_plan)
    torch.testing.assert_close(drawn_logits, expected, rtol=0, atol=2e-5)
    # What the same kernels wrote before the last layer's output is equal to the bit; the rest of the pool is NaN.
    np.testing.assert_array_equal(drawn.pool.tensor.numpy(), whole.pool.tensor.numpy())


def test_a_step_in_which_nothing_draws_writes_its_kv_and_gives_no_rows(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    whole, drawn = ModelSteps(model.loaded), ModelSteps(model.loaded)
    plan = StepPlan(0, prefill=(chunk(0, model.tokens[:18]),))
    whole.forward(plan)
    assert drawn.drawn(plan).shape == (0, model.logits.shape[1])
    np.testing.assert_array_equal(drawn.pool.tensor.numpy(), whole.pool.tensor.numpy())
