"""Quantised copies: what rounding costs the trained model, and what is refused."""

from __future__ import annotations

import json
import math
import resource
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.model.quantising import Format, quantise_model
from baton_testing.engine import tiny_llama
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import reference_logits, reference_model, write_random_model
from baton_wire.models.errors import ModelError

CPU = torch.device("cpu")
GREATEST_KL = {"fp8": 0.002, "int8": 0.01, "int4": 0.05}
"""Mean over the answers' tokens, in nats."""


def quantised(source: Path, target: Path, kind: Format) -> Path:
    quantise_model(source, target, kind, lambda done, of: None)
    return target


@cache
def answers() -> list[tuple[list[int], list[int]]]:
    """Prompt and greedy answer of each question, by transformers."""
    asked = [list(tiny_llama.chat_ids(question)) for question in tiny_llama.LONG_ANSWERS]
    return [(prompt, list(tiny_llama.greedy(tuple(prompt), 300).ids)) for prompt in asked]


def logprobs_of(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    return torch.log_softmax(logits_of(loaded, ids[:-1]), -1)


@cache
def unrounded() -> list[torch.Tensor]:
    """Logits of each question with its answer."""
    original = load_model(tiny_llama.FOLDER, torch.float32, CPU)
    return [logprobs_of(original, prompt + answer) for prompt, answer in answers()]


def logits_of(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    return ModelSteps(loaded, blocks_per_slot=-(-len(ids) // 16) + 1).prefill(chunk(0, ids))


@pytest.mark.parametrize("kind", get_args(Format))
def test_rounding_costs_the_trained_model_little(kind: Format, tmp_path: Path) -> None:
    copy = load_model(quantised(tiny_llama.FOLDER, tmp_path / "copy", kind), torch.float32, CPU)
    divergences: list[torch.Tensor] = []
    changed = 0
    for (prompt, answer), theirs in zip(answers(), unrounded(), strict=True):
        mine = logprobs_of(copy, prompt + answer)
        at = slice(len(prompt) - 1, None)
        divergences.append((theirs[at].exp() * (theirs[at] - mine[at])).sum(-1))
        changed += mine[at].argmax(-1).tolist() != answer
    mean = float(torch.cat(divergences).mean())
    assert mean <= GREATEST_KL[kind]
    assert changed == 0 or kind == "int4"


@pytest.mark.parametrize("kind", get_args(Format))
def test_a_copy_is_what_transformers_makes_of_the_same_weights(kind: Format, tmp_path: Path) -> None:
    """With QK norms, without biases; the copy's weights brought back by the formula of compressed-tensors."""
    source = write_random_model(tmp_path / "source", "qwen3", hidden_size=64, intermediate_size=96)
    copy = quantised(source, tmp_path / "copy", kind)
    loaded = load_model(copy, torch.float32, CPU)
    dense = reference_model(source)
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            if "_proj" in name:
                parameter.copy_(brought_back(parameter.float(), kind))
    tokens = list(range(3, 40))
    got = ModelSteps(loaded).prefill(chunk(0, tokens))
    torch.testing.assert_close(got, reference_logits(dense, tokens), rtol=0, atol=1e-4)


def brought_back(weight: torch.Tensor, kind: Format) -> torch.Tensor:
    """Written apart: by rows, or by groups of 32 columns (64 and 96 divide by it)."""
    out = torch.empty_like(weight)
    width = 32 if kind == "int4" else weight.shape[1]
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], width):
            part = weight[row, start : start + width]
            scale = (part.abs().max() / {"fp8": 448, "int8": 127, "int4": 7}[kind]).bfloat16().float()
            values = part / scale
            if kind == "fp8":
                values = values.clamp(-448, 448).to(torch.float8_e4m3fn).float()
            else:
                values = values.round().clamp(-8 if kind == "int4" else -128, 7 if kind == "int4" else 127)
            out[row, start : start + width] = values * scale
    return out


def test_shards_stay_shards_and_everything_else_comes_along(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "source", "llama-mha", hidden_size=64, intermediate_size=96)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in places if places[name] == file}, source / file)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (source / "tokenizer.json").write_text("{}")
    outside = tmp_path / "secret.json"
    outside.write_text("{}")
    (source / "link.json").symlink_to(outside)
    copy = quantised(source, tmp_path / "copy", "int8")
    assert (copy / "tokenizer.json").read_text() == "{}"
    assert not (copy / "link.json").exists()
    assert len(list(copy.glob("*.safetensors"))) == 2
    assert load_model(copy, torch.float32, CPU).config.formats.method == "compressed-tensors"


