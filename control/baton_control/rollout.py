"""The rollout planner: from the running workers to the desired ones, one safe step at a time. Pure.

Workers of several template hashes may run side by side in both pools. After every step
(1) a pool has at most `wanted + max_surge` workers, or no more than before;
(2) a pool has at least `wanted - max_unavailable` routable workers with a fitting partner in the other pool, or as many
    as before if that was already less. A pool that may go down to zero workers does not have to keep partners for the
    other one: without surge, a single worker can only be replaced by stopping it first;
(3) with at most two fits the pools stay in proportion: the pairs of a fit are the smaller of its shares of the two
    wanted pools, and their sum does not fall below what (2) allows both pools, or below its former value. With more
    fits (a model was changed again during its rollout) the smallest fit goes first, by (1) and (2).
Workers that are not ready serve nothing, may be removed at any time, and are stopped first. A ready worker that is not
counted as routable may serve nevertheless: no step relies on it, and none removes it like an idle one. While the number
of routable workers is unknown, nothing is removed but superseded templates of which no worker is ready, where ready
workers of other templates keep the floors. The planner keeps no memory: progress, revert and re-edit follow from the
counts and from the age of the templates.

A rollout may hold: paused, at its canary share, or because the new template fails. The mix of templates then stays,
while the sizes of the pools are still followed, with workers that serve.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from baton_control.hashes import Revision
from baton_control.spec.count_or_percent import resolve
from baton_wire.messages.values import POOL_ROLES, Role

MOST_FITS_IN_PROPORTION = 2


@dataclass(frozen=True, slots=True)
class Group:
    """The group of workers of one role and revision."""

    role: Role
    revision: Revision
    workers: int
    """Workers that were started and not stopped, routable or not."""
    routable: int | None
    """Workers that the gateway can send requests to; None: unknown."""
    failing: bool = False
    """True: workers of the group crash or did not become ready in time, so no more are started."""
    unschedulable: int = 0
    """Workers that fit on no node."""
    idle: int | None = None
    """Workers that certainly serve nothing, because they are not ready; None: all that are not routable. A ready worker
    may serve without being counted as routable, while a telemetry link is new or the operator has just started."""
    since: str = ""
    """Creation time of the group, as text that sorts by time: the oldest group is no new template."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Desired state of a pool."""

    revision: Revision
    workers: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a rollout."""

    max_surge: int | str
    max_unavailable: int | str
    canary: int = 0
    """Percent of a pool that a new template gets before the rollout holds; 0: it does not hold."""

    def surge(self, workers: int) -> int:
        """The most workers above the wanted number of a pool."""
        return resolve(self.max_surge, workers, rounds_up=True)

    def unavailable(self, workers: int) -> int:
        """The most workers below the wanted number of a pool: at least one where a percentage would allow no step."""
        down = resolve(self.max_unavailable, workers)
        return down if down or self.surge(workers) or self.max_unavailable == 0 else 1


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Start (`workers` > 0) or stop (< 0) workers of one role and revision."""

    role: Role
    revision: Revision
    workers: int


class RolloutPhase(enum.StrEnum):
    """Phase of a rollout, which is also the reason of a condition."""

    COMPLETE = "RolloutComplete"
    STARTING = "StartingWorkers"
    STOPPING = "StoppingWorkers"
    WAITING = "WaitingForWorkers"
    UNKNOWN = "RoutableUnknown"
    UNSCHEDULABLE = "Unschedulable"
    FAILING = "NewTemplateFails"
    CANARY = "CanaryReached"
    PAUSED = "Paused"


REASONS = {
    RolloutPhase.COMPLETE: "complete",
    RolloutPhase.STARTING: "start workers",
    RolloutPhase.STOPPING: "stop workers",
    RolloutPhase.WAITING: "wait: no worker can be stopped without going under the floor",
    RolloutPhase.UNKNOWN: "wait: it is unknown which workers are routable",
    RolloutPhase.UNSCHEDULABLE: "wait: no node has room for a new worker; the old ones keep serving",
    RolloutPhase.FAILING: "stopped: workers of the new template fail; the old ones keep serving",
    RolloutPhase.CANARY: "hold: the new template has its canary share",
    RolloutPhase.PAUSED: "paused",
}


@dataclass(frozen=True, slots=True)
class Step:
    """The next step of a rollout; without changes when it is complete or has to wait."""

    changes: tuple[PoolChange, ...]
    reason: str
    phase: RolloutPhase = RolloutPhase.WAITING


