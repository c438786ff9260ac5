"""Which units of a hand-over are scattered into blocks next. Pure."""

from __future__ import annotations

from baton_kv_transfer.decode_records import DecodeHandover, Scatter
from baton_kv_transfer.landing import LandingRegion
from baton_kv_transfer.layout import Extent, PoolPart, StreamLayout, joined, landing_extents


def next_scatter(
    handover: DecodeHandover, layout: StreamLayout, landing: LandingRegion, max_bytes: int
) -> Scatter | None:
    """The next units of some layer group that stand whole in one stretch of landing bytes; None while there are none.

    A sealed hand-over's bytes all stand. At most `max_bytes` at once, but always a unit.
    """
    assert handover.transfer is not None
    if (whole := _whole(handover, layout, max_bytes)) is not None:
        return whole
    most = max(1, max_bytes // layout.group_unit_bytes)
    for group, first in enumerate(handover.next_units):
        end = layout.end_unit
        if first == end:
            continue
        if handover.seal is None:
            start = layout.extent(group, first, end).offset
            standing = landing.arrived_to(handover.transfer, start) - start
            end = min(first + standing // layout.group_unit_bytes, end)
        end = min(end, first + most)
        if end > first:
            extent = landing_extents(handover.spans, layout.extent(group, first, end))[0]
            end = first + extent.length // layout.group_unit_bytes
            part = layout.part(group)
            units = (layout.unit_tokens, first, end)
            return Scatter(handover.key, handover.blocks, *units, part, extent, handover.one_sided)
    return None


def _whole(handover: DecodeHandover, layout: StreamLayout, max_bytes: int) -> Scatter | None:
    """All layer groups at once, where nobody saw them arrive one by one; they then count as begun.

    A scatter is a call to another thread and a wait for a device, however little it moves.
    """
    is_untouched = all(unit == layout.first_unit for unit in handover.next_units)
    if handover.seal is None or not handover.one_sided or not is_untouched or layout.stream_bytes > max_bytes:
        return None
    extents = joined(landing_extents(handover.spans, Extent(0, layout.stream_bytes)))
    if len(extents) != 1:
        return None
    handover.next_units = [layout.end_unit] * layout.groups
    first, last = layout.part(0), layout.part(layout.groups - 1)
    part = PoolPart(first.first_layer, last.end_layer, first.first_head, first.end_head)
    units = (layout.unit_tokens, layout.first_unit, layout.end_unit)
    return Scatter(handover.key, handover.blocks, *units, part, extents[0], one_sided=True, groups=layout.groups)
