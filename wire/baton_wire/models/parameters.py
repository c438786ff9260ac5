"""Names and shapes of a model's tensors, as Hugging Face checkpoints of the supported families have them: read from its
spec. Which extra tensors are harmless is decided here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from baton_wire.models.decoder_spec import Attention, DecoderSpec, Dense, Experts, LayerSpec, StackedTensors
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.formats.packed_integers import Gptq
from baton_wire.models.formats.weight_format import TensorForm

UNQUANTISED: Final = ("F32", "BF16", "F16", "F64")
"""Dtypes of tensors that are cast to the model's."""

EMBEDDING: Final = "model.embed_tokens.weight"
FINAL_NORM: Final = "model.norm.weight"
FINAL_NORM_LAYER: Final = FINAL_NORM.removesuffix(".weight")
HEAD_LAYER: Final = "lm_head"
HEAD: Final = f"{HEAD_LAYER}.weight"
LABELS: Final = "score.weight"
"""The head of a classifier, [labels, hidden_size]."""
SINKS: Final = "self_attn.sinks"

KV_SCALES: Final = ("k_scale", "v_scale", "q_scale", "kv_scale", "_proj.output_scale", ".prob_output_scale")
"""Ends of names: scales of a checkpoint's own float8 KV cache. Baton's scales come from the weights."""

_ROTARY_BUFFER: Final = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer of a decoder layer."""

    name: str
    """Name after the layer's prefix."""
    features: int
    columns: int
    has_bias: bool
    is_expert: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """One tensor with a product of each expert."""

    name: str
    count: int
    features: int
    columns: int
    columns_first: bool
    has_bias: bool


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expected_tensors(config: DecoderSpec) -> dict[str, TensorForm]:
    """Every parameter that the checkpoint of this config may have, in the order in which they are used. Raises
    ModelConfigError for sizes that a weight format can't hold."""
    forms: dict[str, TensorForm] = {EMBEDDING: _plain(config.vocab_size, config.hidden_size)}
    for number, layer in enumerate(config.layers):
        prefix = layer_prefix(number)
        for norm in norm_names(layer):
            forms[f"{prefix}{norm}.weight"] = _plain(config.hidden_size)
        if isinstance(layer.feed_forward, Experts):
            forms |= _routing(prefix, layer.feed_forward, config.hidden_size)
        for projection in projections(layer, config.hidden_size):
            forms |= _linear(config, prefix, projection)
        for stack in stacks(layer, config.hidden_size):
            forms |= _stack(config, prefix, stack)
        forms |= _qk_norms(f"{prefix}self_attn.", layer.mixer)
        if layer.mixer.sinks:
            forms[prefix + SINKS] = _plain(layer.mixer.q_heads)
    forms[FINAL_NORM] = _plain(config.hidden_size)
    if not config.tied_head:
        forms |= _linear(config, "", LinearShape(HEAD_LAYER, config.vocab_size, config.hidden_size, False))
    if config.labels:
        forms[LABELS] = _plain(config.labels, config.hidden_size)
    return forms


def _routing(prefix: str, experts: Experts, hidden: int) -> dict[str, TensorForm]:
    """The tensors that choose and weigh experts."""
    forms = {f"{prefix}{experts.router}.weight": _plain(experts.count, hidden)}
    if experts.router_bias:
        forms[f"{prefix}{experts.router}.bias"] = _plain(experts.count)
    if experts.corrected is not None and experts.corrected.bias is not None:
        forms[prefix + experts.corrected.bias] = TensorForm(((experts.count,), (1, experts.count)), UNQUANTISED)
    if experts.shared is not None and experts.shared.gate is not None:
        forms[f"{prefix}{experts.shared.gate}.weight"] = _plain(1, hidden)
    return forms


def _qk_norms(prefix: str, mixer: Attention) -> dict[str, TensorForm]:
    if not mixer.qk_norm or mixer.qk_norm_names is None:
        return {}
    widths = (mixer.q_width, mixer.kv_width) if mixer.joins_heads else (mixer.head_dim,) * 2
    return {f"{prefix}{name}.weight": _plain(width) for name, width in zip(mixer.qk_norm_names, widths, strict=True)}


def norm_names(layer: LayerSpec) -> list[str]:
    norms = layer.norms
    names = (norms.before_mixer, norms.after_mixer, norms.before_feed_forward, norms.after_feed_forward)
    return [name for name in names if name is not None]


def projections(layer: LayerSpec, hidden: int) -> Iterator[LinearShape]:
    """The linear layers that have tensors of their own, in the order in which they are used."""
    mixer, block = layer.mixer, layer.feed_forward
    widths = (mixer.q_width, mixer.kv_width, mixer.kv_width)
    for name, features in zip(mixer.qkv, widths if len(mixer.qkv) > 1 else (sum(widths),), strict=True):
        yield LinearShape(f"self_attn.{name}", features, hidden, mixer.qkv_bias)
    yield LinearShape("self_attn.o_proj", hidden, mixer.q_width, mixer.output_bias)
    if isinstance(block, Dense):
        yield from _dense_projections(block, hidden)
        return
    if block.shared is not None:
        yield from _dense_projections(block.shared.block, hidden)
    if not isinstance(block.tensors, StackedTensors):
        for number in range(block.count):
            for name in block.tensors.gate_up(number):
                yield LinearShape(name, block.inner, hidden, False, is_expert=True)
            yield LinearShape(block.tensors.down(number), hidden, block.inner, False, is_expert=True)


