"""Mutated checkpoints of each family: refused in one line, or computed as transformers computes the same directory."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_engine.model.loading import load_model
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import reference_logits, reference_model, write_random_model
from baton_testing.engine.quantised_models import write_mxfp4
from baton_wire.models.errors import ModelError

CPU = torch.device("cpu")
TOKENS = [3 + number * 7 % 190 for number in range(30)]
FAMILIES = (
    "gemma3",
    "phi3",
    "phi3-longrope",
    "glm4",
    "glm",
    "gpt-oss",
    "qwen3-moe",
    "mixtral",
    "olmo2",
    "olmo3",
    "qwen2-moe",
)
EACH = 24
"""Mutations of a family: half of config.json, half of the tensors."""
STRANGE: list[object] = [
    None,
    -1,
    0,
    3,
    17,
    1e9,
    0.5,
    "",
    "gelu",
    "x" * 300,
    [],
    ["full_attention", 3],
    {},
    True,
    False,
]
Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def mutate_config(drawn: random.Random, config: Config) -> None:
    """One field, anywhere in it."""
    places: list[tuple[Config, str]] = []
    sections: list[Config] = [config]
    while sections:
        section = sections.pop()
        places += [(section, key) for key in section]
        sections += [value for value in section.values() if isinstance(value, dict)]
    section, key = drawn.choice(places)
    if drawn.random() < 0.2:
        del section[key]
    else:
        section[key] = drawn.choice(STRANGE)


def mutate_tensors(drawn: random.Random, tensors: Tensors) -> None:
    """One tensor gone, misnamed, of another shape or dtype, or with values that are no numbers."""
    name = drawn.choice(sorted(tensors))
    tensor = tensors[name]
    match drawn.randrange(7):
        case 0:
            del tensors[name]
        case 1:
            tensors[name + "x"] = tensors.pop(name)
        case 2:
            tensors[name] = tensor.flatten()[:-1]
        case 3:
            tensors[name] = tensor[..., :-1]
        case 4:
            tensors[name] = torch.zeros(tensor.shape, dtype=drawn.choice([torch.int8, torch.int64, torch.bool]))
        case 5:
            tensors[name] = torch.cat((tensor, tensor))
        case 6:
            tensors[name] = tensor[:0]


def write(directory: Path, config: Config, tensors: Tensors) -> None:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


def logits(directory: Path) -> torch.Tensor | ModelError:
    """Logits of as many tokens as the model takes."""
    try:
        loaded = load_model(directory, torch.float32, CPU)
    except ModelError as error:
        return error
    return ModelSteps(loaded).prefill(chunk(0, TOKENS[: loaded.max_context_tokens]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mutated_config_is_refused_or_means_what_transformers_says(family: str, tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "source", family)
    right = reference_logits(reference_model(source), TOKENS)
    drawn = random.Random(family)
    refused = 0
    for number in range(EACH // 2):
        config = json.loads((source / "config.json").read_text())
        mutate_config(drawn, config)
        directory = tmp_path / str(number)
        write(directory, config, load_file(source / "model.safetensors"))
        got = logits(directory)
        if isinstance(got, ModelError):
            assert "\n" not in str(got)
            refused += 1
        elif not torch.allclose(got, right[: len(got)], rtol=0, atol=1e-4):
            expected = reference_logits(reference_model(directory), TOKENS[: len(got)])
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert refused


@pytest.mark.parametrize("family", [*FAMILIES, "gpt-oss, mxfp4"])
def test_mutated_tensors_are_refused_by_name(family: str, tmp_path: Path) -> None:
    if family == "gpt-oss, mxfp4":
        plain = write_random_model(tmp_path / "plain", "gpt-oss", hidden_size=64, intermediate_size=32)
        source = tmp_path / "source"
        write_mxfp4(plain, source)
    else:
        source = write_random_model(tmp_path / "source", family)
    config = json.loads((source / "config.json").read_text())
    drawn = random.Random(family)
    for number in range(EACH // 2):
        tensors = load_file(source / "model.safetensors")
        before = set(tensors)
        mutate_tensors(drawn, tensors)
        directory = tmp_path / str(number)
        write(directory, config, tensors)
        outcome = logits(directory)
        assert isinstance(outcome, ModelError), f"{number}: {before ^ set(tensors)}"
        assert "\n" not in str(outcome)
