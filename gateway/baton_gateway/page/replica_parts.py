"""The parts of one gateway replica, for the page over several replicas. Pure.

Each replica counts time by its machine's own clock. The wall clock, which it tells with it, joins them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from baton_gateway.page.page_part import PagePart
from baton_gateway.reporting.load_series import SLOT_S, LoadSlot


class ReplicaParts(msgspec.Struct, frozen=True):
    """The answer of a replica."""

    at: float
    """Wall clock."""
    now_s: float
    """The monotonic clock of its machine at the same moment."""
    parts: list[PagePart]
    silent: list[int] = []
    """Processes of the replica that did not answer, by pid."""


def join_parts(replicas: Sequence[ReplicaParts]) -> Iterator[PagePart]:
    """Yield the parts of all replicas, with slots numbered by the clock of the first one."""
    for replica in replicas:
        first = replicas[0]
        shift = round(((first.now_s - first.at) - (replica.now_s - replica.at)) / SLOT_S)
        for part in replica.parts:
            slots = tuple(_shifted(slot, shift) for slot in part.slots)
            yield msgspec.structs.replace(part, slots=slots) if shift else part


def _shifted(slot: LoadSlot, shift: int) -> LoadSlot:
    return msgspec.structs.replace(slot, number=slot.number + shift)
