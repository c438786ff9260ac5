"""Which units of a rank's pool a hand-over has filled: a bitmap over (source rank, layer group, unit). Pure."""

from __future__ import annotations

from itertools import pairwise

from baton_wire.kv_shape import Units


class UnitCoverage:
    """Units of all layers of one KV group, from every source rank its heads. A hand-over has one for each KV group."""

    def __init__(self, layers: int, first_unit: int, end_unit: int, sources: dict[int, range]) -> None:
        """`sources`: which of the rank's heads each source rank sends."""
        self._layers = layers
        self._first = first_unit
        self._units = end_unit - first_unit
        self._sources = sources
        self._bits: dict[int, dict[tuple[int, int], int]] = {source: {} for source in sources}

    def add(self, source: int, units: Units) -> bool:
        """Note that these units of a layer group are complete. False, and no change: not this source's heads, outside,
        or again."""
        part, first_unit, end_unit = units.part, units.first, units.end
        groups = self._bits.get(source)
        heads = self._sources.get(source)
        if groups is None or heads != range(part.first_head, part.end_head):
            return False
        if not self._first <= first_unit <= end_unit <= self._first + self._units:
            return False
        group = (part.first_layer, part.end_layer)
        added = (1 << end_unit - self._first) - (1 << first_unit - self._first)
        if groups.get(group, 0) & added:
            return False
        groups[group] = groups.get(group, 0) | added
        return True

    def gap(self) -> str | None:
        """The name of what is missing; None when every source's units are complete in every layer."""
        for source, groups in self._bits.items():
            for (first, end), bits in groups.items():
                if bits != (1 << self._units) - 1:
                    return f"units of layers [{first}, {end}) from rank {source}"
            borders = [(0, 0), *sorted(groups), (self._layers, self._layers)]
            if self._units and any(end != first for (_, end), (first, _) in pairwise(borders)):
                return f"layers from rank {source}: {sorted(groups)} of {self._layers}"
        return None
