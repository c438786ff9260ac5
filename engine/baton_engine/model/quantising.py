"""Write a quantised copy of a model: each weight rounded to the nearest value of its scale, nothing calibrated.

The copy is in compressed-tensors' forms, which other engines read too: e4m3 with a scale a channel, integers of 8 bits
with a scale a channel, integers of 4 bits with a scale for each group of columns. Embedding, norms, routers, experts
in stacks and head are copied unchanged.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from baton_engine.model.checkpoint_files import INDEX, SINGLE, CheckpointFiles, find_checkpoint
from baton_engine.model.finite_weights import finite
from baton_engine.model.formats.stored_weight import FP8
from baton_engine.model.model_directory import read_json_object, read_spec
from baton_engine.model.weights import check_parameters, open_safetensors
from baton_wire.models.decoder_spec import DecoderSpec, Experts, StackedTensors
from baton_wire.models.errors import ModelError
from baton_wire.models.parameters import HEAD_LAYER, layer_prefix, linear_sizes

Format = Literal["fp8", "int8", "int4"]
FORMATS: Final[tuple[Format, ...]] = ("fp8", "int8", "int4")
GROUPS: Final = (128, 64, 32, 16)
"""Columns that share a scale of 4 bits: the first one that divides every layer."""
COPIED: Final = (".json", ".jinja", ".model", ".txt", ".md")
LICENCES: Final = ("license", "notice")
"""Names of files without a suffix that go with every copy."""
DESCRIPTION: Final = "readme"
"""A README describes the source's weights: it stays there."""
GREATEST: Final = {"fp8": 448.0, "int8": 127.0, "int4": 7.0}
_LEAST: Final = 2.0**-24
"""Least scale: a channel of zeros has one too."""


def quantise_model(source: Path, target: Path, kind: Format, report: Callable[[int, int], None]) -> None:
    """Write the copy into the new directory `target`. `report` gets the number of tensors done and of all tensors.

    Raises ModelError when `source` can't be served, is quantised already or is not finite, when `target` exists, and
    when its disk is full.
    """
    config = read_spec(source)
    if config.formats.method is not None:
        raise ModelError(f"{source}: is quantised already ({config.formats.method}); allowed: unquantised weights")
    if config.wrapper is not None:
        raise ModelError(f"{source}: model_type {config.wrapper} has parts for images; allowed: language models alone")
    if target.exists():
        raise ModelError(f"{target}: exists already; allowed: a new directory")
    group = _group(config)
    files = find_checkpoint(source)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        _write_weights(files, partial, config, kind, group, report)
        _copy_rest(source, partial, files)
        fields = {
            **read_json_object(source / "config.json"),
            "quantization_config": _section(kind, group, _unquantised_modules(config)),
        }
        (partial / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
        partial.rename(target)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written: {error.strerror}") from error
    except SafetensorError as error:  # which hides the system's
        raise ModelError(f"{target}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def quantise(weight: Tensor, kind: Format, group: int) -> dict[str, Tensor]:
    """Round weight [features, columns] to the format. Returns the tensors to store, by name."""
    wide = weight.float()
    features, columns = wide.shape
    parts = wide.view(features, -1, group if kind == "int4" else columns)
    scales = (parts.abs().amax(-1) / GREATEST[kind]).clamp(min=_LEAST).to(torch.bfloat16)
    codes = (parts / scales.float()[..., None]).view(features, columns)
    if kind == "fp8":
        return {"weight": codes.clamp(-448, 448).to(FP8), "weight_scale": scales}
    if kind == "int8":
        return {"weight": codes.round().clamp(-128, 127).to(torch.int8), "weight_scale": scales}
    nibbles = (codes.round().clamp(-8, 7) + 8).to(torch.uint8)
    padded = torch.nn.functional.pad(nibbles, (0, -columns % 8))
    words = (padded[:, ::2] | padded[:, 1::2] << 4).contiguous().view(torch.int32)
    return {"weight_packed": words, "weight_scale": scales, "weight_shape": torch.tensor([features, columns])}


def _group(config: DecoderSpec) -> int:
    columns = {size[1] for layer, size in linear_sizes(config).items() if layer != HEAD_LAYER}
    for group in GROUPS:
        if all(count % group == 0 for count in columns):
            return group
    raise ModelError(f"columns of {sorted(columns)} do not divide into groups; allowed: multiples of {GROUPS[-1]}")


def _unquantised_modules(config: DecoderSpec) -> list[str]:
    """Names of the modules that stay unquantised. Readers other than Baton take a router for a linear layer too."""
    modules = [HEAD_LAYER]
    for number, layer in enumerate(config.layers):
        if isinstance(experts := layer.feed_forward, Experts):
            modules.append(layer_prefix(number) + experts.router)
            if experts.shared is not None and experts.shared.gate is not None:
                modules.append(layer_prefix(number) + experts.shared.gate)
            if isinstance(experts.tensors, StackedTensors):
                modules.append(
                    layer_prefix(number) + experts.tensors.gate_up.removesuffix(".weight").rpartition(".")[0]
                )
    return modules


def _section(kind: Format, group: int, unquantised: list[str]) -> dict[str, Any]:
    """The `quantization_config` of the copy."""
    weights: dict[str, Any] = {"num_bits": 4 if kind == "int4" else 8, "symmetric": True, "dynamic": False}
    weights["type"] = "float" if kind == "fp8" else "int"
    weights |= {"strategy": "group", "group_size": group} if kind == "int4" else {"strategy": "channel"}
    token = {"num_bits": 8, "type": weights["type"], "symmetric": True, "strategy": "token", "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": {"fp8": "float-quantized", "int8": "int-quantized", "int4": "pack-quantized"}[kind],
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None if kind == "int4" else token,
                "output_activations": None,
            }
        },
        "ignore": unquantised,
    }