def _dense_projections(block: Dense, hidden: int) -> Iterator[LinearShape]:
    for name in block.gate_up:
        yield LinearShape(f"{block.name}.{name}", 2 * block.inner // len(block.gate_up), hidden, block.bias)
    yield LinearShape(f"{block.name}.{block.down}", hidden, block.inner, block.bias)


def stacks(layer: LayerSpec, hidden: int) -> Iterator[Stack]:
    """The products of experts that lie in one tensor."""
    block = layer.feed_forward
    if isinstance(block, Experts) and isinstance(names := block.tensors, StackedTensors):
        form = names.columns_first, names.has_biases
        yield Stack(names.gate_up, block.count, 2 * block.inner, hidden, *form)
        yield Stack(names.down, block.count, hidden, block.inner, *form)


def linear_sizes(config: DecoderSpec) -> dict[str, tuple[int, int]]:
    """Output features and columns of all linear layers by name, the head among them; experts in stacks are not."""
    sizes = {
        layer_prefix(number) + projection.name: (projection.features, projection.columns)
        for number, layer in enumerate(config.layers)
        for projection in projections(layer, config.hidden_size)
    }
    return sizes | {HEAD_LAYER: (config.vocab_size, config.hidden_size)}


def is_harmless_extra(name: str, config: DecoderSpec) -> bool:
    """Tensors that exporters leave in a file to no effect: RoPE buffers (recomputed), a head that is tied anyway,
    scales of a float8 KV cache (ours come from the weights). So are layers that predict further tokens."""
    if config.formats.has_kv_scales and name.endswith(KV_SCALES):
        return True
    further = range(config.num_layers, config.num_layers + config.further_layers)
    if name.startswith(tuple(layer_prefix(number) for number in further)):
        return True
    return bool(_ROTARY_BUFFER.fullmatch(name)) or (config.tied_head and name == HEAD)


def may_hold_zeros(name: str, config: DecoderSpec) -> bool:
    """Biases that no layer of the config has. Tools of GPTQ write them, full of zeros."""
    layer, _, part = name.rpartition(".")
    return part == "bias" and isinstance(config.formats.of(layer), Gptq)


def rotated_rows(mixer: Attention) -> list[int] | None:
    """The feature of queries, keys and values, one below the other as in the checkpoint, that is at each place once
    every head's rotated pairs are half of the head apart, as the kernels rotate them. None: unchanged.

    Products of queries and keys do not change. Dimensions that are not rotated fill both halves up; their angle is 0.
    """
    rotated = mixer.rope.rotated(mixer.head_dim)
    rest = list(range(rotated, mixer.head_dim))
    if mixer.rope.interleaved:
        first, second = list(range(0, rotated, 2)), list(range(1, rotated, 2))
    else:
        first, second = list(range(rotated // 2)), list(range(rotated // 2, rotated))
    head = first + rest[: len(rest) // 2] + second + rest[len(rest) // 2 :]
    if head == list(range(mixer.head_dim)):
        return None
    heads = range(mixer.q_heads + mixer.kv_heads)
    turned = [at * mixer.head_dim + place for at in heads for place in head]
    return turned + list(range(len(turned), len(turned) + mixer.kv_width))


def _plain(*shape: int) -> TensorForm:
    return TensorForm((shape,), UNQUANTISED)


def _linear(config: DecoderSpec, prefix: str, projection: LinearShape) -> dict[str, TensorForm]:
    name = prefix + projection.name
    stored = config.formats.of(name)
    if stored is None:
        forms = {f"{name}.weight": _plain(projection.features, projection.columns)}
    else:
        try:
            tensors = stored.tensors(projection.features, projection.columns)
        except ValueError as error:
            raise ModelConfigError(f"quantization_config: {name}.{error}") from error
        forms = {f"{name}.{part}": form for part, form in tensors.items()}
    if projection.has_bias:
        forms[f"{name}.bias"] = _plain(projection.features)
    return forms


def _stack(config: DecoderSpec, prefix: str, stack: Stack) -> dict[str, TensorForm]:
    name, stored = prefix + stack.name, config.formats.stacks
    bias = {f"{name}_bias": _plain(stack.count, stack.features)} if stack.has_bias else {}
    if stored is None:
        sides = (stack.columns, stack.features) if stack.columns_first else (stack.features, stack.columns)
        return {name: _plain(stack.count, *sides)} | bias
    try:
        tensors = stored.tensors(stack.count, stack.features, stack.columns)
    except ValueError as error:
        raise ModelConfigError(f"quantization_config: {name}_{error}") from error
    return {name + end: form for end, form in tensors.items()} | bias
