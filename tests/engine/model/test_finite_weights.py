"""Weights that are no numbers are refused by name on every device, wherever the value is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.errors import WeightsError
from baton_engine.model.finite_weights import FiniteWeights
from baton_engine.model.loading import load_model
from baton_engine.model.staged_weights import staged
from baton_engine.model.tensor_headers import TensorHeader
from baton_engine.model.weights import open_safetensors

needs_gpu = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
DEVICES = ("cpu", pytest.param("cuda", marks=needs_gpu))
NONE = (float("nan"), float("inf"), -float("inf"))


class _Held:
    """Tensors at hand."""

    headers: Mapping[str, TensorHeader] = {}

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


def _with(value: float, at: int, dtype: torch.dtype = torch.float32) -> Tensor:
    tensor = torch.full((3, 700), 0.5, dtype=dtype)
    tensor.view(-1)[at] = value
    return tensor


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("at", [0, 1049, 2099])
@pytest.mark.parametrize("value", NONE)
def test_a_value_that_is_no_number_is_found_in_a_file(
    value: float, at: int, dtype: torch.dtype, device: str, tmp_path: Path
) -> None:
    """Through pieces of a KiB, as large tensors reach a GPU."""
    tensors = {"first": torch.full((2, 3), -1.0), "second": _with(value, at, dtype), "third": torch.ones(4, 4)}
    save_file(tensors, tmp_path / "model.safetensors")
    with (
        open_safetensors(find_checkpoint(tmp_path)) as source,
        torch.inference_mode(),
        staged(source, torch.device(device), 1024) as moved,
    ):
        weights = FiniteWeights(moved)
        for name, tensor in tensors.items():
            read = weights.read(name)
            assert read.device.type == device
            assert torch.equal(read.cpu().nan_to_num(), tensor.nan_to_num())
        with pytest.raises(WeightsError, match=r"^tensor second: holds an infinity or no number; allowed: finite wei"):
            weights.check()


def test_the_first_one_read_is_named_and_told_once() -> None:
    weights = FiniteWeights(_Held(a=torch.ones(2), b=_with(NONE[0], 1), c=_with(NONE[1], 2)))
    for name in "acb":
        weights.read(name)
    with pytest.raises(WeightsError, match=r"^tensor c:"):
        weights.check()
    weights.read("a")
    weights.check()


def test_greatest_values_of_each_dtype_are_numbers() -> None:
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    held = {f"t{at}": torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)
            for at, dtype in enumerate(dtypes)}  # fmt: skip
    weights = FiniteWeights(_Held(**held))
    for name in held:
        weights.read(name)
    weights.check()


def test_codes_are_passed_over() -> None:
    """0x7F of e4m3 is no number: `unpacking` says so by the format's own words."""
    held = {
        "codes": torch.full((4,), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn),
        "words": torch.full((4,), -1, dtype=torch.int32),
        "blocks": torch.full((4,), 255, dtype=torch.uint8),
    }
    weights = FiniteWeights(_Held(**held))
    for name, tensor in held.items():
        assert weights.read(name) is tensor
    weights.check()


def test_a_broken_file_is_not_read_to_its_end() -> None:
    weights = FiniteWeights(_Held(good=torch.ones(2, 700), bad=_with(NONE[0], 5)), look_bytes=(2100 + 3 * 1400) * 4)
    weights.read("bad")
    for _ in range(2):
        weights.read("good")
    with pytest.raises(WeightsError, match=r"^tensor bad:"):
        weights.read("good")


def spoilt(folder: Path, name: str, value: float) -> Path:
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[7] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("offloaded", [0, 2])
@pytest.mark.parametrize("value", NONE)
@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.weight",
     "model.layers.2.self_attn.v_proj.weight", "lm_head.weight"],
)  # fmt: skip
def test_a_checkpoint_is_refused_on_a_gpu(
    name: str, value: float, offloaded: int, tiny: Callable[[str], Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny("llama-gqa").directory, tmp_path / "model"))
    cuda = torch.device("cuda")
    load_model(folder, torch.bfloat16, cuda, offloaded=offloaded)
    with pytest.raises(WeightsError, match=f"^tensor {name}: holds an infinity or no number; allowed: finite weights$"):
        load_model(spoilt(folder, name, value), torch.bfloat16, cuda, offloaded=offloaded)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("at", [0, -1])
def test_more_than_two_gib_are_looked_at_to_their_end_on_a_gpu(at: int) -> None:
    """As the embedding of a large vocabulary has: such a reduction is launched in parts."""
    tensor = torch.ones((1 << 30) + 4096, dtype=torch.bfloat16, device="cuda")
    weights = FiniteWeights(_Held(large=tensor))
    weights.read("large")
    tensor[at] = NONE[0]
    with pytest.raises(WeightsError, match=r"^tensor large:"):
        weights.read("large")
