"""Workers that change pools, in place of starts in one pool and stops in the other: how many. Pure.

The caller chooses which workers: Pods on a cluster, process slots on a laptop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class Flips:
    """Workers of one pool that change to the other now."""

    giver: Role
    workers: int
    """More than zero."""

    @property
    def taker(self) -> Role:
        return self.giver.partner


def count_flips(workers: Mapping[Role, int], wanted: Mapping[Role, int], able: Mapping[Role, int]) -> Flips | None:
    """The flips on the way from `workers` to `wanted`: as many as one pool has too many and the other too few, and at
    most the giver's workers that are `able` to flip. None: no worker flips.

    >>> workers, wanted = {Role.PREFILL: 1, Role.DECODE: 4}, {Role.PREFILL: 3, Role.DECODE: 3}
    >>> count_flips(workers, wanted, able=workers)
    Flips(giver=<Role.DECODE: 'decode'>, workers=1)
    """
    for giver in POOL_ROLES:
        surplus, shortage = workers[giver] - wanted[giver], wanted[giver.partner] - workers[giver.partner]
        count = min(surplus, shortage, able[giver])
        if count > 0:
            return Flips(giver, count)
    return None
