"""Quantised checkpoints written from formulas alone, each with the same model in dequantised weights.

The packing here is written apart from the engine's, value by value, from the formats' public descriptions.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_engine.model.formats.unpacking import unpack_mxfp4

PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", ".w1", ".w2", ".w3"),
    *("shared_mlp.input_linear", "shared_mlp.output_linear"),
)
"""Ends of the names of quantised layers; Mixtral's experts have numbers."""
FOUR_BIT_FLOATS = [sign * size for sign in (1.0, -1.0) for size in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)]
"""By their codes: a sign, two bits of exponent, one of mantissa."""
LAYOUTS_OF_POWERS = ("mxfp4", "mxfp8", "modelopt", "blocks", "rows")
"""What `powers` takes."""
Parts = dict[str, Tensor]


@dataclass(frozen=True)
class Form:
    """A way of storing: what config.json says, and how a weight [N, K] becomes tensors and W again."""

    config: dict[str, Any]
    store: Callable[[Tensor, int], tuple[Parts, Tensor]]
    """Weight and a seed → its tensors and W in float32."""


@dataclass(frozen=True)
class Written:
    quantised: Path
    dense: Path
    """The same with W in float32, as transformers reads it."""


def write_quantised(source: Path, target: Path, form: Form) -> Written:
    """Two copies of a dense model's directory: quantised, and with the weights that this means."""
    written = Written(target / "quantised", target / "dense")
    for copy in (written.quantised, written.dense):
        shutil.copytree(source, copy)
    tensors = load_file(source / "model.safetensors")
    stored, dense = dict(tensors), dict(tensors)
    for seed, name in enumerate(sorted(tensors)):
        layer, _, last = name.rpartition(".")
        if last == "weight" and layer.endswith(PROJECTIONS):
            parts, weight = form.store(stored.pop(name), seed)
            stored |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in parts.items()}
            dense[name] = weight.contiguous()
    save_file(stored, written.quantised / "model.safetensors")
    save_file(dense, written.dense / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (written.quantised / "config.json").write_text(json.dumps({**config, "quantization_config": form.config}))
    return written


def fp8(scale: str) -> Form:
    """scale: tensor, channel or block (of 128 x 128), as the method `fp8` or compressed-tensors writes them."""

    def store(weight: Tensor, seed: int) -> tuple[Parts, Tensor]:
        rows, columns = weight.shape
        tile = {"tensor": (rows, columns), "channel": (1, columns), "block": (128, 128)}[scale]
        down, across = -(-rows // tile[0]), -(-columns // tile[1])
        scales, codes = torch.empty(down, across), torch.empty_like(weight)
        for i in range(down):
            for j in range(across):
                at = (slice(i * tile[0], (i + 1) * tile[0]), slice(j * tile[1], (j + 1) * tile[1]))
                scales[i, j] = weight[at].abs().max() / 448
                codes[at] = (weight[at] / scales[i, j]).clamp(-448, 448).to(torch.float8_e4m3fn).float()
        wide = scales.repeat_interleave(tile[0], 0)[:rows].repeat_interleave(tile[1], 1)[:, :columns]
        name = "weight_scale_inv" if scale == "block" else "weight_scale"
        stored_scales = scales.reshape(()) if scale == "tensor" else scales
        return {"weight": codes.to(torch.float8_e4m3fn), name: stored_scales.clone()}, codes * wide

    if scale == "channel":
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
        activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
        return Form(_compressed("float-quantized", weights, activations), store)
    config: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    if scale == "block":
        config["weight_block_size"] = [128, 128]
    return Form(config, store)


def powers(layout: str) -> Form:
    """e4m3 or e2m1 with scales that are powers of two, an exponent + 127 each. layout: `mxfp4` or `mxfp8` of
    compressed-tensors, `modelopt`, or of the method fp8 `blocks` of 128 x 128 or `rows` of 32 columns."""
    tile = (128, 128) if layout == "blocks" else (1, 32)
    top = 6.0 if layout == "mxfp4" else 448.0

    def store(weight: Tensor, seed: int) -> tuple[Parts, Tensor]:
        rows, columns = weight.shape
        exponents = torch.empty(-(-rows // tile[0]), -(-columns // tile[1]), dtype=torch.uint8)
        meant, codes = torch.empty_like(weight), torch.empty(rows, columns, dtype=torch.uint8)
        for i in range(exponents.shape[0]):
            for j in range(exponents.shape[1]):
                at = (slice(i * tile[0], (i + 1) * tile[0]), slice(j * tile[1], (j + 1) * tile[1]))
                exponent = math.ceil(math.log2(float(weight[at].abs().max()) / top))
                exponents[i, j] = exponent + 127
                values = weight[at] / 2.0**exponent
                if layout == "mxfp4":
                    codes[at] = (values[..., None] - torch.tensor(FOUR_BIT_FLOATS)).abs().argmin(-1).to(torch.uint8)
                    meant[at] = torch.tensor(FOUR_BIT_FLOATS)[codes[at].long()] * 2.0**exponent
                else:
                    eight = values.to(torch.float8_e4m3fn)
                    codes[at], meant[at] = eight.view(torch.uint8), eight.float() * 2.0**exponent
        scales = exponents if layout not in ("blocks", "modelopt") else exponents.view(torch.float8_e8m0fnu)
        if layout == "mxfp4":
            return {"weight_packed": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scales}, meant
        name = "weight_scale_inv" if layout in ("blocks", "rows") else "weight_scale"
        return {"weight": codes.view(torch.float8_e4m3fn), name: scales}, meant

    if layout == "modelopt":
        return Form({"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}, store)
    if layout in ("blocks", "rows"):
        fields = {"quant_method": "fp8", "activation_scheme": "dynamic", "scale_fmt": "ue8m0"}
        return Form({**fields, "weight_block_size": list(tile)}, store)
    weights = {"num_bits": int(layout[-1]), "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    weights |= {"dynamic": False, "scale_dtype": "torch.uint8"}
    return Form(_compressed("mxfp4-pack-quantized" if layout == "mxfp4" else "mxfp8-quantized", weights, None), store)


def int8_channels() -> Form:
    """compressed-tensors W8A8: signed bytes, a scale a channel."""

    def store(weight: Tensor, seed: int) -> tuple[Parts, Tensor]:
        scales = weight.abs().amax(1, keepdim=True) / 127
        codes = torch.round(weight / scales)
        return {"weight": codes.to(torch.int8), "weight_scale": scales}, codes * scales

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return Form(_compressed("int-quantized", weights, activations), store)


def packed(bits: int, group: int, symmetric: bool, by_order: bool = False) -> Form:
    """compressed-tensors' pack-quantized; group 0 is a channel."""

    def store(weight: Tensor, seed: int) -> tuple[Parts, Tensor]:
        rows, columns = weight.shape
        of = _group_of(columns, group, by_order, seed)
        codes, scales, zeros = _rounded(weight, of, bits, symmetric)
        parts = {
            "weight_packed": _words(codes, bits, 1),
            "weight_scale": scales,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if not symmetric:
            parts["weight_zero_point"] = _words(zeros, bits, 0)
        if by_order:
            parts["weight_g_idx"] = torch.tensor(of, dtype=torch.int32)
        return parts, (codes - zeros[:, of]).float() * scales[:, of]

    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    if by_order:
        weights["actorder"] = "group"
    return Form(_compressed("pack-quantized", weights, None), store)


def gptq(bits: int, group: int, symmetric: bool, by_order: bool, version: str = "gptq") -> Form:
    def store(weight: Tensor, seed: int) -> tuple[Parts, Tensor]:
        columns = weight.shape[1]
        of = _group_of(columns, group, by_order, seed)
        codes, scales, zeros = _rounded(weight, of, bits, symmetric, least_zero=1)
        less = 1 if version == "gptq" else 0
        parts = {
            "qweight": _words(codes.t(), bits, 0),
            "qzeros": _words((zeros - less).t(), bits, 1),
            "scales": scales.t(),
            "g_idx": torch.tensor(of, dtype=torch.int32),
        }
        return parts, (codes - zeros[:, of]).float() * scales[:, of]

    config = {"quant_method": "gptq", "bits": bits, "group_size": group or -1, "desc_act": by_order, "sym": symmetric}
    return Form({**config, "checkpoint_format": version}, store)


def awq(group: int) -> Form:
    def store(weight: Tensor, seed: int) -> tuple[Parts, Tensor]:
        of = _group_of(weight.shape[1], group, False, seed)
        codes, scales, zeros = _rounded(weight, of, 4, False)
        swapped = [0, 2, 4, 6, 1, 3, 5, 7]  # which of 8 neighbours is in each place of a word, lowest first

        def words(values: Tensor) -> Tensor:
            return _words(values.reshape(values.shape[0], -1, 8)[:, :, swapped].flatten(1), 4, 1)

        parts = {"qweight": words(codes.t()), "qzeros": words(zeros.t()), "scales": scales.t()}
        return parts, (codes - zeros[:, of]).float() * scales[:, of]

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Form({**config, "modules_to_not_convert": None}, store)


def _compressed(layout: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def _group_of(columns: int, group: int, by_order: bool, seed: int) -> list[int]:
    """The group of each column; in any order where the format allows that."""
    of = [column // (group or columns) for column in range(columns)]
    if by_order:
        np.random.default_rng(seed).shuffle(of)
    return of


def _rounded(
    weight: Tensor, of: list[int], bits: int, symmetric: bool, least_zero: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K] from 0, scales (16-bit values) and zero points [N, groups]."""
    top, middle = (1 << bits) - 1, 1 << (bits - 1)
    groups = max(of) + 1
    scales, zeros = torch.empty(len(weight), groups), torch.empty(len(weight), groups, dtype=torch.int64)
    for group in range(groups):
        part = weight[:, [column for column, its in enumerate(of) if its == group]]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        spread = torch.maximum(-low, high) / (middle - 0.5) if symmetric else (high - low) / top
        scales[:, group] = spread.clamp(min=1e-4).bfloat16().float()
        zeros[:, group] = middle if symmetric else torch.round(-low / scales[:, group]).clamp(least_zero, top).long()
    codes = (torch.round(weight / scales[:, of]).long() + zeros[:, of]).clamp(0, top)
    return codes, scales, zeros


def _words(codes: Tensor, bits: int, along: int) -> Tensor:
    """int32 words of neighbouring codes along a dimension, the first one lowest."""
    table = codes.numpy().astype(np.uint64)
    table = table if along == 1 else table.T
    many = 32 // bits
    words = np.zeros((table.shape[0], -(-table.shape[1] // many)), dtype=np.uint64)
    for column in range(table.shape[1]):
        words[:, column // many] |= table[:, column] << np.uint64(bits * (column % many))
    packed_words = torch.from_numpy(words.astype(np.uint32).view(np.int32).copy())
    return packed_words if along == 1 else packed_words.t()


def write_mxfp4(plain: Path, quantised: Path) -> None:
    """A copy of a gpt-oss model with random experts in MXFP4; `plain` gets the weights that they mean."""
    tensors = load_file(plain / "model.safetensors")
    packed: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, columns, features = tensors[name].shape
        shape = (count, features, columns // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(122, 125, shape, generator=generator, dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name] = unpack_mxfp4(blocks, scales, name).transpose(1, 2).contiguous()
    quantised.mkdir()
    fields = json.loads((plain / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (quantised / "config.json").write_text(json.dumps(fields))
    kept = {name: tensor for name, tensor in tensors.items() if f"{name}_blocks" not in packed}
    save_file(kept | packed, quantised / "model.safetensors")
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})


def forms() -> dict[str, Form]:
    """Every stored form, by names that give the format, the bits, the group and the rest."""
    made = {f"fp8-{scale}": fp8(scale) for scale in ("tensor", "channel", "block")}
    made["int8-channel"] = int8_channels()
    for bits, group, symmetric in product((4, 8), (32, 64, 128, 0), (True, False)):
        name = f"{bits}-{group or 'channel'}-{'symmetric' if symmetric else 'zeros'}"
        made[f"packed-{name}"] = packed(bits, group, symmetric)
        made[f"gptq-{name}"] = gptq(bits, group, symmetric, by_order=False)
        if group:
            made[f"gptq-{name}-order"] = gptq(bits, group, symmetric, by_order=True)
    made["packed-4-32-order"] = packed(4, 32, False, by_order=True)
    made["gptq-v2"] = gptq(4, 64, False, True, "gptq_v2")
    made |= {f"powers-{layout}": powers(layout) for layout in LAYOUTS_OF_POWERS}
    return made | {f"awq-{group}": awq(group) for group in (32, 64, 128)}
