"""Degrees of tensor parallelism that a model allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton_wire.models.decoder_spec import DecoderSpec, LayerSpec
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.formats.mxfp4 import Mxfp4
from baton_wire.models.formats.weight_format import TensorAxes, WeightFormat
from baton_wire.models.parameters import layer_prefix, projections, stacks
from baton_wire.models.sharding.shard_spec import shard_spec
from baton_wire.models.sharding.tensor_parts import GROUP_INDICES, format_axes, layer_parts, slice_tensor

MAX_RANKS: Final = 8
"""Ranks of one worker at most: the GPUs of one host."""


@dataclass(frozen=True, slots=True)
class _QuantisedLayer:
    """A quantised linear layer or stack; models have many that are alike."""

    layer: LayerSpec
    name: str
    """Name after the layer's prefix."""
    size: tuple[int, int]
    stored: WeightFormat | Mxfp4


_Axes = Mapping[str, TensorAxes]


def allowed_degrees(config: DecoderSpec) -> tuple[int, ...]:
    """The numbers of ranks that can share the model, ascending; 1 is always among them. Raises ModelConfigError for
    sizes that a weight format can't hold."""
    layers = _quantised_layers(config)
    return tuple(ranks for ranks in range(1, MAX_RANKS + 1) if _objection(config, layers, ranks) is None)


def check_degree(config: DecoderSpec, ranks: int) -> None:
    """Raises ModelConfigError unless that many ranks can share the model: field, value, what is allowed."""
    if ranks == 1:
        return
    if (objection := _objection(config, _quantised_layers(config), ranks)) is not None:
        allowed = ", ".join(map(str, allowed_degrees(config)))
        raise ModelConfigError(f"tensor_parallel: {ranks} is not supported: {objection}; allowed: {allowed}")


def _objection(config: DecoderSpec, layers: Mapping[_QuantisedLayer, tuple[str, _Axes]], ranks: int) -> str | None:
    """Why that many ranks cannot share the model; None: they can."""
    if not 1 <= ranks <= MAX_RANKS:
        return f"a worker has 1 to {MAX_RANKS} ranks"
    if ranks == 1:
        return None
    try:
        for rank in range(ranks):
            shard_spec(config, rank, ranks)
            parts = {layer: layer_parts(layer, rank, ranks) for layer in {kind.layer for kind in layers}}
            for kind, (name, axes) in layers.items():
                for end, tensor in axes.items():
                    slice_tensor(f"{name}{end}", tensor, kind.size, parts[kind.layer][kind.name])
    except ValueError as error:
        return str(error)
    return None


def _quantised_layers(config: DecoderSpec) -> dict[_QuantisedLayer, tuple[str, _Axes]]:
    """The kinds of quantised layers, each with the name of the first one and the axes of its tensors by the ends of
    their names. The head is none: it is shared out on its block borders."""
    kinds: dict[_QuantisedLayer, tuple[str, _Axes]] = {}
    for number, layer in enumerate(config.layers):
        prefix = layer_prefix(number)
        for projection in projections(layer, config.hidden_size):
            name, size = prefix + projection.name, (projection.features, projection.columns)
            stored = config.formats.of(name)
            if stored is not None and (kind := _QuantisedLayer(layer, projection.name, size, stored)) not in kinds:
                kinds[kind] = name, _axes(name, stored, size)
        if (stacked := config.formats.stacks) is not None:
            for stack in stacks(layer, config.hidden_size):
                kind = _QuantisedLayer(layer, stack.name, (stack.features, stack.columns), stacked)
                kinds.setdefault(kind, (prefix + stack.name, stacked.axes()))
    return kinds


def _axes(name: str, stored: WeightFormat, size: tuple[int, int]) -> _Axes:
    try:
        forms = stored.tensors(*size)
    except ValueError as error:
        raise ModelConfigError(f"quantization_config: {name}.{error}") from error
    has_order = any(part in forms and not forms[part].optional for part in GROUP_INDICES)
    return {f".{part}": axes for part, axes in format_axes(stored, has_order).items() if part in forms}
