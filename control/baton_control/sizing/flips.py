"""Flips, the third move beside starts and stops: a worker of one pool that serves in the other from now on. Pure.

What one pool needs and the other has to spare changes role. That takes seconds, so who gives does not wait for a
window: what it gave comes back as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_control.sizing.readings import Observed, PoolSeen
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class Flips:
    """Workers that change role now. The sizes of a decision are those behind the flips."""

    giver: Role
    workers: int
    """More than zero."""

    @property
    def taker(self) -> Role:
        return other(self.giver)


def other(role: Role) -> Role:
    return Role.DECODE if role is Role.PREFILL else Role.PREFILL


def given(seen: Observed, wanted: Mapping[Role, int], least: Mapping[Role, int]) -> dict[Role, int]:
    """The sizes `wanted`, after the pool that does not grow gave to the one that grows, down to `least` of it."""
    sizes = dict(wanted)
    for role in POOL_ROLES:
        more, giver = wanted[role] - seen.pool(role).workers, other(role)
        pool = seen.pool(giver)
        if more > 0 and wanted[giver] <= pool.workers:
            sizes[giver] = min(wanted[giver], max(least[giver], pool.workers - min(more, _to_give(pool))))
    return sizes


def flips_of(seen: Observed, sizes: Mapping[Role, int]) -> Flips | None:
    """How much of the way to `sizes` are flips: what one pool loses and the other gains."""
    for giver in POOL_ROLES:
        less = seen.pool(giver).workers - sizes[giver]
        count = min(less, sizes[other(giver)] - seen.pool(other(giver)).workers, _to_give(seen.pool(giver)))
        if count > 0:
            return Flips(giver, count)
    return None


def _to_give(pool: PoolSeen) -> int:
    """Workers that serve now, but for one: who starts is not flipped, nor anybody while it is unknown who serves."""
    return max(0, min(pool.routable or 0, pool.workers) - 1)
