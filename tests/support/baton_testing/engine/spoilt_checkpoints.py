"""Ways to spoil a quantised checkpoint: its `quantization_config`, or the tensors of one layer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_engine.model.loading import load_model
from baton_testing.engine.models import write_random_model
from baton_testing.engine.quantised_models import Form, write_quantised
from baton_wire.models.errors import ModelError

Q = "model.layers.1.self_attn.q_proj"
"""The layer whose tensors are spoilt."""
Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Case = tuple[str, str, Callable[[Config], object], Callable[[Tensors], object], type[ModelError], str]
"""Name, form, what is done to the config and to the tensors, the error and a pattern of its message."""


def spoilt(
    source: Path, target: Path, config: Callable[[Config], object], tensors: Callable[[Tensors], object]
) -> Path:
    shutil.copytree(source, target)
    fields = json.loads((target / "config.json").read_text())
    config(fields["quantization_config"])
    (target / "config.json").write_text(json.dumps(fields))
    stored = load_file(target / "model.safetensors")
    tensors(stored)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, target / "model.safetensors")
    return target


def sources_of(forms: Mapping[str, Form], root: Path) -> dict[str, Path]:
    """One small model in each of these forms."""
    dense = write_random_model(
        root / "dense", "llama-mha", hidden_size=64, intermediate_size=96, num_hidden_layers=2, vocab_size=64
    )
    return {name: write_quantised(dense, root / name, form).quantised for name, form in forms.items()}


def assert_named(case: Case, sources: Mapping[str, Path], place: Path) -> None:
    """The spoilt checkpoint is refused in one line that names what is wrong."""
    _, form, config, tensors, error, message = case
    with pytest.raises(error, match=message) as raised:
        load_model(spoilt(sources[form], place, config, tensors), torch.float32, torch.device("cpu"))
    assert "\n" not in str(raised.value)


def kept(_: object) -> None:
    pass


def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{Q}.{name}": change(tensors[f"{Q}.{name}"])})


def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


def of_bytes(value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: first(value)(tensor.view(torch.uint8)).view(tensor.dtype)


def missing(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(f"{Q}.{name}")


def set_fields(**fields: object) -> Callable[[Config], object]:
    return lambda config: config.update(fields)


def weights(**fields: object) -> Callable[[Config], object]:
    return lambda config: config["config_groups"]["group_0"]["weights"].update(fields)
