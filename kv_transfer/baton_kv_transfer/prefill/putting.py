"""Which units of a hand-over are put next, and where. Pure."""

from __future__ import annotations

from baton_kv_transfer.handover import Send
from baton_kv_transfer.layout import StreamLayout, landing_extents
from baton_kv_transfer.prefill.records import GroupUnits, PrefillHandover, Put
from baton_wire.kv_shape import Units
from baton_wire.messages.pair_link import Grant, Standing


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
    landing = tuple(landing_extents(grant.spans, stream))
    moved = Units(handover.blocks, layout.unit_tokens, units.first, units.end, layout.part(units.group))
    return Put(handover.key, handover.peer, put, grant.transfer, moved, landing)


def word_of_groups(handover: PrefillHandover, layout: StreamLayout, portion_bytes: int | None) -> list[Send]:
    """Tell of the first layer groups whose puts are all done, once they are a portion more than was told.

    Not when less than a portion is left: the decode worker would still be scattering when the Seal comes.
    """
    if portion_bytes is None:
        return []
    group_bytes = layout.units * layout.group_unit_bytes
    flying = min((units.group for units in handover.in_flight.values()), default=layout.groups)
    put = next((group for group, unit in enumerate(handover.next_units) if unit < layout.end_unit), layout.groups)
    stand = min(flying, put)
    if min(stand - handover.told_groups, layout.groups - stand) * group_bytes < portion_bytes:
        return []
    handover.told_groups = stand
    assert handover.grant is not None
    key, transfer = handover.key, handover.grant.transfer
    return [Send(handover.peer, Standing(request=key.request, attempt=key.attempt, transfer=transfer, groups=stand))]
