"""A config.json without one of its fields, or with null in its place: the logits of transformers, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from baton_engine.model.loading import load_model
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import reference_logits, reference_model, write_random_model
from baton_wire.models.errors import ModelError

CPU = torch.device("cpu")
TOKENS = [3 + number * 7 % 190 for number in range(30)]
FAMILIES = (
    "llama-yarn-rope",
    "qwen3-moe",
    "mixtral",
    "gemma3",
    "phi3-longrope",
    "glm4",
    "gpt-oss",
    "olmo3",
    "qwen2-moe",
)
Config = dict[str, Any]


def older(config: Config) -> Config:
    """The layout that published files have: `rope_scaling` next to `rope_theta`."""
    rest = {name: value for name, value in config.items() if name != "rope_parameters"}
    rope = dict(config["rope_parameters"])
    if config["model_type"] == "olmo3":
        rest["rope_theta"] = 500_000.0  # with any other base transformers rotates the local layers by the default
        return {
            **rest,
            "rope_scaling": {name: value for name, value in rope["full_attention"].items() if name != "rope_theta"},
        }
    if "full_attention" in rope:
        local, rope = rope["sliding_attention"], dict(rope["full_attention"])
        rest["rope_local_base_freq"] = local["rope_theta"]
    rest["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        rest["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    return {**rest, "rope_scaling": rope if rope["rope_type"] != "default" else None}


def with_gaps(config: Config) -> Iterator[Config]:
    """The config once for each of its fields, without it and with null."""
    for name, value in config.items():
        yield {other: kept for other, kept in config.items() if other != name}
        yield {**config, name: None}
        if isinstance(value, dict):
            yield from ({**config, name: inner} for inner in with_gaps(value))


@pytest.mark.parametrize("layout", ["new", "older"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_means_what_it_means_to_transformers(family: str, layout: str, tmp_path: Path) -> None:
    directory = write_random_model(tmp_path, family)
    config = json.loads((directory / "config.json").read_text())
    right = reference_logits(reference_model(directory), TOKENS)
    equal = refused = 0
    for variant in with_gaps(config if layout == "new" else older(config)):
        (directory / "config.json").write_text(json.dumps(variant))
        try:
            loaded = load_model(directory, torch.float32, CPU)
        except ModelError as error:
            refused += "\n" not in str(error)
            continue
        got = ModelSteps(loaded).prefill(chunk(0, TOKENS[: loaded.max_context_tokens]))
        if not torch.allclose(got, right[: len(got)], rtol=0, atol=1e-4):
            # Where transformers refuses the file, null has no defined meaning: for Baton it is the default.
            expected = _reference(directory, len(got))
            assert expected is None or torch.allclose(got, expected, rtol=0, atol=1e-4), variant
        equal += 1
    assert equal > 20
    assert refused > 10


def _reference(directory: Path, tokens: int) -> torch.Tensor | None:
    try:
        return reference_logits(reference_model(directory), TOKENS[:tokens])
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, StrictDataclassError):
        return None
