"""Sources of a model's tensors: safetensors files, or random numbers of the right shapes.

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
from baton_engine.model.formats.random_tensors import FP4_EXPONENT, draw
from baton_engine.model.tensor_headers import TensorHeader, check_headers, is_renamed, language_model_names, list_names
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.parameters import (
    EMBEDDING,
    HEAD,
    expected_tensors,
    linear_sizes,
)
from baton_wire.models.sharding.tensor_parts import TensorSlice

_CPU: Final = torch.device("cpu")


class WeightSource(Protocol):
    """Tensors by name. `read` may be called once for each name; the result may be a view of a mapped file."""

    @property
    def headers(self) -> Mapping[str, TensorHeader]: ...

    def read(self, name: str) -> Tensor: ...


class SlicedSource(WeightSource, Protocol):
    """A source that can read a part of a tensor."""

    def read_slice(self, name: str, part: TensorSlice) -> Tensor: ...


class SafetensorsWeights:
    """Tensors of open safetensors files; valid inside `open_safetensors`."""

    def __init__(self, handles: Mapping[str, safe_open], headers: Mapping[str, TensorHeader]) -> None:
        self._handles = handles
        self.headers = headers

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor

    def read_slice(self, name: str, part: TensorSlice) -> Tensor:
        """Read the slice's bytes alone."""
        stored = self._handles[name].get_slice(name)  # type: ignore[no-untyped-call]
        before = (slice(None),) * part.axis
        pieces: list[Tensor] = [stored[(*before, slice(rows.start, rows.stop))] for rows in part.ranges]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, part.axis)


class LanguageModelWeights:
    """The language model's tensors of a model for images and text, by the names that it has alone."""

    def __init__(self, source: SlicedSource) -> None:
        """Raises WeightsError where two tensors get one name."""
        self._source = source
        self._names = language_model_names(source.headers)
        self.headers: Mapping[str, TensorHeader] = {own: source.headers[name] for own, name in self._names.items()}

    def read(self, name: str) -> Tensor:
        return self._source.read(self._names[name])

    def read_slice(self, name: str, part: TensorSlice) -> Tensor:
        return self._source.read_slice(self._names[name], part)


def served_tensors(source: SlicedSource, config: DecoderSpec) -> SlicedSource:
    """The tensors of a checkpoint that are served, by the names that the language model has. Raises WeightsError."""
    return LanguageModelWeights(source) if is_renamed(source.headers, config) else source


@contextmanager
def open_safetensors(files: CheckpointFiles) -> Iterator[SafetensorsWeights]:
    """Map the files and read their headers. Raises WeightsError for a broken or truncated file, naming it."""
    handles: dict[str, safe_open] = {}
    headers: dict[str, TensorHeader] = {}
    with ExitStack() as stack:
        for path in files.paths:
            handle = stack.enter_context(_open(path))
            for name in handle.keys():  # noqa: SIM118  (not a dictionary)
                if name in handles:
                    raise WeightsError(f"{path.name}: tensor {name} is in another file too")
                if files.index and files.index.get(name) != path.name:
                    raise WeightsError(f"{path.name}: holds tensor {name}, which the index does not place there")
                headers[name] = _header(handle, name)
                handles[name] = handle
        missing = [name for name in files.index if name not in handles]
        if missing:
            raise WeightsError(
                f"{files.index[missing[0]]}: lacks tensors that the index places there: {list_names(missing)}"
            )
        yield SafetensorsWeights(handles, headers)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path.name}: is not a whole safetensors file: {error}") from error


def _header(handle: safe_open, name: str) -> TensorHeader:
    entry = handle.get_slice(name)  # type: ignore[no-untyped-call]
    return TensorHeader(tuple(entry.get_shape()), str(entry.get_dtype()))


class RandomWeights:
    """Normal matrices (standard deviation 0.02, biases too) and norms of one: a model's speed without its file.

    Each tensor depends on (seed, name) and on the kind of device that draws it.
    """

    def __init__(self, config: DecoderSpec, seed: int, device: torch.device = _CPU) -> None:
        self._seed = seed
        self._device = device
        self._formats = config.formats
        self._drawn: dict[str, Tensor] = {}
        self.headers: Mapping[str, TensorHeader] = {
            name: TensorHeader(form.shapes[0], form.dtypes[0])
            for name, form in expected_tensors(config).items()
            if not form.optional
        }
        self._sizes = linear_sizes(config)

    def read(self, name: str) -> Tensor:
        shape = self.headers[name].shape
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self._device)
        layer, _, part = name.rpartition(".")
        stored = self._formats.of(layer) if layer in self._sizes and part != "bias" else None
        if stored is None and self.headers[name].dtype == "U8":  # of experts in stacks
            if name.endswith("_scales"):
                return torch.full(shape, FP4_EXPONENT, dtype=torch.uint8, device=self._device)
            return torch.randint(256, shape, generator=self._generator(name), dtype=torch.uint8, device=self._device)
        if stored is None:
            return (
                torch.randn(math.prod(shape), generator=self._generator(name), device=self._device)
                .mul_(0.02)
                .view(shape)
            )
        if name not in self._drawn:
            drawn = draw(stored, *self._sizes[layer], self._generator(layer))
            self._drawn |= {f"{layer}.{key}": tensor for key, tensor in drawn.items()}
        return self._drawn.pop(name)

    def read_slice(self, name: str, part: TensorSlice) -> Tensor:
        """The slice of the tensor that one rank alone would draw."""
        whole = self.read(name)
        return torch.cat([whole.narrow(part.axis, rows.start, len(rows)) for rows in part.ranges], part.axis)

    def _generator(self, name: str) -> torch.Generator:
        key = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        return torch.Generator(self._device).manual_seed(int.from_bytes(key[:7], "little"))


def check_parameters(source: WeightSource, config: DecoderSpec) -> None:
    """Raises WeightsError naming tensors that are missing, misshapen for the config, or not understood, and
    ModelConfigError for a `quantization_config` that names no layer or suits none."""
    headers = source.headers
    for name in check_headers(headers, config):
        if bool(source.read(name).any()):
            raise WeightsError(f"tensor {name}: is not zero; a {config.family} model of this config has no such bias")
    if config.tied_head and HEAD in headers and not _is_same(source.read(HEAD), source.read(EMBEDDING)):
        raise WeightsError(
            f"tensor {HEAD}: is not {EMBEDDING}, as tie_word_embeddings: true says; allowed: the same, or"
            " tie_word_embeddings: false"
        )


def _is_same(head: Tensor, embedding: Tensor) -> bool:
    """Compare in the coarser dtype: some files store the two in different dtypes."""
    coarser = min(head.dtype, embedding.dtype, key=lambda dtype: dtype.itemsize)
    return head.shape == embedding.shape and torch.equal(head.to(coarser), embedding.to(coarser))
