"""The text models that recipes describe most: each starts, or one line says why it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from baton_engine.model.loading import load_model
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.published.recipes import RECIPES, reduced
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.families.unserved import UNSERVED
from baton_wire.models.parsing import parse_spec

TOKENS = [1 + number * 7 % 190 for number in range(20)]
STARTING = [name for name, config in RECIPES.items() if config["model_type"] not in UNSERVED]
REFUSED = [name for name in RECIPES if name not in STARTING]


@pytest.mark.parametrize("name", STARTING)
def test_a_model_of_a_recipe_is_understood_and_a_small_one_starts(name: str, tmp_path: Path) -> None:
    assert parse_spec(RECIPES[name]).max_context_tokens >= 8_000
    path = tmp_path / "config.json"
    path.write_text(json.dumps(reduced(RECIPES[name])))
    loaded = load_model(f"random://{path}?seed=1", torch.float32, torch.device("cpu"), 64)
    steps = ModelSteps(loaded)
    logits = torch.cat((steps.prefill(chunk(0, TOKENS)), steps.decode({0: 5})))
    assert bool(torch.isfinite(logits).all())
    assert float(logits.std()) > 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_of_a_recipe_that_is_not_served_is_refused_by_one_line(name: str) -> None:
    with pytest.raises(ModelConfigError, match=r"model_type: .* allowed: .* is the nearest") as raised:
        parse_spec(RECIPES[name])
    assert "\n" not in str(raised.value)


def test_recipes_number_forty() -> None:
    assert (len(RECIPES), len(STARTING), len(REFUSED)) == (40, 21, 19)
