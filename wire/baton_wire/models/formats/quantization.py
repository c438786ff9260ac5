"""Which weights of a checkpoint are quantised and how, read from the `quantization_config` of its config.json.

Fields that would change the result are understood or refused by name; those that only say how the checkpoint was made
are passed over.
"""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.formats.auto_round import read_auto_round
from baton_wire.models.formats.compressed_tensors import read_compressed_tensors
from baton_wire.models.formats.eight_bits import EightBits
from baton_wire.models.formats.layer_formats import FormatRule, WeightFormats
from baton_wire.models.formats.layer_names import PATTERN, LayerNames, Matching, layer_names, read_names
from baton_wire.models.formats.mxfp4 import BLOCK, Mxfp4
from baton_wire.models.formats.packed_integers import Awq, Gptq, read_group_size
from baton_wire.models.formats.weight_format import EXPONENTS, FLOATS, POWERS

METHODS: Final = "auto-round, awq, compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt, and mxfp4 for gpt_oss"
_EVERY: Final = LayerNames(every_linear=True)
_HEAD: Final = LayerNames(frozenset(("lm_head",)))


def read_weight_formats(fields: ConfigFields) -> WeightFormats:
    """The weight formats of a parsed config.json. Raises ModelConfigError naming the field."""
    if not fields.has("quantization_config"):
        return WeightFormats()
    section = fields.section("quantization_config")
    match section.text("quant_method", "compressed-tensors" if section.has("config_groups") else ""):
        case "fp8":
            return _fp8(section)
        case "fbgemm_fp8":
            return _fbgemm_fp8(section)
        case "modelopt":
            return _modelopt(section)
        case "compressed-tensors":
            return read_compressed_tensors(section)
        case "gptq":
            return _gptq(section)
        case "awq":
            return _awq(section)
        case "auto-round":
            return read_auto_round(section)
        case "mxfp4" if fields.raw("model_type") == "gpt_oss":
            return WeightFormats("mxfp4", stacks=Mxfp4())
    raise section.error("quant_method", METHODS)


def _fp8(section: ConfigFields) -> WeightFormats:
    section.only("fmt", "e4m3", "e4m3")
    if section.text("activation_scheme", "dynamic") not in ("dynamic", "static"):
        raise section.error("activation_scheme", "dynamic or static")
    section.only("expert_dtype", "fp8", "fp8")
    if section.text("scale_fmt", "float") not in ("float", "ue8m0"):
        raise section.error("scale_fmt", "float or ue8m0")
    has_powers = section.raw("scale_fmt") == "ue8m0"
    static = section.raw("activation_scheme") == "static"
    if section.has("weight_block_size"):
        is_mx = has_powers and section.raw("weight_block_size") == [1, BLOCK]
        if not is_mx:
            section.only("weight_block_size", [128, 128], f"[128, 128], or [1, {BLOCK}] with scale_fmt ue8m0")
        dtypes = (*FLOATS, *EXPONENTS) if has_powers else (*FLOATS, POWERS)
        block = (1, BLOCK) if is_mx else (128, 128)
        stored = EightBits("F8_E4M3", block, "weight_scale_inv", has_input_scale=static, scale_dtypes=dtypes)
    elif "weight_block_size" in section.names():  # transformers writes null; AutoFP8 does not know the field
        stored = EightBits("F8_E4M3", (0, 0), "weight_scale_inv", has_input_scale=static)
    else:
        stored = EightBits("F8_E4M3", (0, 0), has_input_scale=static)
    ignored = read_names(section, "modules_to_not_convert", Matching.TAIL)
    ignored |= read_names(section, "ignored_layers", Matching.TAIL)
    return WeightFormats("fp8", (FormatRule(_EVERY, stored),), ignored, has_kv_scales=section.has("kv_cache_scheme"))


def _fbgemm_fp8(section: ConfigFields) -> WeightFormats:
    """Meta's: a scale a channel. The bound of activations' scales is theirs alone, as scales of activations are."""
    ignored = read_names(section, "modules_to_not_convert", Matching.TAIL)
    return WeightFormats("fbgemm_fp8", (FormatRule(_EVERY, EightBits("F8_E4M3", (1, 0))),), ignored)


