"""Notices of a step's layers while they are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baton_engine.running import layer_notices
from baton_engine.running.layer_notices import NOTICE_BYTES, LayerNotices
from baton_engine.scheduling.step_plan import PrefillChunk, StepPlan
from baton_testing.engine.model_steps import RunnerSteps, chunk, opened

CPU = torch.device("cpu")


def words(tokens: int, layers: int = 6, layer_token_bytes: int = NOTICE_BYTES // 64) -> list[tuple[int, int]]:
    heard: list[tuple[int, int]] = []
    notices = LayerNotices(CPU, layers, layer_token_bytes, lambda step, layers: heard.append((step, layers)))
    written = notices.of(StepPlan(7, prefill=(PrefillChunk(0, 0, tuple(range(tokens))),)))
    assert written is not None
    for layer in range(layers):
        written(layer + 1)
    return heard


@pytest.mark.parametrize(
    ("tokens", "layers"),
    [(64, [1, 2, 3, 4, 5, 6]), (1_000, [1, 2, 3, 4, 5, 6]), (32, [2, 4, 6]), (16, [4, 6]), (1, [6])],
)
def test_a_word_is_worth_its_bytes_and_the_last_one_always_comes(tokens: int, layers: list[int]) -> None:
    assert words(tokens) == [(7, layer) for layer in layers]


def test_nothing_is_told_of_a_step_without_prompts() -> None:
    notices = LayerNotices(CPU, 2, 1, lambda step, layers: pytest.fail("reported"))
    assert notices.of(StepPlan(1, decode=(0,))) is None


def test_layers_that_are_told_of_hold_their_final_kv(
    tiny: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_notices, "NOTICE_BYTES", 1)
    model = tiny("llama-gqa")
    steps = RunnerSteps(model.loaded)
    notices: list[tuple[int, int, torch.Tensor]] = []
    steps.runner.watch_layers(
        lambda step, layers: notices.append((step, layers, steps.pool.tensor[:, :layers].clone()))
    )
    prompt = model.tokens[:37]
    steps.execute([opened(0)], [chunk(0, prompt, sample=[0])])
    layers = steps.pool.geometry.layers
    assert [(step, layer) for step, layer, _ in notices] == [(1, layer + 1) for layer in range(layers)]
    for _, layer, seen in notices:
        assert seen[:, layer - 1].isfinite().any()
        torch.testing.assert_close(seen, steps.pool.tensor[:, :layer], rtol=0, atol=0, equal_nan=True)
