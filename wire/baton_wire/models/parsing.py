"""From a parsed config.json to a `DecoderSpec`, and the refusal of everything we would compute wrongly.

What families have in common is read here, the rest in their own files. Generation defaults other than stop ids are the
gateway's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.messages.values import MAX_VOCAB
from baton_wire.models.config_fields import MAX_POSITIONS, ConfigFields, JsonObject
from baton_wire.models.decoder_spec import DecoderSpec, Experts, LayerSpec, StackedTensors
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.families.family import Family
from baton_wire.models.families.model_types import FAMILIES
from baton_wire.models.families.unserved import UNSERVED
from baton_wire.models.formats.layer_formats import WeightFormats
from baton_wire.models.formats.quantization import read_weight_formats
from baton_wire.models.heads import read_head
from baton_wire.models.kv_groups import kv_groups
from baton_wire.models.parameters import layer_prefix
from baton_wire.models.reading import MAX_LAYERS
from baton_wire.models.wrappers import WRAPPERS, language_model

MAX_EOS_IDS: Final = 128
MAX_KV_GROUPS: Final = 256
"""A hand-over has at least one layer group for each."""
LEAST_EPS: Final = 1e-12
DTYPES: Final = ("float32", "bfloat16", "float16")


def parse_spec(config: JsonObject, generation: JsonObject | None = None) -> DecoderSpec:
    """The model of config.json and generation_config.json, parsed. Raises ModelConfigError: field, value, what is
    allowed."""
    whole = ConfigFields(config)
    fields = language_model(whole)
    family = _read_family(whole, fields)
    head = read_head(fields, family.architecture)
    hidden_size = fields.integer("hidden_size")
    positions = _read_positions(fields, family)
    cap = family.caps_logits and fields.has("final_logit_softcapping")
    vocab_size = fields.integer("vocab_size", maximum=MAX_VOCAB)
    formats = read_weight_formats(whole if whole.has("quantization_config") else fields)
    default_eos = tuple(token for token in family.default_eos if token < vocab_size)
    spec = DecoderSpec(
        family=fields.text("model_type"),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=tuple(
            _as_stored(layer, layer_prefix(number), formats)
            for number, layer in enumerate(family.layers(fields, positions))
        ),
        norm_eps=fields.number("rms_norm_eps", family.default_eps, LEAST_EPS, maximum=1.0),
        norms_from_one=family.norms_from_one,
        max_position_embeddings=positions,
        # Without a head for tokens nothing is drawn; its place is taken by the embedding, which costs no memory.
        tied_head=fields.flag("tie_word_embeddings", whole.flag("tie_word_embeddings", family.default_tied))
        or not head.generates,
        eos_token_ids=_read_eos(vocab_size, ConfigFields(generation or {}, "generation_config."), whole, fields)
        or default_eos,
        dtype=_read_dtype(whole) or _read_dtype(fields),
        embedding_scale=_read_embedding_scale(fields, family, hidden_size),
        logit_divisor=fields.number("logits_scaling", 1.0) if family.multiplies else 1.0,
        logit_cap=fields.number("final_logit_softcapping") if cap else None,
        formats=formats,
        further_layers=0 if family.further_layers is None else fields.integer(family.further_layers, 1, 0, MAX_LAYERS),
        wrapper=None if fields is whole else whole.text("model_type"),
        generates=head.generates,
        labels=head.labels,
        label_activation=head.label_activation,
    )
    if (groups := len(kv_groups(spec))) > MAX_KV_GROUPS:
        raise fields.error("layer_types", f"windows that make at most {MAX_KV_GROUPS} KV groups, not {groups}")
    return spec


def _read_family(whole: ConfigFields, fields: ConfigFields) -> Family:
    family = FAMILIES.get(fields.text("model_type"))
    if whole.has("auto_map") and not _is_shipped(whole.raw("auto_map"), family):
        raise whole.error("auto_map", "absent (code from a model's directory is never run)")
    if family is None and (unserved := UNSERVED.get(fields.text("model_type"))) is not None:
        raise fields.error("model_type", f"{unserved.nearest} is the nearest; this one has {unserved.parts}")
    if family is None:
        raise fields.error("model_type", ", ".join((*FAMILIES, *WRAPPERS)))
    activation, value = family.activation
    fields.only(activation, value, value)
    return family


def _as_stored(layer: LayerSpec, prefix: str, formats: WeightFormats) -> LayerSpec:
    """The layer with the names that its experts have in checkpoints of these formats. Raises ModelConfigError."""
    block = layer.feed_forward
    if not isinstance(block, Experts) or not isinstance(block.tensors, StackedTensors):
        return layer
    apart = block.tensors.apart
    if apart is None or formats.of(prefix + apart.down(0)) is None:
        return layer
    if formats.method != "compressed-tensors":
        raise ModelConfigError(
            f'quantization_config.quant_method: "{formats.method}" is not supported for experts in one tensor; '
            "allowed: compressed-tensors, with a tensor for each expert"
        )
    return replace(layer, feed_forward=replace(block, tensors=apart))


def _read_embedding_scale(fields: ConfigFields, family: Family, hidden_size: int) -> float:
    if family.multiplies:
        return fields.number("embedding_multiplier", 1.0)
    return hidden_size**0.5 if family.scales_embedding else 1.0


def _read_positions(fields: ConfigFields, family: Family) -> int:
    """How many there may be. Qwen's attention in two kinds of chunks is the plain one within its first chunk."""
    positions = fields.integer("max_position_embeddings", family.default_positions, maximum=MAX_POSITIONS)
    name = "dual_chunk_attention_config"
    if not fields.has(name):
        return positions
    chunks = fields.section(name)
    local = chunks.integer("local_size", 8_192, minimum=0, maximum=MAX_POSITIONS)
    return min(positions, chunks.integer("chunk_size", 262_144, local + 1, 2 * MAX_POSITIONS) - local)


def _is_shipped(code: object, family: Family | None) -> bool:
    """True for code that every checkpoint of the family ships, or that copies name by its repository. Entries for
    tokenizers do not matter: these are read from tokenizer.json."""
    if family is None or not isinstance(code, dict):
        return False
    names = [name for key, name in code.items() if key != "AutoTokenizer"]
    return all(isinstance(name, str) and name.rpartition("--")[2] in family.shipped_code for name in names)


def _read_eos(vocab_size: int, *places: ConfigFields) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for fields in places:
        value = fields.raw("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
                raise fields.error("eos_token_id", f"a token id from 0 to {vocab_size - 1}, or a list of them")
            ids[token] = None
        if len(ids) > MAX_EOS_IDS:
            raise fields.error("eos_token_id", f"at most {MAX_EOS_IDS} token ids")
    return tuple(ids)


def _read_dtype(fields: ConfigFields) -> str | None:
    name = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(name):
        return None
    dtype = fields.text(name).removeprefix("torch.")
    if dtype not in DTYPES:
        raise fields.error(name, ", ".join(DTYPES))
    return dtype
