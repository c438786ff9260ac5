"""Where a model's tensors come from: safetensors files, or random numbers of the right shapes.

A source knows names, shapes and values; whether they are the right ones for a config is checked once in
`check_parameters`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton_engine.model.checkpoint_files import CheckpointFiles
from baton_engine.model.errors import WeightsError
from baton_engine.model.model_config import ModelConfig
from baton_engine.model.parameters import Shape, expected_shapes, is_harmless_extra

LOADABLE: Final = ("F32", "BF16", "F16", "F64")
_SHOWN: Final = 6
_CPU: Final = torch.device("cpu")


class WeightSource(Protocol):
    """Tensors by name. `read` may be called once for each name; the result may be a view of a mapped file."""

    @property
    def shapes(self) -> Mapping[str, Shape]: ...

    def read(self, name: str) -> Tensor: ...


class SafetensorsWeights:
    """Tensors of open safetensors files; valid inside `open_safetensors`."""

    def __init__(self, handles: Mapping[str, safe_open], shapes: Mapping[str, Shape]) -> None:
        self._handles = handles
        self.shapes = shapes

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor


@contextmanager
def open_safetensors(files: CheckpointFiles) -> Iterator[SafetensorsWeights]:
    """Map the files and read their headers. Raises WeightsError for a broken or truncated file, naming it."""
    handles: dict[str, safe_open] = {}
    shapes: dict[str, Shape] = {}
    with ExitStack() as stack:
        for path in files.paths:
            handle = stack.enter_context(_open(path))
            for name in handle.keys():  # noqa: SIM118  (not a dictionary)
                if name in handles:
                    raise WeightsError(f"{path.name}: tensor {name} is in another file too")
                if files.index and files.index.get(name) != path.name:
                    raise WeightsError(f"{path.name}: holds tensor {name}, which the index does not place there")
                shapes[name] = _checked_shape(handle, name, path)
                handles[name] = handle
        missing = [name for name in files.index if name not in handles]
        if missing:
            raise WeightsError(
                f"{files.index[missing[0]]}: lacks tensors that the index places there: {_listed(missing)}"
            )
        yield SafetensorsWeights(handles, shapes)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path.name}: is not a whole safetensors file: {error}") from error


def _checked_shape(handle: safe_open, name: str, path: Path) -> Shape:
    entry = handle.get_slice(name)  # type: ignore[no-untyped-call]
    if entry.get_dtype() not in LOADABLE:
        raise WeightsError(f"{path.name}: tensor {name} has dtype {entry.get_dtype()}; allowed: {', '.join(LOADABLE)}")
    return tuple(entry.get_shape())


class RandomWeights:
    """Normal matrices (standard deviation 0.02, biases too) and norms of one: a model's speed without its file.

    Each tensor depends on (seed, name) and on the kind of device that draws it.
    """

    def __init__(self, config: ModelConfig, seed: int, device: torch.device = _CPU) -> None:
        self._seed = seed
        self._device = device
        self.shapes: Mapping[str, Shape] = expected_shapes(config)

    def read(self, name: str) -> Tensor:
        shape = self.shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self._device)
        key = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(key[:7], "little"))
        return torch.randn(math.prod(shape), generator=generator, device=self._device).mul_(0.02).view(shape)


def check_parameters(source: WeightSource, config: ModelConfig) -> None:
    """Raises WeightsError naming tensors that are missing, misshapen for the config, or not understood."""
    expected, found = expected_shapes(config), source.shapes
    missing = [name for name in expected if name not in found]
    if missing:
        raise WeightsError(f"missing tensors: {_listed(missing)}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise WeightsError(
                f"tensor {name}: shape {list(found[name])} does not fit the config, which asks for {list(shape)}"
            )
    extra = [name for name in found if name not in expected and not is_harmless_extra(name, config)]
    if extra:
        raise WeightsError(f"tensors that a {config.family} model of this config does not have: {_listed(extra)}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
