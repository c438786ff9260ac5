"""Published checkpoints, made small: the logits of transformers, or a refusal by field. Their sizes, as they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_control.sizing.inputs.model_shape import shape_from_config
from baton_engine.model.blank_weights import blank_model
from baton_engine.model.loading import load_model
from baton_engine.model.servable import servable_model
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import logits_of, reference_logits, reference_model
from baton_testing.published.configs import PUBLISHED
from baton_testing.published.quantised import QUANTISED
from baton_testing.published.small_models import VOCABULARY, scaled, write_published
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.parameters import expected_tensors
from baton_wire.models.parsing import parse_spec

CPU = torch.device("cpu")
TOKENS = [1 + number * 7 % (VOCABULARY - 2) for number in range(40)]
PROMPT = 34
TOLERANCE = 1e-4
SERVED = [*PUBLISHED, *(name for name, model in QUANTISED.items() if not model.refused)]
REFUSED = {name: model for name, model in QUANTISED.items() if model.refused}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_as_many_parameters_as_its_makers_count(name: str) -> None:
    published = PUBLISHED[name]
    forms = expected_tensors(parse_spec(published.config))
    billions = sum(math.prod(form.shapes[0]) for form in forms.values()) / 1e9
    assert billions == pytest.approx(published.billions, rel=0.002)
    assert shape_from_config(name, published.config).parameters / 1e9 == pytest.approx(published.billions, rel=0.002)


@pytest.mark.parametrize("name", SERVED)
def test_a_small_one_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    made = write_published(name, tmp_path)
    config = servable_model(made.quantised)
    loaded = load_model(made.quantised, torch.float32, CPU, min(512, config.max_context_tokens))
    steps = ModelSteps(loaded)
    got = [steps.prefill(chunk(0, TOKENS[:PROMPT])), *(steps.decode({0: token}) for token in TOKENS[PROMPT:])]
    reference = reference_model(made.dense)
    expected = reference_logits(reference, TOKENS)
    if (torch.cat(got) - expected).abs().max() > TOLERANCE:
        # Where transformers is itself far from its own float64, as with Gemma 3, three times that is allowed.
        own_error = float((logits_of(reference, TOKENS) - expected).abs().max())
        torch.testing.assert_close(torch.cat(got), expected, rtol=0, atol=max(TOLERANCE, 3 * own_error))


@pytest.mark.parametrize("name", ["google/gemma-3-4b-it", "meta-llama/Llama-3.2-1B-Instruct"])
def test_one_without_memory_has_the_shapes_of_the_headers(name: str, tmp_path: Path) -> None:
    """So that kernels can be compiled ahead for it, a language model among parts for images too."""
    folder = write_published(name, tmp_path).quantised
    config = servable_model(folder)
    model = blank_model(folder, config, torch.float32, torch.device("meta"), 64)
    assert model.embedding.is_meta
    assert model.embedding.shape == (config.vocab_size, config.hidden_size)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_by_field(name: str) -> None:
    refused = REFUSED[name]
    config: dict[str, Any] = {**PUBLISHED[refused.base].config, "quantization_config": refused.section}
    for variant in (config, scaled(config)):
        with pytest.raises(ModelConfigError, match=refused.refused) as raised:
            parse_spec(variant)
        assert "\n" not in str(raised.value)
