"""The `config_groups` of compressed-tensors: which layers each group means, and how their weights are stored.

Of several groups that mean a layer the most exact one decides, whatever their order: compressed-tensors,
`utils/match.py: match_targets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.formats.eight_bits import EightBits
from baton_wire.models.formats.layer_formats import FormatRule, WeightFormats
from baton_wire.models.formats.layer_names import LayerNames, read_names
from baton_wire.models.formats.mxfp4 import BLOCK, PackedFloats
from baton_wire.models.formats.packed_integers import PackedIntegers, read_group_size
from baton_wire.models.formats.weight_format import EXPONENTS, WeightFormat

_MX_BITS: Final = {"mxfp8-quantized": 8, "mxfp4-pack-quantized": 4}
"""Layouts of floats with a power of two for each 32 columns (OCP MX 1.0)."""
_LAYOUTS: Final = ("float-quantized", "int-quantized", "pack-quantized", "naive-quantized", *_MX_BITS)


def read_compressed_tensors(section: ConfigFields) -> WeightFormats:
    """Raises ModelConfigError naming the field."""
    section.only("transform_config", {}, "absent (weights that are not rotated)")
    if section.has("sparsity_config"):
        section.section("sparsity_config").only("format", "dense", "dense")
    groups = section.raw("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise section.error("config_groups", "an object of groups, at least one")
    read = [
        _group(ConfigFields({"group": group}, "quantization_config.config_groups."), section, name)
        for name, group in groups.items()
    ]
    return WeightFormats(
        "compressed-tensors",
        _by_exactness(read),
        read_names(section, "ignore"),
        has_kv_scales=section.has("kv_cache_scheme"),
        required=tuple(targets for targets, _ in read),
    )


def _by_exactness(groups: Sequence[tuple[LayerNames, WeightFormat]]) -> tuple[FormatRule, ...]:
    """Whole names first, then patterns in the order of their letters, then the class. Of equal targets the last one
    holds."""
    named, patterns = dict[str, WeightFormat](), dict[str, WeightFormat]()
    of_class: list[FormatRule] = []
    for targets, stored in groups:
        named |= dict.fromkeys(targets.names, stored)
        patterns |= dict.fromkeys(targets.patterns, stored)
        if targets.every_linear:
            of_class = [FormatRule(LayerNames(every_linear=True), stored)]
    by_name = [
        FormatRule(LayerNames(frozenset(name for name, its in named.items() if its == stored)), stored)
        for stored in dict.fromkeys(named.values())
    ]
    by_pattern = [FormatRule(LayerNames(patterns=(pattern,)), patterns[pattern]) for pattern in sorted(patterns)]
    return (*by_name, *by_pattern, *of_class)


def _group(holder: ConfigFields, section: ConfigFields, name: str) -> tuple[LayerNames, WeightFormat]:
    value = holder.raw("group")
    if not isinstance(value, dict):
        raise ModelConfigError(f"quantization_config.config_groups.{name}: must be an object")
    group = ConfigFields(value, f"quantization_config.config_groups.{name}.")
    weights = group.section("weights")
    stated = group if group.has("format") else section
    layout = stated.text("format", "")
    if layout not in _LAYOUTS:
        raise stated.error("format", ", ".join(_LAYOUTS))
    if not group.raw("targets"):
        raise group.error("targets", "a list of layers, at least one")
    group.only("output_activations", None, "absent")
    inputs = group.section("input_activations") if group.has("input_activations") else None
    if layout in _MX_BITS:
        return read_names(group, "targets"), _powers_of_two(weights, layout)
    stored = _stored(weights, layout == "pack-quantized", inputs)
    return read_names(group, "targets"), stored


def _powers_of_two(weights: ConfigFields, layout: str) -> WeightFormat:
    """compressed-tensors, `compressors/mx_utils.py`."""
    required = {"num_bits": _MX_BITS[layout], "type": "float", "strategy": "group", "group_size": BLOCK}
    for field, value in required.items():
        if weights.raw(field) != value:
            raise weights.error(field, f"{value} for {layout}")
    weights.only("symmetric", True, "true for floats")
    weights.only("scale_dtype", "torch.uint8", "torch.uint8")
    if layout == "mxfp4-pack-quantized":
        return PackedFloats()
    return EightBits("F8_E4M3", (1, BLOCK), scale_dtypes=EXPONENTS)


def _stored(weights: ConfigFields, packed: bool, inputs: ConfigFields | None) -> WeightFormat:
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
        return PackedIntegers(bits, read_group_size(weights) if strategy == "group" else 0, symmetric, order)
    dtype: Literal["F8_E4M3", "I8"] = "F8_E4M3" if is_float else "I8"
    block = {"tensor": (0, 0), "channel": (1, 0)}.get(strategy)
    if strategy == "block":
        weights.only("block_structure", [128, 128], "[128, 128]")
        block = (128, 128)
    elif strategy == "group":
        block = (1, read_group_size(weights))
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
    """True if `input_activations` are integers of 8 bits without zero points."""
    return (inputs.raw("num_bits"), inputs.text("type", "int"), inputs.flag("symmetric", True)) == (8, "int", True)
