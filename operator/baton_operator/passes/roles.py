"""The roles of flexible workers: how many flip, which Pods flip, and which orders their workers get. Pure.

The Deployment of a template says how many workers serve in each pool. The label that Services select by says it for
each Pod. Gateways report whether a worker serves as its Pod's label says. Each follows from the one before, so that a
repeated pass, or a pass after a crash, completes what is left.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from baton_control.pool_flips import count_flips
from baton_control.rollout import Group, Wanted
from baton_control.telemetry.store import FlexibleWorker
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.worker_pods import WorkerPod
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import POOL_ROLES, Role


def sizes_after_flips(wanted: Mapping[Role, Wanted], groups: tuple[Group, ...]) -> dict[Role, int] | None:
    """The size of each pool after flips from a pool with too many workers to a pool with too few; None: no worker
    flips.

    Only routable workers flip, because others can be stopped without loss. No worker flips while templates change or
    while it is unknown which workers serve.
    """
    revisions = {pool.revision for pool in wanted.values()}
    running = [group for group in groups if group.workers]
    if len(revisions) > 1 or {group.revision for group in running} != revisions:
        return None
    have = {role: sum(group.workers for group in running if group.role is role) for role in POOL_ROLES}
    serving = {role: sum(group.routable or 0 for group in running if group.role is role) for role in POOL_ROLES}
    flips = count_flips(have, {role: pool.workers for role, pool in wanted.items()}, serving)
    if flips is None:
        return None
    return {flips.giver: have[flips.giver] - flips.workers, flips.taker: have[flips.taker] + flips.workers}


def apply_flips(
    sets: Iterable[WorkerSet], wanted: Mapping[Role, Wanted], sizes: Mapping[Role, int]
) -> tuple[WorkerSet, ...]:
    """The worker sets with the new sizes for the wanted template."""
    return tuple(
        replace(worker_set, wanted=sizes[worker_set.role])
        if worker_set.revision == wanted[worker_set.role].revision
        else worker_set
        for worker_set in sets
    )


@dataclass(frozen=True, slots=True)
class Assignment:
    """The role that a flexible worker's Pod is to have."""

    pod: WorkerPod
    role: Role
    is_spare: bool
    """True: the Pod is one too many, and goes first."""

    @property
    def is_new(self) -> bool:
        """True if the Pod is not labelled accordingly yet."""
        return not self.pod.is_assigned or (self.pod.role, self.pod.is_spare) != (self.role, self.is_spare)


def assign_roles(pods: Iterable[WorkerPod], sizes: Mapping[Role, int]) -> tuple[Assignment, ...]:
    """The role of each Pod of one template that stays, by name, with as few changes as possible.

    If there are too many Pods, those go that are not ready, and then the youngest of the pool with too many. A pool
    with too many gives ready workers to the other pool, the youngest first. Pods without an assigned role fill the
    remaining places, so that a new Pod does not move one that serves.
    """
    staying = [pod for pod in pods if not pod.leaving]
    spare = _spare(staying, sizes)
    fitting = [pod for pod in staying if pod.uid not in spare]
    roles = {pod.uid: pod.role for pod in fitting if pod.is_assigned}
    for rich in POOL_ROLES:
        short = rich.partner
        surplus = _count(roles, rich) - sizes[rich]
        missing = sizes[short] - _count(roles, short)
        givers = [pod for pod in fitting if roles.get(pod.uid) is rich]
        givers.sort(key=lambda pod: pod.name)
        givers.sort(key=lambda pod: (pod.ready, pod.created), reverse=True)
        roles |= {pod.uid: short for pod in givers[: max(min(surplus, missing), 0)]}
    for pod in sorted(
        (pod for pod in fitting if not pod.is_assigned), key=lambda pod: (not pod.ready, pod.created, pod.name)
    ):
        short_of = [role for role in POOL_ROLES if _count(roles, role) < sizes[role]]
        roles[pod.uid] = pod.role if pod.role in short_of or not short_of else short_of[0]
    assignments = (Assignment(pod, roles.get(pod.uid, pod.role), pod.uid in spare) for pod in staying)
    return tuple(sorted(assignments, key=lambda assignment: assignment.pod.name))


def _spare(pods: list[WorkerPod], sizes: Mapping[Role, int]) -> frozenset[str]:
    """Uids of the Pods that are too many."""
    left, have = list(pods), {role: sum(pod.role is role for pod in pods) for role in POOL_ROLES}
    spare: set[str] = set()
    for _ in range(len(pods) - sum(sizes.values())):
        surplus = {role: have[role] - sizes[role] for role in POOL_ROLES}
        left.sort(key=lambda pod: pod.name)
        left.sort(key=lambda pod: (not pod.ready, surplus[pod.role], pod.is_spare, pod.created), reverse=True)
        going = left.pop(0)
        spare.add(going.uid)
        have[going.role] -= 1
    return frozenset(spare)


def _count(roles: Mapping[str, Role], wanted: Role) -> int:
    return sum(role is wanted for role in roles.values())


def count_serving(
    routable: Mapping[tuple[Role, str], int],
    sets: Iterable[WorkerSet],
    pods: Iterable[WorkerPod],
    workers: Iterable[FlexibleWorker],
) -> dict[tuple[Role, str], int]:
    """Routable workers by role and template. A flexible worker counts only if its Pod's label says the same role:
    another one is about to flip, and no worker is stopped because of it."""
    given = {(_address(pod.address), pod.role): pod.template for pod in pods if pod.is_assigned and not pod.leaving}
    counts = {
        **routable,
        **{(worker_set.role, worker_set.revision.template): 0 for worker_set in sets if worker_set.is_flexible},
    }
    for worker in workers:
        template = given.get((_address(worker.host), worker.role))
        if worker.is_routable and (worker.role, template) in counts:
            counts[worker.role, str(template)] += 1
    return counts


def flip_orders(pods: Iterable[WorkerPod], workers: Iterable[FlexibleWorker]) -> tuple[FlipOrder, ...]:
    """The orders for workers whose role is not their Pod's. The number follows the last one that the worker carried
    out, so that the same worker in the same role always gets the same order."""
    roles = {_address(pod.address): pod.role for pod in pods if pod.is_assigned and pod.address and not pod.leaving}
    flips = [
        FlipOrder(worker.epoch, worker.flip + 1, role)
        for worker in workers
        if (role := roles.get(_address(worker.host))) is not None and role is not worker.role
    ]
    return tuple(sorted(flips, key=lambda order: order.worker))


def _address(text: str) -> str:
    """The address in one notation: IPv6 has several."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text
