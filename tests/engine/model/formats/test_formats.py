"""Quantised checkpoints of every format: the weight bit by bit, and the model's logits beside transformers with the
weights brought back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_engine.model.formats.stored_weight import StoredWeight, join_weights
from baton_engine.model.formats.unpacking import unpack
from baton_engine.model.loading import load_model
from baton_engine.model.model_directory import read_json_object
from baton_testing.engine import quantised_models as written
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import reference_logits, reference_model, write_random_model
from baton_testing.engine.quantised_models import PROJECTIONS
from baton_wire.models.formats.eight_bits import EightBits
from baton_wire.models.formats.weight_format import WeightFormat
from baton_wire.models.parsing import parse_spec

CPU = torch.device("cpu")
TOKENS = list(range(3, 40))


FORMS = written.forms()
WHOLE_MODELS = [
    "fp8-tensor", "fp8-block", "int8-channel", "packed-4-128-zeros", "packed-4-32-order", "gptq-4-64-zeros-order",
    "gptq-8-channel-symmetric", "awq-64", "powers-mxfp4", "powers-mxfp8", "powers-blocks",
]  # fmt: skip


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("qwen2")
    return write_random_model(
        directory, "qwen2", hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=8
    )


@pytest.mark.parametrize("name", FORMS)
def test_every_weight_is_unpacked_bit_by_bit(name: str, dense: Path, tmp_path: Path) -> None:
    made = written.write_quantised(dense, tmp_path, FORMS[name])
    config = parse_spec(read_json_object(made.quantised / "config.json"))
    stored, expected = (load_file(path / "model.safetensors") for path in (made.quantised, made.dense))
    compared = 0
    for full, weight in expected.items():
        layer = full.removesuffix(".weight")
        weight_format: WeightFormat | None = config.formats.of(layer)
        if weight_format is None or not layer.endswith(PROJECTIONS) or full.endswith(".bias"):
            continue
        names = weight_format.tensors(*weight.shape)
        parts = {part: stored[f"{layer}.{part}"] for part in names if f"{layer}.{part}" in stored}
        unpacked = unpack(weight_format, parts, weight.shape[0], weight.shape[1], layer)
        assert isinstance(unpacked, StoredWeight)
        assert torch.equal(unpacked.dequantise(), weight)
        compared += 1
    assert compared == 14


DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


@pytest.mark.parametrize(
    ("inputs", "rounds", "has_scale"),
    [
        (DYNAMIC, True, False),
        ({**DYNAMIC, "strategy": "tensor", "dynamic": False}, True, True),
        ({**DYNAMIC, "symmetric": False}, False, False),
        ({**DYNAMIC, "num_bits": 4}, False, False),
        ({**DYNAMIC, "type": "float"}, False, False),
        (None, False, False),
    ],
)
def test_integers_are_multiplied_with_rounded_activations_where_the_config_says_so(
    inputs: dict[str, object] | None, rounds: bool, has_scale: bool, dense: Path, tmp_path: Path
) -> None:
    made = written.write_quantised(dense, tmp_path, FORMS["int8-channel"])
    config = json.loads((made.quantised / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = inputs
    stored = parse_spec(config).formats.of("model.layers.0.mlp.up_proj")
    assert isinstance(stored, EightBits)
    assert (stored.rounds_inputs, stored.has_input_scale) == (rounds, has_scale)
    parts = {"weight": torch.ones(4, 8, dtype=torch.int8), "weight_scale": torch.ones(4, 1)}
    weight = unpack(stored, parts, 4, 8, "layer")
    assert isinstance(weight, StoredWeight)
    assert weight.rounds_inputs == rounds
    both = join_weights([weight, replace(weight, rounds_inputs=False)])
    assert both is not None
    assert not both.rounds_inputs


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_logits_equal_those_of_transformers_with_the_weights_brought_back(
    name: str, dense: Path, tmp_path: Path
) -> None:
    made = written.write_quantised(dense, tmp_path, FORMS[name])
    loaded = load_model(made.quantised, torch.float32, CPU)
    expected = reference_logits(reference_model(made.dense), TOKENS)
    got = ModelSteps(loaded).prefill(chunk(0, TOKENS))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert loaded.model_hash != load_model(made.dense, torch.float32, CPU).model_hash


def test_layers_that_are_ignored_stay_as_they_are(dense: Path, tmp_path: Path) -> None:
    """One projection of a fused product is dense: the product is held in the model's dtype."""
    made = written.write_quantised(dense, tmp_path, written.fp8("channel"))
    config = json.loads((made.quantised / "config.json").read_text())
    config["quantization_config"]["ignore"] += ["model.layers.0.self_attn.q_proj", r"re:.*layers\.1\.mlp.*"]
    (made.quantised / "config.json").write_text(json.dumps(config))
    tensors, plain = (load_file(path / "model.safetensors") for path in (made.quantised, made.dense))
    for layer in ("0.self_attn.q_proj", "1.mlp.gate_proj", "1.mlp.up_proj", "1.mlp.down_proj"):
        name = f"model.layers.{layer}.weight"
        tensors[name] = plain[name]
        del tensors[f"{name}_scale"]
    save_file(tensors, made.quantised / "model.safetensors")
    loaded = load_model(made.quantised, torch.float32, CPU)
    expected = reference_logits(reference_model(made.dense), TOKENS)
    torch.testing.assert_close(ModelSteps(loaded).prefill(chunk(0, TOKENS)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", WHOLE_MODELS)
def test_random_weights_of_a_quantised_config_load(method: str, dense: Path, tmp_path: Path) -> None:
    made = written.write_quantised(dense, tmp_path, FORMS[method])
    loaded = load_model(f"random://{made.quantised / 'config.json'}?seed=3", torch.float32, CPU)
    logits = ModelSteps(loaded).prefill(chunk(0, TOKENS))
    assert torch.isfinite(logits).all()
    assert float(logits.std()) > 0.01