@pytest.mark.parametrize(
    ("family", "left"),
    [("mixtral", ["block_sparse_moe.gate"]), ("gpt-oss", ["mlp.router", "mlp.experts"]), ("qwen3-moe", ["mlp.gate"])],
)
def test_routers_and_stacks_stay_and_are_said_to(family: str, left: list[str], tmp_path: Path) -> None:
    """Other readers take a router for a linear layer like any other."""
    source = write_random_model(tmp_path / "source", family, hidden_size=64, intermediate_size=96)
    copy = quantised(source, tmp_path / "copy", "fp8")
    ignored = json.loads((copy / "config.json").read_text())["quantization_config"]["ignore"]
    layers = [0, 2] if family == "qwen3-moe" else range((len(ignored) - 1) // len(left))  # its middle layer is dense
    assert ignored == ["lm_head", *(f"model.layers.{layer}.{name}" for layer in layers for name in left)]
    assert load_model(copy, torch.float32, CPU).config.formats.of("model.layers.0.self_attn.q_proj") is not None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(value: float, tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "source", "llama-mha", hidden_size=64, intermediate_size=96)
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ModelError, match=f"tensor {name}: holds an infinity or no number"):
        quantised(source, tmp_path / "copy", "int4")
    assert not list(tmp_path.glob("copy*"))


def test_a_disk_that_is_full_is_told_in_one_line(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "source", "llama-mha", hidden_size=64, intermediate_size=96)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # of a file: the same way of the system's error
    try:
        with pytest.raises(ModelError, match=r"copy: cannot be written: .*File too large"):
            quantised(source, tmp_path / "copy", "fp8")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob("copy*"))


def there(source: Path, target: Path) -> None:
    target.mkdir()


def quantised_already(source: Path, target: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (source / "config.json").write_text(json.dumps(config))


def with_images(source: Path, target: Path) -> None:
    wrapper = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    (source / "config.json").write_text(json.dumps(wrapper))


def no_directory(source: Path, target: Path) -> None:
    target.parent.write_text("a file")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (there, "exists already"),
        (quantised_already, "is quantised already"),
        (with_images, "model_type gemma3 has parts for images"),
        (no_directory, "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    spoil: Callable[[Path, Path], None], message: str, tmp_path: Path
) -> None:
    source: Any = write_random_model(tmp_path / "source", "llama-mha", hidden_size=64, intermediate_size=96)
    target = tmp_path / "place" / "copy"
    if spoil is not no_directory:
        target.parent.mkdir()
    spoil(source, target)
    with pytest.raises(ModelError, match=message):
        quantise_model(source, target, "fp8", lambda done, of: None)
    assert not list(tmp_path.glob("place/copy.partial*"))


def test_the_copy_is_as_readable_as_its_folder_and_brings_no_description_of_other_weights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny_llama.FOLDER, source)
    (source / "README.md").write_text("Weights in float32.")
    (source / "LICENSE").write_text("Anybody may.")
    target = quantised(source, tmp_path / "target", "int8")
    assert not (target / "README.md").exists()
    assert (target / "LICENSE").read_text() == "Anybody may."
    modes = {path.name: path.stat().st_mode & 0o777 for path in target.iterdir()}
    assert len(set(modes.values())) == 1, modes
