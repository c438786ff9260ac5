"""Granite, dense: Llama with four multipliers, of embeddings, scores, what blocks add, and logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.families.llama import read_llama_layers


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    scale, residual = fields.number("attention_multiplier", 1.0), fields.number("residual_multiplier", 1.0)
    return tuple(
        replace(layer, mixer=replace(layer.mixer, scale=scale), residual_scale=residual)
        for layer in read_llama_layers(fields, positions)
    )


GRANITE: Final = Family("GraniteForCausalLM", _layers, default_positions=2_048, multiplies=True, default_eos=(2,))