def next_step(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...], limits: Limits, paused: bool = False) -> Step:
    """The next step from `groups` towards `wanted`; apply, observe and repeat until the rollout is complete.

    A new template starts one worker above the wanted number, before an old worker is stopped:

    >>> old, new = Revision("fit", "old"), Revision("fit", "new")
    >>> wanted = {Role.PREFILL: Wanted(old, 1), Role.DECODE: Wanted(new, 2)}
    >>> groups = (Group(Role.PREFILL, old, 1, 1), Group(Role.DECODE, old, 2, 2))
    >>> next_step(wanted, groups, Limits(max_surge=1, max_unavailable=0)).changes
    (PoolChange(role=<Role.DECODE: 'decode'>, revision=Revision(fit='fit', template='new'), workers=1),)
    """
    if is_complete(wanted, groups):
        return _step(RolloutPhase.COMPLETE)
    hold = _hold(wanted, groups, paused)
    mixes = {role: _mix(role, wanted[role], groups, limits, hold) for role in POOL_ROLES}
    additions = tuple(
        change for role in POOL_ROLES for change in _additions(role, wanted[role], mixes[role], groups, limits)
    )
    if additions:
        return _step(RolloutPhase.STARTING, additions)
    surplus = {
        (group.role, group.revision): group.workers - mixes[group.role].get(group.revision, 0) for group in groups
    }
    is_settled = all(excess <= 0 for excess in surplus.values())
    if not is_settled and any(group.routable is None for group in groups):
        excess = {group: surplus[group.role, group.revision] for group in find_superseded(wanted, groups, limits)}
        removals = tuple(PoolChange(group.role, group.revision, -count) for group, count in excess.items() if count > 0)
        return _step(RolloutPhase.STOPPING, removals) if removals else _step(RolloutPhase.UNKNOWN)
    removals = _removals(wanted, groups, surplus, limits)
    if removals:
        return _step(RolloutPhase.STOPPING, removals)
    if hold is not None:
        return _step(hold)
    if not is_settled and not any(group.routable != group.workers for group in groups):
        exchange = _exchange(wanted, groups, limits)
        if exchange:
            return _step(RolloutPhase.STARTING, exchange)
    is_target = {(role, pool.revision) for role, pool in wanted.items()}
    if any(group.unschedulable for group in groups if (group.role, group.revision) in is_target):
        return _step(RolloutPhase.UNSCHEDULABLE)
    return _step(RolloutPhase.CANARY if is_settled else RolloutPhase.WAITING)


def is_complete(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...]) -> bool:
    """True when exactly the wanted workers exist, routable or not."""
    have = {(group.role, group.revision): group.workers for group in groups if group.workers}
    want = {(role, pool.revision): pool.workers for role, pool in wanted.items() if pool.workers}
    return have == want


def usable(groups: tuple[Group, ...], partners: frozenset[Role] = frozenset(POOL_ROLES)) -> dict[Role, int]:
    """Routable workers of each pool with a fitting, routable partner in the other one, if that is one of `partners`."""
    fits = {role: {g.revision.fit for g in groups if g.role is role and g.routable} for role in POOL_ROLES}
    count = dict.fromkeys(POOL_ROLES, 0)
    for group in groups:
        partner = group.role.partner
        if partner not in partners or group.revision.fit in fits[partner]:
            count[group.role] += group.routable or 0
    return count


def pairs(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...]) -> int:
    """The part of the wanted pools that serves in proportion, in units of 1 / (`prefill.workers * decode.workers`): for
    each fit, the smaller of the shares that its routable workers have of the two pools, summed up."""
    routable: dict[tuple[Role, str], int] = {}
    for group in groups:
        key = (group.role, group.revision.fit)
        routable[key] = routable.get(key, 0) + (group.routable or 0)
    prefill, decode = wanted[Role.PREFILL].workers, wanted[Role.DECODE].workers
    fits = {fit for _, fit in routable}
    return sum(
        min(routable.get((Role.PREFILL, fit), 0) * decode, routable.get((Role.DECODE, fit), 0) * prefill)
        for fit in fits
    )


def pairs_floor(wanted: Mapping[Role, Wanted], limits: Limits) -> int:
    """The minimum for `pairs`: that of the smaller pool at its floor, zero if a pool may go down to no worker."""
    prefill, decode = wanted[Role.PREFILL].workers, wanted[Role.DECODE].workers
    floors = (prefill - limits.unavailable(prefill), decode - limits.unavailable(decode))
    return max(min(floors[0] * decode, floors[1] * prefill), 0)


def _step(phase: RolloutPhase, changes: tuple[PoolChange, ...] = ()) -> Step:
    return Step(changes, REASONS[phase], phase)


