"""Which weights of a checkpoint are quantised and how, read from the `quantization_config` of its config.json.

Five values of `quant_method`: fp8, compressed-tensors, gptq, awq, and mxfp4 for experts in stacks. Fields that would
change the result are understood or refused by name; those that only say how the checkpoint was made are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.formats.eight_bits import EightBits
from baton_wire.models.formats.mxfp4 import Mxfp4
from baton_wire.models.formats.packed_integers import Awq, Gptq, PackedIntegers
from baton_wire.models.formats.weight_format import WeightFormat

METHODS: Final = "awq, compressed-tensors, fp8, gptq, and mxfp4 for gpt_oss"
KV_SCALES: Final = ("k_scale", "v_scale")
"""Of a checkpoint's own float8 KV cache. Baton's scales come from the weights, so these are passed over."""
_LINEAR_CLASS: Final = "Linear"
_GROUPS: Final = (16, 32, 64, 128, 256, 512, 1024)
_MAX_PATTERN: Final = 256
_MAX_REPEATS: Final = 4
"""Of a pattern from a file, so that matching it ends."""
_PATTERN: Final = re.compile(r"(?:[\w\-/ ]|\\[.dw\-]|[.^$|*+?]|\[[\w\-]+\]|\((?:\?:)?|\)(?![*+{]))*")
_FORMATS: Final = ("float-quantized", "int-quantized", "pack-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class _Rule:
    """Layers that the targets name are stored so."""

    targets: tuple[str, ...]
    format: WeightFormat


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The format of each linear layer by its name in the checkpoint."""

    method: str | None = None
    """`quant_method`; None: nothing is quantised."""
    rules: tuple[_Rule, ...] = ()
    ignored: tuple[str, ...] = ()
    by_part: bool = False
    """Whether a name is ignored for any part of it, or as a whole and by patterns."""
    has_kv_scales: bool = False
    stacks: Mxfp4 | None = None
    """Of experts that lie in one tensor."""

    def of(self, layer: str) -> WeightFormat | None:
        """Of `model.layers.0.mlp.up_proj` or its like; None: the weight is there as it is."""
        if not self.rules or _names(self.ignored, layer, self.by_part):
            return None
        return next((rule.format for rule in self.rules if _names(rule.targets, layer, self.by_part)), None)

    def check(self, layers: Sequence[str]) -> None:
        """`layers` are all linear ones of the model, and the head. Raises ModelConfigError for an ignored name or a
        target that names none of them."""
        for field, names in (("ignore", self.ignored), *(("targets", rule.targets) for rule in self.rules)):
            for name in names:
                if not any(_names((name,), layer, self.by_part) for layer in layers):
                    raise ModelConfigError(
                        f"quantization_config.{field}: {name!r} names no layer; allowed: names of this model's layers"
                    )


def read_weight_formats(fields: ConfigFields) -> WeightFormats:
    """Of a parsed config.json. Raises ModelConfigError naming the field."""
    if not fields.has("quantization_config"):
        return WeightFormats()
    section = fields.section("quantization_config")
    match section.text("quant_method", "compressed-tensors" if section.has("config_groups") else ""):
        case "fp8":
            return _fp8(section)
        case "compressed-tensors":
            return _compressed_tensors(section)
        case "gptq":
            return _gptq(section)
        case "awq":
            return _awq(section)
        case "mxfp4" if fields.raw("model_type") == "gpt_oss":
            return WeightFormats("mxfp4", stacks=Mxfp4())
    raise section.error("quant_method", METHODS)


def _names(names: Iterable[str], layer: str, by_part: bool) -> bool:
    """Whether one of the names, patterns (`re:…`) or classes means the layer. A module's name means all in it."""
    for name in names:
        if name.startswith("re:"):
            if re.match(name[3:], layer):
                return True
        elif name == _LINEAR_CLASS:
            if layer != "lm_head":
                return True
        elif layer == name or layer.startswith(name + ".") or (by_part and name in layer):
            return True
    return False


def _fp8(section: ConfigFields) -> WeightFormats:
    section.only("fmt", "e4m3", "e4m3")
    if section.text("activation_scheme", "dynamic") not in ("dynamic", "static"):
        raise section.error("activation_scheme", "dynamic or static")
    static = section.raw("activation_scheme") == "static"
    if section.has("weight_block_size"):
        section.only("weight_block_size", [128, 128], "[128, 128]")
        stored = EightBits("F8_E4M3", (128, 128), "weight_scale_inv", has_input_scale=static)
    else:
        stored = EightBits("F8_E4M3", (0, 0), has_input_scale=static)
    ignored = _texts(section, "modules_to_not_convert") + _texts(section, "ignored_layers")
    return WeightFormats("fp8", (_Rule((_LINEAR_CLASS,), stored),), ignored)


