"""Sizes of a model's layers, in elements and in stored bytes, for the costs of steps and for sizing."""

from __future__ import annotations

from dataclasses import dataclass

from baton_wire.models.decoder_spec import DecoderSpec, Experts
from baton_wire.models.parameters import HEAD_LAYER, layer_prefix, projections, stacks


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of all layers together."""

    weights: int
    """Elements that every token is multiplied with, routers among them."""
    bytes: int
    """Bytes of these weights as they are stored."""
    expert_weights: int
    expert_bytes: int
    expert_share: float
    """Share of the experts that a token uses; 1 without experts."""


def layer_sizes(config: DecoderSpec, element_bytes: int) -> LayerSizes:
    """The sizes if unquantised elements take `element_bytes`. Raises ModelConfigError for sizes that a format can't
    hold."""
    weights = stored = expert_weights = expert_bytes = 0
    share = 1.0
    for number, layer in enumerate(config.layers):
        if isinstance(layer.feed_forward, Experts):
            share = layer.feed_forward.per_token / layer.feed_forward.count
            weights += config.hidden_size * layer.feed_forward.count
            stored += config.hidden_size * layer.feed_forward.count * element_bytes
        for part in projections(layer, config.hidden_size):
            size = _stored_bytes(config, layer_prefix(number) + part.name, part.features, part.columns, element_bytes)
            if part.is_expert:
                expert_weights, expert_bytes = expert_weights + part.features * part.columns, expert_bytes + size
            else:
                weights, stored = weights + part.features * part.columns, stored + size
        for stack in stacks(layer, config.hidden_size):
            one, form = stack.features * stack.columns, config.formats.stacks
            expert_weights += stack.count * one
            size = one * element_bytes if form is None else form.stored_bytes(stack.features, stack.columns)
            expert_bytes += stack.count * size
    return LayerSizes(weights, stored, expert_weights, expert_bytes, share)


def head_bytes(config: DecoderSpec, element_bytes: int) -> int:
    """Bytes of the output projection as it is stored."""
    return _stored_bytes(config, HEAD_LAYER, config.vocab_size, config.hidden_size, element_bytes)


def _stored_bytes(config: DecoderSpec, name: str, features: int, columns: int, element_bytes: int) -> int:
    stored = config.formats.of(name)
    return features * columns * element_bytes if stored is None else stored.stored_bytes(features, columns)
