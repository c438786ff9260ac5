"""The rollout planner: from what runs to what is wanted, one safe step at a time. Pure.

Workers of several template hashes may run side by side in both pools. A step adds or removes workers so that
(1) a pool never has more than `wanted + max_surge` workers, and
(2) the routable workers that have a fitting partner in the other pool never drop under `wanted - max_unavailable`,
    or under what they are now if that is already less. A pool that may go down to no worker at all is no partner that
    the other one has to keep: without surge a single worker can only be replaced by stopping it first.
Workers that are not routable serve nothing and may be removed at any time; while it is unknown how many are routable,
nothing is removed. The planner keeps no memory: progress, revert and re-edit all follow from the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from baton_operator.hashes import Revision
from baton_operator.names import POOL_ROLES, Role

PARTNERS = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


@dataclass(frozen=True, slots=True)
class Group:
    """The workers of one role and revision."""

    role: Role
    revision: Revision
    workers: int
    """Started and not told to stop, routable or not."""
    routable: int | None
    """Of those, how many the gateway can send requests to; None: unknown."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pool should become."""

    revision: Revision
    workers: int


@dataclass(frozen=True, slots=True)
class Limits:
    max_surge: int
    max_unavailable: int


@dataclass(frozen=True, slots=True)
class Change:
    """Start (`workers` > 0) or stop (< 0) workers of one role and revision."""

    role: Role
    revision: Revision
    workers: int


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now; empty when there is nothing to do or to wait for is all that can be done."""

    changes: tuple[Change, ...]
    reason: str


def next_step(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...], limits: Limits, paused: bool = False) -> Step:
    """The next step from `groups` towards `wanted`; apply, observe and repeat until it is complete."""
    if is_complete(wanted, groups):
        return Step((), "complete")
    if paused:
        return Step((), "paused")
    additions = tuple(change for role in POOL_ROLES for change in _additions(role, wanted[role], groups, limits))
    if additions:
        return Step(additions, "start workers")
    if any(group.routable is None for group in groups):
        return Step((), "wait: it is unknown which workers are routable")
    removals = tuple(_removals(wanted, groups, limits))
    if removals:
        return Step(removals, "stop workers")
    return Step((), "wait: no worker can be stopped without going under the floor")


def is_complete(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...]) -> bool:
    """Whether exactly the wanted workers exist (routable or not)."""
    have = {(group.role, group.revision): group.workers for group in groups if group.workers}
    want = {(role, pool.revision): pool.workers for role, pool in wanted.items() if pool.workers}
    return have == want


def usable(groups: tuple[Group, ...], partners: frozenset[Role] = frozenset(POOL_ROLES)) -> dict[Role, int]:
    """Routable workers of each pool with a fitting, routable partner in the other one, if that is one of `partners`."""
    fits = {role: {g.revision.fit for g in groups if g.role is role and g.routable} for role in POOL_ROLES}
    count = dict.fromkeys(POOL_ROLES, 0)
    for group in groups:
        partner = PARTNERS[group.role]
        if partner not in partners or group.revision.fit in fits[partner]:
            count[group.role] += group.routable or 0
    return count


def _additions(role: Role, wanted: Wanted, groups: tuple[Group, ...], limits: Limits) -> Iterator[Change]:
    total = sum(group.workers for group in groups if group.role is role)
    fresh = sum(group.workers for group in groups if group.role is role and group.revision == wanted.revision)
    room = wanted.workers + (limits.max_surge if total > fresh else 0) - total
    missing = min(wanted.workers - fresh, room)
    if missing > 0:
        yield Change(role, wanted.revision, missing)


def _removals(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...], limits: Limits) -> Iterator[Change]:
    """One pass over what is too many; each removal is checked against what the earlier ones of this step leave."""
    for group in groups:
        target = wanted[group.role]
        surplus = group.workers - (target.workers if group.revision == target.revision else 0)
        idle = group.workers - (group.routable or 0)
        removed = min(max(surplus, 0), idle)
        while removed < surplus and _keeps_floor(wanted, groups, _less(groups, group, removed + 1), limits):
            removed += 1
        if removed > 0:
            groups = _less(groups, group, removed)
            yield Change(group.role, group.revision, -removed)


def _keeps_floor(
    wanted: Mapping[Role, Wanted], before: tuple[Group, ...], after: tuple[Group, ...], limits: Limits
) -> bool:
    floors = {role: pool.workers - limits.max_unavailable for role, pool in wanted.items()}
    partners = frozenset(role for role, floor in floors.items() if floor > 0)
    now, then = usable(before, partners), usable(after, partners)
    return all(then[role] >= min(floors[role], now[role]) for role in POOL_ROLES)


def _less(groups: tuple[Group, ...], group: Group, removed: int) -> tuple[Group, ...]:
    """The groups after `removed` workers of `group` stopped, those first that are not routable."""
    routable = min(group.routable or 0, group.workers - removed)
    changed = Group(group.role, group.revision, group.workers - removed, routable)
    return tuple(changed if (g.role, g.revision) == (group.role, group.revision) else g for g in groups)