def _hold(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...], paused: bool) -> RolloutPhase | None:
    """The phase that holds the mix of templates; None: it may change. A failing new template holds both pools."""
    if paused:
        return RolloutPhase.PAUSED
    fails = any(group.failing and group.revision == wanted[group.role].revision for group in groups if group.workers)
    return RolloutPhase.FAILING if fails else None


def _mix(
    role: Role, wanted: Wanted, groups: tuple[Group, ...], limits: Limits, hold: RolloutPhase | None
) -> dict[Revision, int]:
    """The workers of each revision that a pool should have now; other revisions should go."""
    pool = [group for group in groups if group.role is role]
    fresh = next((group for group in pool if group.revision == wanted.revision), Group(role, wanted.revision, 0, 0))
    others = [group for group in pool if group.revision != wanted.revision and group.workers]
    if hold is RolloutPhase.PAUSED:
        running = [group for group in pool if group.workers]
        if running:
            return _frozen(running, wanted.workers, limits)
        return {_first_revision(role, wanted, groups): wanted.workers}
    if not others or wanted.workers == 0:
        return {wanted.revision: wanted.workers}
    if hold is RolloutPhase.FAILING:
        serving = min(fresh.routable or 0, wanted.workers)
        base = _largest(others)
        old_workers = min(max(base.workers, wanted.workers - serving), wanted.workers)
        return {wanted.revision: min(fresh.workers, wanted.workers), base.revision: old_workers}
    share = _canary(wanted.workers, limits)
    older = [group for group in others if fresh not in pool or group.since < fresh.since]
    if share is None or fresh.workers > share or not older:
        return {wanted.revision: wanted.workers}
    return {wanted.revision: share, _largest(older).revision: max(wanted.workers - share, 1)}


def _frozen(pool: list[Group], workers: int, limits: Limits) -> dict[Revision, int]:
    """The running mix, with the largest group resized to follow the size of the pool."""
    mix = {group.revision: group.workers for group in pool}
    total = sum(mix.values())
    if workers <= total <= workers + limits.surge(workers) and len(pool) > 1:
        return mix
    largest = _largest(pool)
    return mix | {largest.revision: max(largest.workers + workers - total, 0)}


def _first_revision(role: Role, wanted: Wanted, groups: tuple[Group, ...]) -> Revision:
    """The revision that an empty pool starts with while paused, because a pause keeps no pool at zero: the wanted one,
    unless only an earlier one fits the other pool."""
    partners = _fits(tuple(group for group in groups if group.role is role.partner))
    fitting = [group for group in groups if group.role is role and group.revision.fit in partners]
    return _largest(fitting).revision if fitting and wanted.revision.fit not in partners else wanted.revision


def _largest(groups: list[Group]) -> Group:
    return max(groups, key=lambda group: (group.workers, group.revision.template))


def _canary(workers: int, limits: Limits) -> int | None:
    """The number of canary workers of a pool; None: there is no canary, or it would be the whole pool."""
    if not 0 < limits.canary < 100 or (workers == 1 and limits.surge(1) == 0):
        return None
    share = -(-workers * limits.canary // 100)
    return max(min(share, workers - 1), 1)


def _additions(
    role: Role, wanted: Wanted, mix: Mapping[Revision, int], groups: tuple[Group, ...], limits: Limits
) -> Iterator[PoolChange]:
    have = {group.revision: group.workers for group in groups if group.role is role}
    total = sum(have.values())
    has_surplus = any(count > mix.get(revision, 0) for revision, count in have.items()) or len(mix) > 1
    room = wanted.workers + (limits.surge(wanted.workers) if has_surplus else 0) - total
    for revision, count in mix.items():
        missing = min(count - have.get(revision, 0), room)
        if missing > 0:
            room -= missing
            yield PoolChange(role, revision, missing)


def find_superseded(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...], limits: Limits) -> tuple[Group, ...]:
    """The groups that may go though it is unknown which workers are routable: other templates than the wanted one, of
    which no worker is ready, where ready workers keep the floors without them. Without this, workers that never get
    ready would take the room of the template that mends them."""
    at_most = tuple(replace(group, idle=0) for group in groups)
    at_least = tuple(
        replace(group, routable=0 if group.idle is None else group.workers - group.idle) for group in groups
    )
    if not _keeps_floor(wanted, at_most, at_least, limits):
        return ()
    return tuple(
        group
        for group in groups
        if group.revision != wanted[group.role].revision and group.workers and group.idle == group.workers
    )


