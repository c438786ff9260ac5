"""Which units of a hand-over are put next, and where. Pure."""

from __future__ import annotations

from baton_kv_transfer.layout import StreamLayout, landing_extents
from baton_kv_transfer.prefill_records import GroupUnits, PrefillHandover, Put
from baton_kv_transfer.wire.pair_link import Grant


def next_units(handover: PrefillHandover, layout: StreamLayout, max_bytes: int) -> list[GroupUnits]:
    """Everything that stands and was not put yet, in pieces of at most `max_bytes` (but always a unit); now it counts
    as put.
    """
    found: list[GroupUnits] = []
    step = max(1, max_bytes // layout.group_unit_bytes)
    for group, first in enumerate(handover.next_units):
        end = layout.whole_units(handover.standing_tokens(layout.part(group).end_layer))
        found += [GroupUnits(group, at, min(at + step, end)) for at in range(first, end, step)]
        handover.next_units[group] = max(first, end)
    return found


def put_of(handover: PrefillHandover, put: int, layout: StreamLayout, grant: Grant, units: GroupUnits) -> Put:
    """The action that moves these units to their place in the grant's spans."""
    stream = layout.extent(units.group, units.first, units.end)
    return Put(
        handover.key,
        handover.peer,
        put,
        grant.transfer,
        handover.blocks,
        layout.unit_tokens,
        units.first,
        units.end,
        layout.part(units.group),
        tuple(landing_extents(grant.spans, stream)),
    )
