"""The names, shapes and dtypes of a checkpoint's tensors, from the headers of its safetensors files, and whether they
are those that its config asks for. No torch here, and no weight is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from baton_engine.model.checkpoint_files import CheckpointFiles
from baton_engine.model.errors import WeightsError
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.formats.weight_format import Shape
from baton_wire.models.parameters import (
    HEAD,
    expected_tensors,
    is_harmless_extra,
    linear_sizes,
    may_hold_zeros,
)
from baton_wire.models.wrappers import text_name

MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""
ELEMENT_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "F4": 4,
}  # fmt: skip
FLOATS: Final = ("F16", "BF16", "F32", "F64")
"""Dtypes that a worker casts to its own; the others stay as they are stored."""
BARE_EMBEDDING: Final = "embed_tokens.weight"
BARE_STARTS: Final = ("embed_tokens.", "layers.", "norm.")
"""Names in a model that was saved without its head, such as an embedding model: `model.` is missing."""
_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class TensorHeader:
    shape: Shape
    dtype: str
    """The dtype's name in safetensors files."""


def read_headers(files: CheckpointFiles) -> dict[str, TensorHeader]:
    """The tensors of all files. Raises WeightsError for a broken or truncated file, and for one that is not what the
    index says."""
    headers: dict[str, TensorHeader] = {}
    for path in files.paths:
        for name, header in _read_file(path).items():
            if name in headers:
                raise WeightsError(f"{path.name}: tensor {name} is in another file too")
            if files.index and files.index.get(name) != path.name:
                raise WeightsError(f"{path.name}: holds tensor {name}, which the index does not place there")
            headers[name] = header
    missing = [name for name in files.index if name not in headers]
    if missing:
        raise WeightsError(
            f"{files.index[missing[0]]}: lacks tensors that the index places there: {list_names(missing)}"
        )
    return headers


def _read_file(path: Path) -> dict[str, TensorHeader]:
    """The tensors of one file, whose length has to be what its header says. Raises WeightsError."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            raw = json.loads(file.read(length))
        entries = {name: entry for name, entry in raw.items() if name != "__metadata__"}
        headers = {name: TensorHeader(tuple(map(int, e["shape"])), str(e["dtype"])) for name, e in entries.items()}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise WeightsError(f"{path.name}: is not a whole safetensors file: {error}") from error
    size = path.stat().st_size
    if size < 8 + length + end:
        raise WeightsError(
            f"{path.name}: is not a whole safetensors file: it has {size} bytes, its header says {8 + length + end}"
        )
    return headers


def language_model_names(headers: Mapping[str, TensorHeader]) -> dict[str, str]:
    """The tensors of a language model inside a model for images and text: its own name of each → the name in the file.
    Raises WeightsError where two tensors get one name."""
    names: dict[str, str] = {}
    is_bare = BARE_EMBEDDING in headers
    for name in headers:
        own = f"model.{name}" if is_bare and name.startswith(BARE_STARTS) else text_name(name)
        if own is None:
            continue
        if own in names:
            raise WeightsError(f"tensor {name}: exists as {names[own]} too")
        names[own] = name
    return names


def is_renamed(headers: Mapping[str, TensorHeader], config: DecoderSpec) -> bool:
    """True for tensors of a model for images and text, and for those of a model that was saved without its head."""
    return config.wrapper is not None or BARE_EMBEDDING in headers


def served_headers(headers: Mapping[str, TensorHeader], config: DecoderSpec) -> Mapping[str, TensorHeader]:
    """The tensors that are served, by the names that the language model has. Raises WeightsError."""
    if not is_renamed(headers, config):
        return headers
    return {own: headers[name] for own, name in language_model_names(headers).items()}


def without_head(headers: Mapping[str, TensorHeader], config: DecoderSpec) -> DecoderSpec:
    """The model as its tensors have it: an embedding model is often saved without the head that its config names."""
    if not config.pooling.is_stated or config.tied_head or HEAD in headers:
        return config
    return replace(config, tied_head=True, generates=False)


def check_headers(headers: Mapping[str, TensorHeader], config: DecoderSpec) -> list[str]:
    """Raises WeightsError naming tensors that are missing, misshapen for the config, or not understood, and
    ModelConfigError for a `quantization_config` that names no layer or suits none. Returns tensors that the model does
    not have and that are fine if they hold zeros."""
    expected = expected_tensors(config)
    config.formats.check(list(linear_sizes(config)), [name.rpartition(".")[0] for name in expected])
    missing = [name for name, form in expected.items() if name not in headers and not form.optional]
    if missing:
        raise WeightsError(f"missing tensors: {list_names(missing)}")
    for name, form in expected.items():
        if name not in headers:
            continue
        header = headers[name]
        if header.shape not in form.shapes:
            allowed = " or ".join(str(list(shape)) for shape in form.shapes)
            raise WeightsError(
                f"tensor {name}: shape {list(header.shape)} does not fit the config, which asks for {allowed}"
            )
        if header.dtype not in form.dtypes:
            raise WeightsError(f"tensor {name}: has dtype {header.dtype}; allowed: {', '.join(form.dtypes)}")
    extra = [name for name in headers if name not in expected and not is_harmless_extra(name, config)]
    zeros = [name for name in extra if may_hold_zeros(name, config)]
    extra = [name for name in extra if name not in zeros]
    if extra:
        raise WeightsError(f"tensors that a {config.family} model of this config does not have: {list_names(extra)}")
    return zeros


def weight_bytes(headers: Mapping[str, TensorHeader], config: DecoderSpec, element_bytes: int) -> int:
    """Memory for the weights of a worker that computes in a dtype of `element_bytes`: quantised ones stay as stored."""
    served = [header for name, header in headers.items() if name in expected_tensors(config)]
    if config.tied_head and HEAD in headers:
        served.remove(headers[HEAD])
    return sum(_bytes(header, element_bytes) for header in served)


def _bytes(header: TensorHeader, element_bytes: int) -> int:
    bits = 8 * element_bytes if header.dtype in FLOATS else ELEMENT_BITS.get(header.dtype, 8 * element_bytes)
    return math.prod(header.shape) * bits // 8


def list_names(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