def _modelopt(section: ConfigFields) -> WeightFormats:
    if section.text("quant_algo", "FP8") not in ("FP8", "MXFP8"):
        raise section.error("quant_algo", "FP8 or MXFP8")
    ignored = read_names(section, "ignore", Matching.WILDCARD) | read_names(
        section, "exclude_modules", Matching.WILDCARD
    )
    if section.raw("quant_algo") == "MXFP8":
        section.only("group_size", BLOCK, str(BLOCK))
        stored = EightBits("F8_E4M3", (1, BLOCK), scale_dtypes=EXPONENTS)
    else:
        stored = EightBits("F8_E4M3", (0, 0), has_input_scale=True)
    has_kv = section.has("kv_cache_scheme") or section.has("kv_cache_quant_algo")
    return WeightFormats("modelopt", (FormatRule(_EVERY, stored),), ignored, has_kv_scales=has_kv)


def _gptq(section: ConfigFields) -> WeightFormats:
    section.only("pack_dtype", "int32", "int32")
    section.only("is_marlin_format", False, "false")
    section.only("adapter", None, "absent (nothing is added to the weights)")
    version = section.text("checkpoint_format", section.text("format", "gptq"))
    if version not in ("gptq", "gptq_v2"):
        raise section.error("checkpoint_format" if section.has("checkpoint_format") else "format", "gptq or gptq_v2")
    lesser = version == "gptq"
    base = Gptq(_bits(section), read_group_size(section), lesser, section.flag("desc_act", False))
    rules = [*_overrides(section, base), FormatRule(_in_blocks(section), base)]
    if section.flag("lm_head", False):
        rules.append(FormatRule(_HEAD, base))
    return WeightFormats("gptq", tuple(rules))


def _bits(fields: ConfigFields, default: int | None = None) -> int:
    bits = fields.integer("bits", default)
    if bits not in (4, 8):
        raise fields.error("bits", "4 or 8")
    return bits


def _overrides(section: ConfigFields, base: Gptq) -> list[FormatRule]:
    """GPTQModel's `dynamic`: patterns of layers that are stored otherwise (+:) or as they are (-:)."""
    if not section.has("dynamic"):
        return []
    dynamic = section.section("dynamic")
    rules = []
    for key in dynamic.names():
        targets = layer_names([PATTERN + key.removeprefix("+:").removeprefix("-:")], Matching.WHOLE, "dynamic")
        if key.startswith("-:"):
            rules.append(FormatRule(targets, None))
            continue
        other = dynamic.section(key)
        other.only("adapter", None, "absent (nothing is added to the weights)")
        group = read_group_size(other) if other.has("group_size") else base.group
        order = other.flag("desc_act", base.has_order)
        rules.append(FormatRule(targets, Gptq(_bits(other, base.bits), group, base.lesser_zeros, order)))
    return rules


def _in_blocks(section: ConfigFields) -> LayerNames:
    """Every linear layer, or those that `modules_in_block_to_quantize` names: lists of names, or one list."""
    name = "modules_in_block_to_quantize"
    given = section.raw(name)
    if not given:
        return _EVERY
    if not isinstance(given, list):
        raise section.error(name, "a list of names, or of lists of them")
    flat = [entry for group in given for entry in (group if isinstance(group, list) else [group])]
    return read_names(ConfigFields({name: flat}, "quantization_config."), name, Matching.TAIL)


def _awq(section: ConfigFields) -> WeightFormats:
    section.only("bits", 4, "4")
    field = next((name for name in ("version", "checkpoint_format", "format") if section.has(name)), "version")
    if section.text(field, "gemm").lower() != "gemm":
        raise section.error(field, "gemm")
    stored = Awq(read_group_size(section), section.flag("zero_point", True))
    ignored = read_names(section, "modules_to_not_convert", Matching.PART)
    return WeightFormats("awq", (FormatRule(_EVERY, stored),), ignored)
