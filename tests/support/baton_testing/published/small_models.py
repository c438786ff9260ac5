"""Published checkpoints made small: the same fields and tensors, with random weights that transformers can follow.

`write_published` writes a model as its makers did, and next to it one that transformers reads, whose weights are what
the quantised ones mean.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from baton_testing.engine import quantised_models as written
from baton_testing.engine.models import edit_config, write_random_weights
from baton_testing.engine.quantised_models import PROJECTIONS, Form, Written
from baton_testing.published.checkpoint import Config
from baton_testing.published.configs import PUBLISHED
from baton_testing.published.quantised import QUANTISED

HIDDEN: Final = 128
INNER: Final = 384
HEADS: Final = 4
WINDOW: Final = 24
VOCABULARY: Final = 200
ORIGINAL: Final = 16
"""Original positions of LongRoPE: a prompt of the tests is longer."""
VISION: Final = {
    "head_dim": 16,
    "hidden_size": 32,
    "image_size": 28,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}
FORMS: Final[dict[str, Form]] = {
    "fp8-tensor": written.fp8("tensor"),
    "fp8-channel": written.fp8("channel"),
    "fp8-block": written.fp8("block"),
    "int8-channel": written.int8_channels(),
    "packed-4-128": written.packed(4, 128, True),
    "packed-4-128-zeros": written.packed(4, 128, False),
    "packed-4-128-order": written.packed(4, 128, True, by_order=True),
    "packed-8-channel": written.packed(8, 0, True),
    "gptq-4-128": written.gptq(4, 128, True, by_order=False),
    "gptq-4-128-order": written.gptq(4, 128, True, by_order=True),
    "gptq-4-128-zeros-order-v2": written.gptq(4, 128, False, True, "gptq_v2"),
    "gptq-4-channel": written.gptq(4, 0, True, by_order=False),
    "gptq-4-32": written.gptq(4, 32, True, by_order=False),
    "gptq-8-64": written.gptq(8, 64, True, by_order=False),
    "gptq-8-128": written.gptq(8, 128, True, by_order=False),
    "awq-128": written.awq(128),
}
LINEAR: Final = (*PROJECTIONS, "qkv_proj", "gate_up_proj", "lm_head")
RENAMED: Final = {
    "fp8-block-ct": ("fp8-block", "weight_scale_inv", "weight_scale"),
    "fp8-tensor-transformers": ("fp8-tensor", "weight_scale", "weight_scale_inv"),
}
"""A form whose tensor has another name in files of another tool."""


def scaled(config: Config) -> Config:
    """The config of a model of the same kind that is small."""
    small = copy.deepcopy(config)
    text = small.get("text_config", small)
    if "vision_config" in small:
        small["vision_config"] |= VISION
    layers = 6 if text["model_type"] == "gemma3_text" else 2
    apart = "head_dim" in text and text["head_dim"] * text.get("num_attention_heads", 0) != text["hidden_size"]
    fixed: Config = {
        "head_dim": 64 if apart else HIDDEN // HEADS,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "moe_intermediate_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": layers,
        "num_local_experts": 4,
        "vocab_size": VOCABULARY,
    }
    if (kv_heads := text.get("num_key_value_heads")) is not None:
        one_each = kv_heads == text["num_attention_heads"]
        fixed["num_key_value_heads"] = HEADS if one_each else min(kv_heads, HEADS // 2)
    text |= {name: value for name, value in fixed.items() if name in text}
    text["vocab_size"] = VOCABULARY
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        for place in (small, text):
            if place.get(name) is not None:
                place[name] = 0
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:layers]
    if (text.get("sliding_window") or 1 << 20) < text.get("max_position_embeddings", 1 << 17):
        text["sliding_window"] = WINDOW
    rope = text.get("rope_scaling") or {}
    if "long_factor" in rope:
        dim = text.get("head_dim", HIDDEN // HEADS)
        pairs = int(dim * text.get("partial_rotary_factor", 1.0)) // 2
        rope |= {name: rope[name][:pairs] for name in ("long_factor", "short_factor")}
        text |= {"max_position_embeddings": ORIGINAL * 32, "original_max_position_embeddings": ORIGINAL}
    return small


def write_published(name: str, directory: Path) -> Written:
    """The checkpoint of that name in `PUBLISHED` or `QUANTISED`, small."""
    quantised = QUANTISED.get(name)
    base = PUBLISHED[quantised.base if quantised else name].config
    config = scaled({**base, **(quantised.fields if quantised else {})})
    paths = Written(directory / "quantised", directory / "dense")
    _write_dense(paths.dense, config)
    layers = config.get("text_config", config)["num_hidden_layers"]
    tensors = load_file(paths.dense / "model.safetensors")
    if quantised is None:
        _write(paths.quantised, config, _as_published(name, config, tensors), shards=2)
        return paths
    section = _spread(quantised.section, layers)
    if section["quant_method"] == "mxfp4":
        written.write_mxfp4(paths.dense, paths.quantised)
        edit_config(paths.quantised, quantization_config=section)
        return paths
    stored = dict(tensors)
    for seed, tensor_name in enumerate(sorted(tensors)):
        layer = tensor_name.removesuffix(".weight")
        own = _own(layer)
        if own is None or tensor_name == layer or not own.endswith(LINEAR):
            continue
        form = next((form for pattern, form in quantised.stored if re.fullmatch(pattern, own)), None)
        if form is None:
            continue
        parts, weight = _stored(form, tensors[tensor_name].float(), seed)
        tensors[tensor_name] = weight.contiguous()
        del stored[tensor_name]
        stored |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        stored |= {f"{layer}.{part}": _one(part) for part in quantised.beside}
    stored |= {extra: torch.zeros(1 if "scale" in extra else 128) for extra in _spread(list(quantised.extra), layers)}
    save_file(tensors, paths.dense / "model.safetensors", metadata={"format": "pt"})
    _write(paths.quantised, {**config, "quantization_config": section}, _as_published(name, config, stored))
    return paths


def _write_dense(directory: Path, config: Config) -> None:
    """As transformers writes a model of the config, but with the config as it was."""
    directory.mkdir(parents=True)
    config = {key: value for key, value in config.items() if key != "auto_map"}
    if (config.get("rope_scaling") or {}).get("type") == "su":
        config["rope_scaling"] = {**config["rope_scaling"], "type": "longrope"}  # its name since
    if "text_config" in config:  # transformers ties heads of such models unless the config says otherwise
        config.setdefault("tie_word_embeddings", config["text_config"]["model_type"] == "gemma3_text")
    (directory / "config.json").write_text(json.dumps(config))
    kind = AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM
    model = kind.from_config(AutoConfig.from_pretrained(directory), attn_implementation="eager")
    write_random_weights(model, directory)
    (directory / "config.json").write_text(json.dumps(config))


def _as_published(name: str, config: Config, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under their published names: wrappers were saved before transformers 5, unless the name says so."""
    if "text_config" not in config:
        return tensors
    new = "transformers 5" in name
    renamed = {}
    for stored_name, tensor in tensors.items():
        own = _own(stored_name)
        if own is None:
            renamed[re.sub(r"^(model\.)?", "model." if new else "", stored_name, count=1)] = tensor
        elif own.startswith("lm_head"):
            renamed[own if new else f"language_model.{own}"] = tensor
        else:
            inner = own.removeprefix("model.")
            renamed[f"model.language_model.{inner}" if new else f"language_model.model.{inner}"] = tensor
    return renamed


