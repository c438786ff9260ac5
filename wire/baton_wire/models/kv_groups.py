"""Which of a model's layers share block tables: those with equal windows, in groups of equally many layers.

Blocks of all groups have one size, so that one pool serves them all. A group that is not full leaves part of its
blocks unused: as few groups are made as the smaller kind of layers allows.
"""

from __future__ import annotations

from baton_wire.kv_shape import KvGroup
from baton_wire.models.decoder_spec import DecoderSpec


def kv_groups(config: DecoderSpec) -> tuple[KvGroup, ...]:
    """The groups, those without a window first. Empty where no layer has a window: one group of all layers."""
    by_window: dict[int | None, list[int]] = {}
    for number, layer in enumerate(config.layers):
        by_window.setdefault(layer.mixer.window, []).append(number)
    if by_window.keys() == {None}:
        return ()
    size = min(len(layers) for layers in by_window.values())
    kinds = sorted(by_window.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0))
    return tuple(
        KvGroup(window, tuple(layers[first : first + size]))
        for window, layers in kinds
        for first in range(0, len(layers), size)
    )