def _removals(
    wanted: Mapping[Role, Wanted],
    groups: tuple[Group, ...],
    surplus: Mapping[tuple[Role, Revision], int],
    limits: Limits,
) -> tuple[PoolChange, ...]:
    """Stop surplus workers: idle ones first, then one at a time as long as the floors are kept."""
    removed = dict.fromkeys(surplus, 0)
    for place, group in enumerate(groups):
        idle = min(max(surplus[group.role, group.revision], 0), _idle(group))
        removed[group.role, group.revision] = idle
        groups = (*groups[:place], _less(group, idle), *groups[place + 1 :])
    while (at := _best_to_stop(wanted, groups, surplus, removed, limits)) is not None:
        removed[groups[at].role, groups[at].revision] += 1
        groups = (*groups[:at], _less(groups[at], 1), *groups[at + 1 :])
    return tuple(PoolChange(role, revision, -count) for (role, revision), count in removed.items() if count)


def _best_to_stop(
    wanted: Mapping[Role, Wanted],
    groups: tuple[Group, ...],
    surplus: Mapping[tuple[Role, Revision], int],
    removed: Mapping[tuple[Role, Revision], int],
    limits: Limits,
) -> int | None:
    """The index of the group that loses a worker; None: no group can. The fit with the fewest pairs goes first, so that
    it goes as a whole; within it, the worker whose stop leaves the most pairs."""
    shares = _shares(wanted, groups)
    best: tuple[int, int, int] | None = None
    for at, group in enumerate(groups):
        if removed[group.role, group.revision] < surplus[group.role, group.revision]:
            after = (*groups[:at], _less(group, 1), *groups[at + 1 :])
            if _keeps_floor(wanted, groups, after, limits):
                choice = (-shares[group.revision.fit], pairs(wanted, after), -at)
                best = choice if best is None else max(best, choice)
    return None if best is None else -best[2]


def _exchange(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...], limits: Limits) -> tuple[PoolChange, ...]:
    """The way out of a deadlock: several edits of the model in a row can fill the pools with fits that all need each
    other, and with workers of the new fit that have no partner, so that no worker can start or stop. Then the fit with
    the most pairs gets another worker, in free space or in place of one without a partner, until the others can go."""
    shares = _shares(wanted, groups)
    best = max(shares, key=lambda fit: (shares[fit], fit), default=None)
    for role in POOL_ROLES:
        pool = [group for group in groups if group.role is role]
        grown = [group for group in pool if group.revision.fit == best and group.revision != wanted[role].revision]
        partners = _fits(tuple(group for group in groups if group.role is role.partner))
        alone = [group for group in pool if group.workers and group.revision.fit not in partners]
        if not grown:
            continue
        more = PoolChange(role, _largest(grown).revision, 1)
        if sum(group.workers for group in pool) < wanted[role].workers + limits.surge(wanted[role].workers):
            return (more,)
        if alone:
            return (PoolChange(role, alone[0].revision, -1), more)
    return ()


def _shares(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...]) -> dict[str, int]:
    """The pairs of each fit alone."""
    return {
        fit: pairs(wanted, tuple(g for g in groups if g.revision.fit == fit))
        for fit in {g.revision.fit for g in groups}
    }


def _fits(groups: tuple[Group, ...]) -> frozenset[str]:
    return frozenset(group.revision.fit for group in groups if group.workers)


def _keeps_floor(
    wanted: Mapping[Role, Wanted], before: tuple[Group, ...], after: tuple[Group, ...], limits: Limits
) -> bool:
    """True when the floors hold: compares the workers that certainly serve afterwards with those that may serve now."""
    before = tuple(replace(group, routable=group.workers - _idle(group)) for group in before)
    floors = {role: pool.workers - limits.unavailable(pool.workers) for role, pool in wanted.items()}
    partners = frozenset(role for role, floor in floors.items() if floor > 0)
    now, then = usable(before, partners), usable(after, partners)
    if any(then[role] < min(floors[role], now[role]) for role in POOL_ROLES):
        return False
    if len(_fits(before)) > MOST_FITS_IN_PROPORTION:
        return True
    return pairs(wanted, after) >= min(pairs_floor(wanted, limits), pairs(wanted, before))


def _less(group: Group, removed: int) -> Group:
    """The group after `removed` of its workers stopped: idle ones first, then, at worst, routable ones."""
    idle = _idle(group)
    routable = max((group.routable or 0) - max(removed - idle, 0), 0)
    return replace(group, workers=group.workers - removed, routable=routable, idle=max(idle - removed, 0))


def _idle(group: Group) -> int:
    unused = group.workers - (group.routable or 0)
    return unused if group.idle is None else min(group.idle, unused)
