"""Ranks that share a quantised model compute its logits, whatever the format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_engine.collectives.collective import RankShare
from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.errors import WeightsError
from baton_engine.model.formats.stored_weight import StoredWeight
from baton_engine.model.formats.unpacking import unpack
from baton_engine.model.sharded_weights import ShardedWeights
from baton_engine.model.weights import open_safetensors
from baton_testing.engine import quantised_models as written
from baton_testing.engine.models import write_random_model
from baton_testing.engine.quantised_models import Form
from baton_testing.engine.sharded_models import (
    TOLERANCE,
    load_share,
    logits_of_ranks,
    logits_over_steps,
    write_shareable_model,
)
from baton_wire.models.formats.packed_integers import Gptq
from baton_wire.models.parsing import parse_spec

FORMS: dict[str, Form] = {
    "fp8-tensor": written.fp8("tensor"),
    "fp8-channel": written.fp8("channel"),
    "fp8-block": written.fp8("block"),
    "int8-channel": written.int8_channels(),
    "packed-4-64-zeros": written.packed(4, 64, False),
    "packed-8-channel": written.packed(8, 0, True),
    "packed-4-32-order": written.packed(4, 32, False, by_order=True),
    "gptq-4-64-zeros": written.gptq(4, 64, False, by_order=False),
    "gptq-4-64-order": written.gptq(4, 64, True, by_order=True),
    "gptq-8-channel-v2": written.gptq(8, 0, False, False, "gptq_v2"),
    "awq-64": written.awq(64),
    "powers-mxfp4": written.powers("mxfp4"),
    "powers-mxfp8": written.powers("mxfp8"),
    "powers-blocks": written.powers("blocks"),
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8}
    return write_random_model(tmp_path_factory.mktemp("qwen2"), "qwen2", num_key_value_heads=8, **sizes)


@pytest.mark.parametrize("name", FORMS)
def test_two_ranks_have_the_logits_of_one(name: str, dense: Path, tmp_path: Path) -> None:
    path = written.write_quantised(dense, tmp_path, FORMS[name]).quantised
    expected = logits_over_steps(load_share(path))
    torch.testing.assert_close(logits_of_ranks(path, 2), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["fp8-channel", "gptq-4-64-zeros", "int8-channel"])
def test_random_weights_of_a_format_are_the_same_numbers_for_ranks(name: str, dense: Path, tmp_path: Path) -> None:
    config = json.loads((dense / "config.json").read_text()) | {"quantization_config": FORMS[name].config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = f"random://{tmp_path / 'config.json'}?seed=3"
    expected = logits_over_steps(load_share(source))
    torch.testing.assert_close(logits_of_ranks(source, 2), expected, rtol=0, atol=TOLERANCE)


def test_experts_in_mxfp4_are_shared_out_by_rows_of_32(tmp_path: Path) -> None:
    plain = write_shareable_model(tmp_path / "plain", "gpt-oss", 2, intermediate_size=128)
    written.write_mxfp4(plain, tmp_path / "quantised")
    expected = logits_over_steps(load_share(tmp_path / "quantised"))
    torch.testing.assert_close(logits_of_ranks(tmp_path / "quantised", 4), expected, rtol=0, atol=TOLERANCE)


def test_quantised_experts_are_shared_out(tmp_path: Path) -> None:
    dense = write_shareable_model(tmp_path / "plain", "mixtral", 8, intermediate_size=128, num_hidden_layers=1)
    path = written.write_quantised(dense, tmp_path, written.packed(4, 32, False)).quantised
    expected = logits_over_steps(load_share(path))
    torch.testing.assert_close(logits_of_ranks(path, 2), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("by_order", "kind"), [(False, StoredWeight), (True, Tensor)])
def test_a_part_of_whole_groups_stays_quantised(by_order: bool, kind: type, dense: Path, tmp_path: Path) -> None:
    """`g_idx` in any order leaves a rank parts of groups: its part is dequantised."""
    form = written.gptq(4, 64, False, by_order=by_order)
    made = written.write_quantised(dense, tmp_path, form)
    layer = "model.layers.0.mlp.down_proj"
    expected = load_file(made.dense / "model.safetensors")[f"{layer}.weight"]
    config = parse_spec(json.loads((made.quantised / "config.json").read_text()))
    stored = config.formats.of(layer)
    assert stored is not None
    with open_safetensors(find_checkpoint(made.quantised)) as opened:
        for rank in range(2):
            source = ShardedWeights(opened, config, RankShare(rank, 2))
            parts = {name: source.read(f"{layer}.{name}") for name in stored.tensors(256, 128)}
            weight = unpack(stored, parts, 256, 128, layer)
            assert isinstance(weight, kind)
            dense_part = weight.dequantise() if isinstance(weight, StoredWeight) else weight
            assert torch.equal(dense_part, expected[:, rank * 128 : rank * 128 + 128])


def test_a_part_whose_groups_are_not_stated_is_that_of_the_whole(dense: Path, tmp_path: Path) -> None:
    path = written.write_quantised(dense, tmp_path, written.gptq(4, 64, False, by_order=False)).quantised
    tensors = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith("g_idx")}
    save_file(kept, path / "model.safetensors")
    expected = logits_over_steps(load_share(path))
    torch.testing.assert_close(logits_of_ranks(path, 2), expected, rtol=0, atol=TOLERANCE)


def test_a_part_with_more_columns_of_a_group_than_there_are_is_refused() -> None:
    stored = Gptq(4, 64, True, has_order=True)
    parts = {
        "qweight": torch.zeros(16, 8, dtype=torch.int32),
        "qzeros": torch.zeros(4, 1, dtype=torch.int32),
        "scales": torch.ones(4, 8),
        "g_idx": torch.tensor([0] * 65 + [1] * 63, dtype=torch.int32),
    }
    with pytest.raises(WeightsError, match="g_idx: places columns in groups of other sizes than the config's 64"):
        unpack(stored, parts, 8, 128, "layer")
    parts["g_idx"] = torch.tensor([0] * 64 + [4] * 64, dtype=torch.int32)
    with pytest.raises(WeightsError, match="g_idx: places columns"):
        unpack(stored, parts, 8, 128, "layer")
