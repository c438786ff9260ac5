"""Which units of a hand-over are scattered into blocks next. Pure."""

from __future__ import annotations

from baton_kv_transfer.decode.records import DecodeHandover, Scatter
from baton_kv_transfer.landing import LandingRegion
from baton_kv_transfer.layout import Extent, StreamLayout, joined, landing_extents
from baton_wire.kv_shape import PoolPart, Units


def next_scatter(
    handover: DecodeHandover, layout: StreamLayout, landing: LandingRegion, max_bytes: int
) -> Scatter | None:
    """The next units of some layer group that stand whole in one stretch of landing bytes; None while there are none.

    They then count as begun. A sealed hand-over's bytes all stand. At most `max_bytes` at once, but always a unit.
    """
    scatter = _groups(handover, layout, max_bytes) or _units(handover, layout, landing, max_bytes)
    if scatter is not None:
        units = scatter.units
        group = units.part.first_layer // layout.group_layers
        for each in range(group, group + units.groups):
            handover.next_units[each] = units.end
        handover.scattering = (group, units.first)
    return scatter


def _units(handover: DecodeHandover, layout: StreamLayout, landing: LandingRegion, max_bytes: int) -> Scatter | None:
    """Of one layer group."""
    assert handover.transfer is not None
    most = max(1, max_bytes // layout.group_unit_bytes)
    for group, first in enumerate(handover.next_units):
        end = layout.end_unit
        if first == end:
            continue
        if handover.seal is None and group >= handover.standing_groups:
            start = layout.extent(group, first, end).offset
            standing = landing.arrived_to(handover.transfer, start) - start
            end = min(first + standing // layout.group_unit_bytes, end)
        end = min(end, first + most)
        if end > first:
            extent = landing_extents(handover.spans, layout.extent(group, first, end))[0]
            end = first + extent.length // layout.group_unit_bytes
            units = Units(handover.blocks, layout.unit_tokens, first, end, layout.part(group))
            return Scatter(handover.key, units, extent, handover.one_sided)
    return None


def _groups(handover: DecodeHandover, layout: StreamLayout, max_bytes: int) -> Scatter | None:
    """All layer groups at once that stand and were not begun, where nobody saw them arrive one by one.

    A scatter is a call to another thread and a wait for a device, however little it moves.
    """
    begin = next(group for group, unit in enumerate(handover.next_units) if unit < layout.end_unit)
    end = min(handover.standing_groups, layout.groups) if handover.seal is None else layout.groups
    group_bytes = layout.units * layout.group_unit_bytes
    is_untouched = all(unit == layout.first_unit for unit in handover.next_units[begin:end])
    if not handover.one_sided or begin >= end or not is_untouched or (end - begin) * group_bytes > max_bytes:
        return None
    stream = Extent(begin * group_bytes, (end - begin) * group_bytes)
    extents = joined(landing_extents(handover.spans, stream))
    if len(extents) != 1:
        return None
    first, last = layout.part(begin), layout.part(end - 1)
    part = PoolPart(first.first_layer, last.end_layer, first.first_head, first.end_head)
    unit_tokens, units = layout.unit_tokens, (layout.first_unit, layout.end_unit)
    return Scatter(handover.key, Units(handover.blocks, unit_tokens, *units, part, end - begin), extents[0], True)
