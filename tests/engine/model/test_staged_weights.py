"""Tensors that reach a device in pieces are those of the files, whatever their sizes and types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.staged_weights import staged
from baton_engine.model.tensor_headers import TensorHeader
from baton_engine.model.weights import open_safetensors

DEVICES = ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))
PIECE = 1024


@pytest.mark.parametrize("device", DEVICES)
def test_every_tensor_arrives_as_it_is_stored(device: str, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(3)
    tensors = {
        "whole pieces": torch.randn(16, 64, generator=draw),
        "a rest": torch.randn(37, 61, generator=draw).bfloat16(),
        "an odd number of bytes": torch.randint(256, (4099,), generator=draw, dtype=torch.uint8),
        "less than a piece": torch.randn(5, generator=draw),
        "one number": torch.tensor(2.5),
        "none": torch.empty(0, 8),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    with (
        open_safetensors(find_checkpoint(tmp_path)) as source,
        torch.inference_mode(),
        staged(source, torch.device(device), PIECE) as moved,
    ):
        assert moved.headers == source.headers
        for name, tensor in tensors.items():
            read = moved.read(name)
            assert read.device.type == device
            assert read.dtype == tensor.dtype
            assert torch.equal(read.cpu(), tensor), name


class _Broken:
    headers: Mapping[str, TensorHeader] = MappingProxyType({})

    def read(self, name: str) -> Tensor:
        return torch.empty(4 * PIECE, dtype=torch.uint8, device="meta")


def test_what_a_thread_runs_into_reaches_the_reader() -> None:
    with staged(_Broken(), torch.device("cpu"), PIECE) as moved, pytest.raises(TypeError, match="meta"):
        moved.read("any")
