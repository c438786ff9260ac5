"""Put a decoder together: read parameters, cast and move them once, fuse QKV and gate/up, pack them for the device."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from baton_engine.collectives.collective import SINGLE_RANK, Collective
from baton_engine.collectives.stage_relay import StageRelay
from baton_engine.model.decoder import Decoder, DecoderLayer
from baton_engine.model.feed_forward import assemble_feed_forward
from baton_engine.model.layers.absent_head import AbsentHead
from baton_engine.model.layers.adjusted_head import adjust_head
from baton_engine.model.layers.linear import Projection, QuantisedLinear, RowLinear, linear_method
from baton_engine.model.layers.norm import NormedProjection, PackedNorm, ScaledProjection, read_by
from baton_engine.model.layers.rope import rope_tables
from baton_engine.model.layers.summed import GatheredHead, VocabularyShare, sum_over_ranks
from baton_engine.model.offloading import assemble_layers
from baton_engine.model.parameter_reader import ParameterReader
from baton_engine.model.weights import WeightSource
from baton_kernels.kv.kv_scales import GREATEST
from baton_wire.kv_shape import KvGroup, layer_places
from baton_wire.models.decoder_spec import Attention, DecoderSpec
from baton_wire.models.kv_groups import kv_groups
from baton_wire.models.parameters import (
    EMBEDDING,
    FINAL_NORM_LAYER,
    HEAD_LAYER,
    LABELS,
    SINKS,
    layer_prefix,
    linear_sizes,
    rotated_rows,
)
from baton_wire.models.sharding.shard_spec import shard_spec
from baton_wire.models.sharding.tensor_parts import vocabulary_part


def assemble(  # noqa: PLR0913 - what a decoder is made of, and its part of it, with defaults
    config: DecoderSpec,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    max_context_tokens: int,
    offloaded: int = 0,
    collective: Collective = SINGLE_RANK,
    relay: StageRelay | None = None,
) -> Decoder:
    """The decoder of a config with the source's (already checked) parameters; RoPE tables reach max_context_tokens.

    `offloaded`: how many layers stay in the host's memory. Raises ValueError where that is not fewer than there are.
    `collective`: of several ranks, this one's share of the config's decoder; the source has its parts of parameters.
    `relay`: of a stage of a pipeline, which reads the parameters of its own layers alone.
    """
    method, share = linear_method(dtype, device), collective.share
    config = shard_spec(config, share.rank, share.ranks)
    vocabulary = vocabulary_part(config, share.rank, share.ranks)
    reader = ParameterReader(
        *(source, dtype, device, method, config.norm_eps, config.norms_from_one, config.formats),
        linear_sizes(config) | {HEAD_LAYER: (len(vocabulary), config.hidden_size)},
        collective,
    )
    own = range(config.num_layers) if relay is None else relay.share.layers
    is_last = relay is None or relay.share.is_last
    embeds = relay is None or relay.share.is_first or (is_last and config.tied_head)
    embedding = reader.tensor(EMBEDDING) if embeds else torch.empty(0, config.hidden_size, dtype=dtype, device=device)
    input_norms = [(layer_prefix(number), layer.norms.before_mixer) for number, layer in enumerate(config.layers)]
    borders = [reader.norm(*names) for names in [*input_norms, ("", FINAL_NORM_LAYER)][own.start : own.stop + 1]]

    def build(layer: int) -> DecoderLayer:
        return _assemble_layer(config, reader, own[layer], borders[layer], borders[layer + 1])

    layers, ring = assemble_layers(len(own), offloaded, device, build)
    readers = (layer.qkv for layer in layers[1:])
    layers = tuple(
        replace(layer, mlp_norm=read_by(layer.mlp_norm, layer.mlp), next_norm=read_by(layer.next_norm, reader))
        for layer, reader in zip(layers, (*readers, None), strict=True)
    )
    return Decoder(
        embedding=embedding,
        embedding_scale=float(torch.tensor(config.embedding_scale).to(dtype)),
        first_norm=borders[0].norm,
        layers=layers,
        head=(
            _gathered(_head(config, reader, embedding, borders[-1], vocabulary), config, collective, vocabulary)
            if is_last
            else AbsentHead()
        ),
        ropes=tuple(rope_tables(rope, config.head_dim, max_context_tokens, dtype, device) for rope in config.ropes),
        num_q_heads=config.attention.q_heads,
        kv_scales=_kv_scales(config, source).to(device),
        rest_of_norm=borders[-1].rest(),
        label_head=reader.tensor(LABELS).float() if config.labels and is_last else None,
        ring=ring,
        relay=relay,
    )


def _head(
    config: DecoderSpec, reader: ParameterReader, embedding: Tensor, norm: PackedNorm, vocabulary: range
) -> Projection:
    if not config.tied_head:
        head = reader.linear("", HEAD_LAYER, has_bias=False, norm=norm)
    else:
        # With rows as in the checkpoint the memory is shared; the CPU's own layout is a second copy, for speed.
        rows = embedding[vocabulary.start : vocabulary.stop]
        head = reader.method.pack(rows if norm.scale is None else rows * norm.scale, None, norm.deferred_eps)
    return adjust_head(head, config.logit_divisor, config.logit_cap)


def _gathered(head: Projection, config: DecoderSpec, collective: Collective, vocabulary: range) -> Projection:
    ranks = collective.share.ranks
    if ranks == 1:
        return head
    width = len(vocabulary_part(config, 0, ranks))
    return GatheredHead(head, VocabularyShare(collective, vocabulary.start, width, config.vocab_size))


def _kv_scales(config: DecoderSpec, source: WeightSource) -> Tensor:
    """Scales of a float8 pool, [groups, layers of one, 2, kv_heads] float32: 1 for keys, 1/8 for values, which are
    smaller; more where a projection's bias alone would take half of the range (keys of Qwen2). Powers of two, the same
    on every worker."""
    scales = torch.ones(config.num_layers, 2, config.num_kv_heads)
    scales[:, 1] = 1 / 8
    for number, layer in enumerate(config.layers):
        mixer = layer.mixer
        if not mixer.qkv_bias:
            continue
        names = [f"{layer_prefix(number)}self_attn.{name}.bias" for name in mixer.qkv]
        biases = torch.cat([source.read(name).float().cpu() for name in names])
        for side, bias in enumerate(torch.split(biases[mixer.q_width :], mixer.kv_width)):
            greatest = bias.view(mixer.kv_heads, mixer.head_dim).abs().amax(-1)
            needed = torch.exp2(torch.ceil(torch.log2((2 * greatest / GREATEST).clamp(min=2.0**-20))))
            scales[number, side] = torch.maximum(scales[number, side], needed)
    groups = kv_groups(config) or (KvGroup(None, tuple(range(config.num_layers))),)
    by_group = torch.ones(len(groups), max(len(group.layers) for group in groups), *scales.shape[1:])
    for group, layers in zip(by_group, groups, strict=True):
        group[: len(layers.layers)] = scales[list(layers.layers)]
    return by_group


def _assemble_layer(
    config: DecoderSpec, reader: ParameterReader, number: int, input_norm: PackedNorm, next_norm: PackedNorm
) -> DecoderLayer:
    layer, prefix = config.layers[number], layer_prefix(number)
    mixer, norms, attention = layer.mixer, layer.norms, f"{prefix}self_attn."
    mlp, mlp_norm = assemble_feed_forward(layer, reader, prefix)
    rows, has_head_norms = rotated_rows(mixer), mixer.qk_norm and not mixer.joins_heads
    qkv: Projection = reader.linear(attention, *mixer.qkv, has_bias=mixer.qkv_bias, norm=input_norm, rows=rows)
    key_value = _key_value(reader, mixer, attention, qkv, input_norm) if number == config.num_layers - 1 else None
    if mixer.joins_heads:
        qkv = reader.jointly_normed(attention, mixer, qkv, has_queries=True)
        if key_value is not None:
            key_value = reader.jointly_normed(attention, mixer, key_value, has_queries=False)
    output: Projection = reader.linear(attention, "o_proj", has_bias=mixer.output_bias)
    output, mlp = (sum_over_ranks(block, reader.collective) for block in (output, mlp))
    if norms.after_mixer is not None:
        output = NormedProjection(output, reader.own_norm(f"{prefix}{norms.after_mixer}.weight"))
    if norms.after_feed_forward is not None:
        mlp = NormedProjection(mlp, reader.own_norm(f"{prefix}{norms.after_feed_forward}.weight"))
    if layer.residual_scale != 1.0:
        output, mlp = (ScaledProjection(block, layer.residual_scale) for block in (output, mlp))
    return DecoderLayer(
        qkv=qkv,
        key_value=key_value,
        head_norms=reader.head_norms(attention, rows, mixer) if has_head_norms else None,
        query_factor=reader.query_factor(attention, mixer),
        output=output,
        mlp_norm=mlp_norm,
        mlp=mlp,
        next_norm=next_norm.norm,
        rope=config.ropes.index(mixer.rope),
        scale=mixer.scale,
        window=mixer.window,
        place=layer_places(kv_groups(config), config.num_layers)[number],
        sinks=reader.tensor(prefix + SINKS).float() if mixer.sinks else None,
    )


def _key_value(
    reader: ParameterReader, mixer: Attention, prefix: str, qkv: Projection, input_norm: PackedNorm
) -> Projection | None:
    """K and V of a layer alone, where that pays."""
    if isinstance(qkv, RowLinear | QuantisedLinear):
        return qkv.last_features(2 * mixer.kv_width)
    if not reader.method.reads_norms:
        return None
    rows = rotated_rows(mixer) or range(mixer.q_width + 2 * mixer.kv_width)
    return reader.linear(prefix, *mixer.qkv, has_bias=mixer.qkv_bias, norm=input_norm, rows=rows[mixer.q_width :])