def _write_weights(
    files: CheckpointFiles,
    target: Path,
    config: DecoderSpec,
    kind: Format,
    group: int,
    report: Callable[[int, int], None],
) -> None:
    """Write one file for each of the source's, so that memory holds one file at a time."""
    quantised = set(linear_sizes(config)) - {HEAD_LAYER}
    places: dict[str, str] = {}
    done = 0
    with open_safetensors(files) as weights:
        check_parameters(weights, config)
        for path in files.paths:
            written: dict[str, Tensor] = {}
            for name in (name for name in weights.headers if files.index.get(name, path.name) == path.name):
                layer, _, part = name.rpartition(".")
                if layer in quantised and part == "weight":
                    parts = quantise(finite(name, weights), kind, group)
                    written |= {f"{layer}.{key}": value for key, value in parts.items()}
                else:
                    written[name] = weights.read(name).clone()
                done += 1
                report(done, len(weights.headers))
            save_file(written, target / path.name, metadata={"format": "pt"})
            (target / path.name).chmod(target.stat().st_mode & 0o666)  # safetensors makes it for its owner alone
            places |= dict.fromkeys(written, path.name)
    if files.paths[0].name != SINGLE:
        _write_index(target, places)


def _write_index(target: Path, places: Mapping[str, str]) -> None:
    size = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    (target / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _copy_rest(source: Path, target: Path, files: CheckpointFiles) -> None:
    """Copy tokenizer, template and generation defaults: small files of the directory itself."""
    weights = {path.name for path in files.paths} | {INDEX, "config.json"}
    for path in sorted(source.iterdir()):
        name = path.name.lower()
        is_wanted = (path.suffix in COPIED or name in LICENCES) and not name.startswith(DESCRIPTION)
        if path.name in weights or not is_wanted or not path.is_file():
            continue
        if path.resolve().is_relative_to(source.resolve()):
            shutil.copyfile(path, target / path.name)
