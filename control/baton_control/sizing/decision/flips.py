"""Flips, the third move beside starts and stops: a worker of one pool that serves in the other from now on. Pure.

What one pool needs and the other has to spare changes role. That takes seconds, so who gives does not wait for a
window: what it gave comes back as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from baton_control.sizing.inputs.observations import Observed, PoolSeen
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class Flips:
    """Workers that change role now. The sizes of a decision are those behind the flips."""

    giver: Role
    workers: int
    """More than zero."""

    @property
    def taker(self) -> Role:
        return self.giver.partner


def exchanged(seen: Observed, needs: Mapping[Role, int], keeps: Callable[[Role], int]) -> dict[Role, int]:
    """The sizes after the pool that is short of what it `needs` now got what the other has on top of what it `keeps`,
    which is asked only then.

    Who is still starting helps nobody now, so it does not count.
    """
    sizes = {role: seen.pool(role).workers for role in POOL_ROLES}
    serving = {role: _to_give(seen.pool(role)) + 1 for role in POOL_ROLES}
    for taker in POOL_ROLES:
        giver = taker.partner
        missing = needs[taker] - serving[taker]
        if missing <= 0 or serving[giver] <= 1 or seen.pool(taker).routable is None:
            continue
        count = min(missing, serving[giver] - max(1, keeps(giver)))
        if count > 0:
            return {taker: sizes[taker] + count, giver: sizes[giver] - count}
    return sizes


def resized(seen: Observed, flipped: Mapping[Role, int], alone: Mapping[Role, int], both: int) -> dict[Role, int]:
    """The sizes behind the flips, with the stops that each pool decided `alone`, and its starts as far as `both` pools
    together will need them: who gave or got workers was not known when they decided."""
    shrinks = [role for role in POOL_ROLES if alone[role] < seen.pool(role).workers]
    sizes = {role: min(flipped[role], alone[role]) if role in shrinks else flipped[role] for role in POOL_ROLES}
    for role in sorted(POOL_ROLES, key=lambda role: sizes[role] - alone[role]):
        sizes[role] += max(0, min(both - sum(sizes.values()), alone[role] - sizes[role]))
    return sizes


def flips_of(seen: Observed, sizes: Mapping[Role, int]) -> Flips | None:
    """How much of the way to `sizes` are flips: what one pool loses and the other gains."""
    for giver in POOL_ROLES:
        less = seen.pool(giver).workers - sizes[giver]
        count = min(less, sizes[giver.partner] - seen.pool(giver.partner).workers, _to_give(seen.pool(giver)))
        if count > 0:
            return Flips(giver, count)
    return None


def _to_give(pool: PoolSeen) -> int:
    """Workers that serve now, but for one: who starts is not flipped, nor anybody while it is unknown who serves."""
    return max(0, min(pool.routable or 0, pool.workers) - 1)
