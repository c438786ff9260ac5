"""The part of each tensor of a checkpoint that one rank reads.

Layers that read the hidden state are shared out by their output features (queries, keys, values, gate, up, head), those
that add to it by their columns (attention output, down). A bias that is added to the sum of the ranks is rank 0's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baton_wire.kv_shape import held_kv_heads
from baton_wire.models.decoder_spec import Attention, DecoderSpec, Dense, LayerSpec, StackedTensors
from baton_wire.models.formats.packed_integers import Gptq, PackedIntegers
from baton_wire.models.formats.weight_format import Axis, TensorAxes, WeightFormat
from baton_wire.models.parameters import HEAD_LAYER, SINKS, Stack, layer_prefix, projections, stacks
from baton_wire.models.sharding.shard_spec import (
    BLOCK_COLUMNS,
    EXPERT_COLUMNS,
    HEADS,
    SHARED_COLUMNS,
    equal_part,
)


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Ranges along one axis of a tensor, one after the other."""

    axis: int
    ranges: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class ZeroTensor:
    """Zeros in place of a tensor that another rank has."""


@dataclass(frozen=True, slots=True)
class StatedShape:
    """The shape of a rank's weight, in place of the tensor that states the whole weight's."""

    whole: tuple[int, int]
    own: tuple[int, int]


TensorPart = TensorSlice | ZeroTensor | StatedShape


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A rank's features or columns of a linear layer; None: all of them."""

    features: tuple[range, ...] | None = None
    columns: range | None = None


GROUP_INDICES: Final = ("g_idx", "weight_g_idx")
"""Tensors that place columns in groups one by one."""
_UNQUANTISED: Final = {"weight": TensorAxes(Axis(0), Axis(1))}


def tensor_parts(config: DecoderSpec, names: Collection[str], rank: int, ranks: int) -> dict[str, TensorPart]:
    """The parts of the tensors `names` of a checkpoint that the rank reads; it reads the others whole. Raises
    ValueError, which says what cannot be shared out equally, or which tensor would be cut inside a block."""
    parts: dict[str, TensorPart] = {}
    if ranks == 1:
        return parts
    for number, layer in enumerate(config.layers):
        prefix, own = layer_prefix(number), layer_parts(layer, rank, ranks)
        for projection in projections(layer, config.hidden_size):
            size = (projection.features, projection.columns)
            parts |= _linear(config, prefix + projection.name, size, own[projection.name], names, rank)
        for stack in stacks(layer, config.hidden_size):
            parts |= _stack(config, prefix, stack, own[stack.name], rank)
        parts |= _heads(f"{prefix}self_attn.", layer.mixer, rank, ranks)
        if layer.mixer.sinks:
            parts[prefix + SINKS] = TensorSlice(0, (equal_part(layer.mixer.q_heads, rank, ranks, HEADS),))
    head = LayerPart(features=(vocabulary_part(config, rank, ranks),))
    parts |= _linear(config, HEAD_LAYER, (config.vocab_size, config.hidden_size), head, names, rank)
    return {name: part for name, part in parts.items() if name in names}


