"""Models that cannot be compiled ahead are refused by name, before anything is compiled."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from baton_engine.model.blank_weights import blank_model
from baton_engine.model.model_directory import read_spec
from baton_kernels.ahead.described_gpu import META
from baton_testing.engine import tiny_llama
from baton_wire.models.errors import ModelError
from baton_worker.compile_ahead import add_options, compile_kernels


def options(model: Path, target: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args([str(model), "--gpu=h100", f"--to={target}", *more])


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    config = json.loads((Path(tiny_llama.FOLDER) / "config.json").read_text())
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}))
    with pytest.raises(ModelError, match="weights stored as gptq cannot be compiled for ahead"):
        compile_kernels(options(tmp_path, tmp_path / "kernels"))
    assert not (tmp_path / "kernels").exists()


def test_a_context_that_the_model_is_not_made_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="max_context_tokens: 1000000"):
        compile_kernels(options(Path(tiny_llama.FOLDER), tmp_path / "kernels", "--max-context-tokens=1000000"))


def test_a_model_without_memory_is_the_same_with_and_without_its_weights(tmp_path: Path) -> None:
    """Shapes come from the files' headers, or from config.json alone."""
    folder = Path(tiny_llama.FOLDER)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    spec = read_spec(tmp_path)
    blank, whole = (blank_model(directory, spec, torch.bfloat16, META, 64) for directory in (tmp_path, folder))
    assert blank.embedding.shape == whole.embedding.shape
    assert len(blank.layers) == len(whole.layers)
    assert blank.embedding.device == META
