"""Weights that AutoRound rounded, in its own description: GPTQ's or AWQ's layout, and what differs by layer's name.

Which layers it means: github.com/intel/auto-round, `inference/convert_model.py`; vLLM reads it alike. Blocks that
`block_name_to_quantize` names, or all; `extra_config` has what differs, exact names before patterns.
"""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.formats.layer_formats import FormatRule, WeightFormats
from baton_wire.models.formats.layer_names import PATTERN, LayerNames, Matching, layer_names, read_names
from baton_wire.models.formats.packed_integers import Awq, Gptq, read_group_size
from baton_wire.models.wrappers import text_name

_GPTQ: Final = "auto_round:auto_gptq"
_AWQ: Final = "auto_round:auto_awq"
_UNPACKED_BITS: Final = 16
"""A weight with this many bits or more is not quantised."""
_OF_PATTERNS: Final = frozenset("*+?^$()[]{}|\\")
"""A name with one of these characters is a pattern that may match anywhere in a layer's name."""


def read_auto_round(section: ConfigFields) -> WeightFormats:
    """The formats of a `quantization_config`. Raises ModelConfigError naming the field."""
    packing = section.text("packing_format", _GPTQ)
    if packing not in (_GPTQ, _AWQ):
        raise section.error("packing_format", f"{_GPTQ} or {_AWQ}")
    section.only("modules_in_block_to_quantize", None, "absent")
    base = _stored(section, packing, None)
    rules = [*_overrides(section, packing, base), FormatRule(_blocks(section), base)]
    if section.flag("quant_lm_head", False):
        rules.append(FormatRule(LayerNames(frozenset(("lm_head",))), base))
    return WeightFormats("auto-round", tuple(rules), read_names(section, "modules_to_not_convert", Matching.PART))


def _stored(fields: ConfigFields, packing: str, base: Gptq | Awq | None) -> Gptq | Awq | None:
    """The format that `fields` describe; `base` fills in missing fields. None: not quantised."""
    bits = fields.integer("bits", base.bits if base else None)
    if base is not None and bits >= _UNPACKED_BITS:
        return None
    if fields.text("data_type", "int") != "int":
        raise fields.error("data_type", "int")
    if fields.integer("act_bits", _UNPACKED_BITS) < _UNPACKED_BITS:
        raise fields.error("act_bits", f"{_UNPACKED_BITS} or more: activations that are not rounded")
    if bits not in ((4,) if packing == _AWQ else (4, 8)):
        raise fields.error("bits", "4" if packing == _AWQ else "4 or 8")
    group = read_group_size(fields) if base is None or fields.has("group_size") else base.group
    # Zero points are in the file also where all are alike (`sym`).
    return Awq(group, has_zeros=True) if packing == _AWQ else Gptq(bits, group, lesser_zeros=True)


def _blocks(section: ConfigFields) -> LayerNames:
    """Modules whose layers are quantised: a text with commas, a list, or lists in it. None: all but the head."""
    name = "block_name_to_quantize" if section.has("block_name_to_quantize") else "to_quant_block_names"
    given = section.raw(name)
    if not given:
        return LayerNames(every_linear=True)
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list):
        raise section.error(name, "names of modules: a text with commas, or a list")
    flat = [entry for part in parts for entry in (part if isinstance(part, list) else [part])]
    if not all(isinstance(entry, str) for entry in flat):
        raise section.error(name, "names of modules: a text with commas, or a list")
    return layer_names([entry.strip() for entry in flat], Matching.WHOLE, name)


def _overrides(section: ConfigFields, packing: str, base: Gptq | Awq | None) -> list[FormatRule]:
    """Layers that `extra_config` names, one rule for each way to store them; then its patterns, in their order."""
    if not section.has("extra_config"):
        return []
    extra = section.section("extra_config")
    named: dict[Gptq | Awq | None, set[str]] = {}
    patterns = []
    for key in extra.names():
        stored = _stored(extra.section(key), packing, base)
        if _OF_PATTERNS.isdisjoint(key):
            own = text_name(key)
            named.setdefault(stored, set()).update(() if own is None else (own,))
            continue
        anywhere = key if key.startswith(("^", ".*")) else f".*(?:{key})"
        patterns.append(FormatRule(layer_names([PATTERN + anywhere], Matching.WHOLE, "extra_config"), stored))
    exact = [FormatRule(LayerNames(frozenset(names)), stored) for stored, names in named.items()]
    return [*exact, *patterns]