def vocabulary_part(config: DecoderSpec, rank: int, ranks: int) -> range:
    """The rank's adjacent tokens of the vocabulary, on the head's block borders. All ranks but the last ones have
    equally many; the last one that has any may have fewer, and ranks after it repeat its part."""
    stored = config.formats.of(HEAD_LAYER)
    steps = (axes.features.step for axes in format_axes(stored, has_order=False).values() if axes.features is not None)
    step = math.lcm(*steps)
    length = -(-config.vocab_size // (ranks * step)) * step
    first = min(rank, (config.vocab_size - 1) // length) * length
    return range(first, min(first + length, config.vocab_size))


def layer_parts(layer: LayerSpec, rank: int, ranks: int) -> dict[str, LayerPart]:
    """The parts of the layer's linear layers and stacks, by their names after the layer's prefix."""
    mixer, block = layer.mixer, layer.feed_forward
    queries, keys, values = _head_rows(mixer, rank, ranks)
    rows: list[tuple[range, ...]] = [(queries,), (keys,), (values,)]
    if len(mixer.qkv) == 1:
        rows = [(queries, _shift(keys, mixer.q_width), _shift(values, mixer.q_width + mixer.kv_width))]
    parts = {f"self_attn.{name}": LayerPart(features) for name, features in zip(mixer.qkv, rows, strict=True)}
    parts["self_attn.o_proj"] = LayerPart(columns=queries)
    if isinstance(block, Dense):
        return parts | _dense_parts(block, rank, ranks, BLOCK_COLUMNS)
    if block.shared is not None:
        parts |= _dense_parts(block.shared.block, rank, ranks, SHARED_COLUMNS)
    inner, names = equal_part(block.inner, rank, ranks, EXPERT_COLUMNS), block.tensors
    if isinstance(names, StackedTensors):
        in_turn = (range(2 * inner.start, 2 * inner.stop),)
        gate_up = in_turn if names.in_turn else (inner, _shift(inner, block.inner))
        return parts | {names.gate_up: LayerPart(gate_up), names.down: LayerPart(columns=inner)}
    for number in range(block.count):
        parts |= {name: LayerPart((inner,)) for name in names.gate_up(number)}
        parts[names.down(number)] = LayerPart(columns=inner)
    return parts


def _dense_parts(block: Dense, rank: int, ranks: int, what: str) -> dict[str, LayerPart]:
    inner = equal_part(block.inner, rank, ranks, what)
    gate_up = (inner,) if len(block.gate_up) > 1 else (inner, _shift(inner, block.inner))
    parts = {f"{block.name}.{name}": LayerPart(gate_up) for name in block.gate_up}
    return parts | {f"{block.name}.{block.down}": LayerPart(columns=inner)}


def _head_rows(mixer: Attention, rank: int, ranks: int) -> tuple[range, range, range]:
    """The features of the rank's heads among all queries, keys and values."""
    heads = equal_part(mixer.q_heads, rank, ranks, HEADS)
    kv_heads = held_kv_heads(mixer.kv_heads, rank, ranks)
    q, kv = (range(part.start * mixer.head_dim, part.stop * mixer.head_dim) for part in (heads, kv_heads))
    return q, kv, kv


def _heads(prefix: str, mixer: Attention, rank: int, ranks: int) -> dict[str, TensorPart]:
    """The parts of norms over all query heads and all key heads."""
    if not (mixer.qk_norm and mixer.joins_heads) or mixer.qk_norm_names is None:
        return {}
    rows = _head_rows(mixer, rank, ranks)[:2]
    names = zip(mixer.qk_norm_names, rows, strict=True)
    return {f"{prefix}{name}.weight": TensorSlice(0, (heads,)) for name, heads in names}


def _linear(
    config: DecoderSpec, layer: str, size: tuple[int, int], part: LayerPart, names: Collection[str], rank: int
) -> dict[str, TensorPart]:
    stored = config.formats.of(layer)
    has_order = any(f"{layer}.{name}" in names for name in GROUP_INDICES)
    parts: dict[str, TensorPart] = {}
    for name, axes in format_axes(stored, has_order).items():
        if (cut := slice_tensor(f"{layer}.{name}", axes, size, part)) is not None:
            parts[f"{layer}.{name}"] = cut
    if part.features is not None:
        parts[f"{layer}.bias"] = TensorSlice(0, part.features)
    elif rank:
        parts[f"{layer}.bias"] = ZeroTensor()
    if isinstance(stored, PackedIntegers):
        parts[f"{layer}.weight_shape"] = StatedShape(size, part_size(size, part))
    return parts


def _stack(config: DecoderSpec, prefix: str, stack: Stack, part: LayerPart, rank: int) -> dict[str, TensorPart]:
    name, stored = prefix + stack.name, config.formats.stacks
    whole = TensorAxes(Axis(2), Axis(1)) if stack.columns_first else TensorAxes(Axis(1), Axis(2))
    parts: dict[str, TensorPart] = {}
    for end, axes in ({"": whole} if stored is None else stored.axes()).items():
        if (cut := slice_tensor(f"{name}{end}", axes, (stack.features, stack.columns), part)) is not None:
            parts[f"{name}{end}"] = cut
    if part.features is not None:
        parts[f"{name}_bias"] = TensorSlice(1, part.features)
    elif rank:
        parts[f"{name}_bias"] = ZeroTensor()
    return parts


def part_size(size: tuple[int, int], part: LayerPart) -> tuple[int, int]:
    """Features and columns of a rank's part of a layer of that size."""
    features = size[0] if part.features is None else sum(map(len, part.features))
    return features, size[1] if part.columns is None else len(part.columns)


def format_axes(stored: WeightFormat | None, has_order: bool) -> Mapping[str, TensorAxes]:
    """The axes of a layer's tensors. Columns that are placed in groups one by one need the scales of all groups."""
    if stored is None:
        return _UNQUANTISED
    if has_order and isinstance(stored, Gptq | PackedIntegers):
        return replace(stored, group=0).axes()
    return stored.axes()


def slice_tensor(tensor: str, axes: TensorAxes, size: tuple[int, int], part: LayerPart) -> TensorSlice | None:
    """The slice of a tensor; None: all of it. Raises ValueError where it would cut an entry."""
    if part.features is not None:
        axis, ranges, end = axes.features, part.features, size[0]
    elif part.columns is not None:
        axis, ranges, end = axes.columns, (part.columns,), size[1]
    else:
        return None
    return None if axis is None else TensorSlice(axis.number, _entries(tensor, axis, ranges, end))


def _entries(tensor: str, axis: Axis, ranges: Sequence[range], end: int) -> tuple[range, ...]:
    for border in {border for part in ranges for border in (part.start, part.stop)}:
        if border % axis.step and border != end:
            raise ValueError(f"it cuts {tensor} at {border}, inside a block of {axis.step}")
    return tuple(range(part.start // axis.step, -(-part.stop // axis.step)) for part in ranges)


def _shift(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)
