"""Which units of a hand-over are scattered into blocks next. Pure."""

from __future__ import annotations

from baton_kv_transfer.decode_records import DecodeHandover, Scatter
from baton_kv_transfer.landing import LandingRegion
from baton_kv_transfer.layout import StreamLayout, landing_extents


def next_scatter(
    handover: DecodeHandover, layout: StreamLayout, landing: LandingRegion, max_bytes: int
) -> Scatter | None:
    """The next units of some layer group that stand whole in one stretch of landing bytes; None while there are none.

    A sealed hand-over's bytes all stand. At most `max_bytes` at once, but always a unit.
    """
    assert handover.transfer is not None
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