def _own(name: str) -> str | None:
    """A tensor's name in the language model alone; None: it is not of it."""
    if re.match(r"(model\.)?(vision_tower|multi_modal_projector)", name):
        return None
    name = re.sub(r"^(language_model\.model|model\.language_model)\.", "model.", name)
    return name.replace("language_model.lm_head", "lm_head")


def _stored(form: str, weight: Tensor, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    form, old, new = RENAMED.get(form, (form, "", ""))
    parts, dense = FORMS[form].store(weight, seed)
    return {new if part == old else part: tensor for part, tensor in parts.items()}, dense


def _one(part: str) -> Tensor:
    return torch.ones(1, dtype=torch.int8 if "zero_point" in part else torch.float32)


def _spread(value: Any, layers: int) -> Any:
    """With each text that has {layer} written out for all layers."""
    if isinstance(value, dict):
        return {key: _spread(item, layers) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    spread = []
    for item in value:
        if isinstance(item, str) and "{layer}" in item:
            spread += [item.replace("{layer}", str(layer)) for layer in range(layers)]
        else:
            spread.append(_spread(item, layers))
    return spread


def _write(directory: Path, config: Config, tensors: dict[str, Tensor], shards: int = 1) -> None:
    """One file, or several with an index and names of an odd kind."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
        return
    index: dict[str, str] = {}
    for shard in range(shards):
        file = f"pytorch_model.{shard + 1:02}-of-{shards:02}.safetensors"
        part = {name: tensor for number, (name, tensor) in enumerate(tensors.items()) if number % shards == shard}
        save_file(part, directory / file)
        index |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
