"""Which units of a hand-over are scattered into blocks next. Pure."""

from __future__ import annotations

from baton_kv_transfer.decode_records import DecodeHandover, Scatter
from baton_kv_transfer.landing import LandingRegion
from baton_kv_transfer.layout import StreamLayout, landing_extents


def next_scatter(
    handover: DecodeHandover, layout: StreamLayout, landing: LandingRegion, max_bytes: int
) -> Scatter | None:
    """The next units that stand whole in one stretch of landing bytes; None while there are none.

    A sealed hand-over's bytes all stand. At most `max_bytes` at once, but always a unit.
    """
    assert handover.transfer is not None
    standing = layout.stream_bytes if handover.seal else landing.arrived_prefix(handover.transfer)
    first = handover.next_unit
    end = min(layout.first_unit + standing // layout.unit_bytes, layout.end_unit)
    end = min(end, first + max(1, max_bytes // layout.unit_bytes))
    if end <= first:
        return None
    extent = landing_extents(handover.spans, layout.stream_extents(first, end)[0])[0]
    end = first + extent.length // layout.unit_bytes
    return Scatter(handover.key, handover.blocks, layout.unit_tokens, first, end, extent)