def _compressed_tensors(section: ConfigFields) -> WeightFormats:
    section.only("transform_config", {}, "absent (weights that are not rotated)")
    if section.has("sparsity_config"):
        section.section("sparsity_config").only("format", "dense", "dense")
    groups = section.raw("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise section.error("config_groups", "an object of groups, at least one")
    rules = tuple(
        _group(ConfigFields({"group": group}, "quantization_config.config_groups."), section, name)
        for name, group in groups.items()
    )
    return WeightFormats(
        "compressed-tensors", rules, _texts(section, "ignore"), has_kv_scales=section.has("kv_cache_scheme")
    )


def _group(holder: ConfigFields, section: ConfigFields, name: str) -> _Rule:
    value = holder.raw("group")
    if not isinstance(value, dict):
        raise ModelConfigError(f"quantization_config.config_groups.{name}: must be an object")
    group = ConfigFields(value, f"quantization_config.config_groups.{name}.")
    weights = group.section("weights")
    stated = group if group.has("format") else section
    layout = stated.text("format", "")
    if layout not in _FORMATS:
        raise stated.error("format", ", ".join(_FORMATS))
    targets = _texts(group, "targets")
    if not targets:
        raise group.error("targets", "a list of layers, at least one")
    group.only("output_activations", None, "absent")
    inputs = group.section("input_activations") if group.has("input_activations") else None
    return _Rule(targets, _compressed_weight(weights, layout == "pack-quantized", inputs))


def _compressed_weight(weights: ConfigFields, packed: bool, inputs: ConfigFields | None) -> WeightFormat:
    bits = weights.integer("num_bits", 8)
    is_float = weights.text("type", "int") == "float"
    if (is_float and (bits != 8 or packed)) or bits not in (4, 8) or (bits == 4 and not packed):
        allowed = "8 (float or int), 4 (int, pack-quantized)"
        raise weights.error("num_bits", allowed)
    if weights.text("type", "int") not in ("int", "float"):
        raise weights.error("type", "int or float")
    symmetric = weights.flag("symmetric", True)
    if is_float and not symmetric:
        raise weights.error("symmetric", "true for floats")
    order = weights.raw("actorder") in ("group", "dynamic", True)
    strategy = weights.text("strategy", "group" if weights.has("group_size") else "tensor")
    if packed:
        if strategy not in ("group", "channel"):
            raise weights.error("strategy", "channel or group for pack-quantized")
        return PackedIntegers(bits, _group_size(weights) if strategy == "group" else 0, symmetric, order)
    dtype: Literal["F8_E4M3", "I8"] = "F8_E4M3" if is_float else "I8"
    block = {"tensor": (0, 0), "channel": (1, 0)}.get(strategy)
    if strategy == "block":
        weights.only("block_structure", [128, 128], "[128, 128]")
        block = (128, 128)
    elif strategy == "group":
        block = (1, _group_size(weights))
    if block is None:
        raise weights.error("strategy", "tensor, channel, group or block")
    return EightBits(
        dtype,
        block,
        symmetric=symmetric,
        has_input_scale=inputs is not None and inputs.raw("dynamic") is False,
        rounds_inputs=inputs is not None and not is_float and _are_signed_bytes(inputs),
    )


def _are_signed_bytes(inputs: ConfigFields) -> bool:
    """Whether `input_activations` are integers of 8 bits without zero points."""
    said = inputs.raw("num_bits"), inputs.text("type", "int"), inputs.flag("symmetric", True)
    return said == (8, "int", True)


def _gptq(section: ConfigFields) -> WeightFormats:
    bits = section.integer("bits")
    if bits not in (4, 8):
        raise section.error("bits", "4 or 8")
    section.only("dynamic", {}, "absent (one form for all layers)")
    version = section.text("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise section.error("checkpoint_format", "gptq or gptq_v2")
    stored = Gptq(bits, _group_size(section), lesser_zeros=version == "gptq")
    targets = (_LINEAR_CLASS, "lm_head") if section.flag("lm_head", False) else (_LINEAR_CLASS,)
    return WeightFormats("gptq", (_Rule(targets, stored),))


def _awq(section: ConfigFields) -> WeightFormats:
    section.only("bits", 4, "4")
    if section.text("version", "gemm").lower() != "gemm":
        raise section.error("version", "gemm")
    stored = Awq(_group_size(section), section.flag("zero_point", True))
    ignored = _texts(section, "modules_to_not_convert")
    return WeightFormats("awq", (_Rule((_LINEAR_CLASS,), stored),), ignored, by_part=True)


def _group_size(fields: ConfigFields) -> int:
    """0: a channel."""
    size = fields.raw("group_size")
    if size == -1:
        return 0
    if size not in _GROUPS or isinstance(size, bool):
        raise fields.error("group_size", f"-1 or one of {', '.join(map(str, _GROUPS))}")
    return fields.integer("group_size")


def _texts(fields: ConfigFields, name: str) -> tuple[str, ...]:
    value = fields.raw(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.error(name, "a list of names")
    for item in value:
        if not item or (item.startswith("re:") and not _is_simple(item[3:])):
            raise ModelConfigError(f"quantization_config.{name}: {item!r} is not supported; allowed: simple patterns")
    return tuple(value)


def _is_simple(pattern: str) -> bool:
    """Whether a pattern compiles and can't be made to match for long."""
    repeats = sum(pattern.count(sign) for sign in "*+")
    if len(pattern) > _MAX_PATTERN or repeats > _MAX_REPEATS or not _PATTERN.fullmatch(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
