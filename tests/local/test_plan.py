"""`baton plan`: it plans what can be served and refuses the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton_local.errors import StartError
from baton_local.hardware_arguments import shape_named

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "torch_dtype": "bfloat16",
}
FALCON = {**LLAMA, "model_type": "falcon", "architectures": ["FalconForCausalLM"]}


def folder(path: Path, config: dict[str, Any]) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_a_folder_with_a_model_that_can_be_served_is_planned(tmp_path: Path) -> None:
    assert shape_named(folder(tmp_path, LLAMA)).layers == 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FALCON, 'cannot be served: model_type: "falcon" is not supported; allowed: '),
        ({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({**LLAMA, "rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "longrope"),
    ],
)
def test_what_cannot_be_served_is_not_planned(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=message):
        shape_named(folder(tmp_path, config))


def test_what_is_no_model_is_told_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"neither one of llama-3\.1-8b, .* nor a folder with config\.json"):
        shape_named(str(tmp_path))
