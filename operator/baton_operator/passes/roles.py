"""Which role each flexible worker has: how many flip, which Pods these are, and what their workers are told. Pure.

How many of a template serve in each pool stands on their Deployment, beside their sum. Which Pods these are stands on
the Pods, as the label that Services select by. Whether a worker does what its Pod's label says is what gateways tell.
Each follows from the one before, so that a pass that is repeated, or comes after a crash, does what is left to be done.
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
    """How many workers each pool has after flips (`count_flips`); None: no worker flips.

    Only workers that gateways can use flip: others are stopped at no loss. No worker flips while templates change, or
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


def after_flips(
    sets: Iterable[WorkerSet], wanted: Mapping[Role, Wanted], sizes: Mapping[Role, int]
) -> tuple[WorkerSet, ...]:
    """The worker sets, those of the wanted template with these sizes."""
    return tuple(
        replace(each, wanted=sizes[each.role]) if each.revision == wanted[each.role].revision else each for each in sets
    )


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a flexible worker's Pod is to be."""

    pod: WorkerPod
    role: Role
    is_spare: bool
    """It is one too many, and is to be the one that goes."""

    @property
    def is_new(self) -> bool:
        """Whether the Pod does not say so yet."""
        return not self.pod.is_assigned or (self.pod.role, self.pod.is_spare) != (self.role, self.is_spare)


def assigned(pods: Iterable[WorkerPod], sizes: Mapping[Role, int]) -> tuple[Assigned, ...]:
    """The role of each Pod of one template that stays, by name, with as few changes as possible.

    Too many Pods: those go that are not ready, and then the youngest of the pool that has too many. A pool that has too
    many gives the other one ready workers, the youngest first. Pods that have no role of their own yet fill what is
    left: whoever is new does not move one that serves.
    """
    staying = [pod for pod in pods if not pod.leaving]
    spare = _spare(staying, sizes)
    kept = [pod for pod in staying if pod.uid not in spare]
    roles = {pod.uid: pod.role for pod in kept if pod.is_assigned}
    for rich in POOL_ROLES:
        short = rich.partner
        surplus = _count(roles, rich) - sizes[rich]
        missing = sizes[short] - _count(roles, short)
        givers = [pod for pod in kept if roles.get(pod.uid) is rich]
        givers.sort(key=lambda pod: pod.name)
        givers.sort(key=lambda pod: (pod.ready, pod.made), reverse=True)
        roles |= {pod.uid: short for pod in givers[: max(min(surplus, missing), 0)]}
    for pod in sorted(
        (pod for pod in kept if not pod.is_assigned), key=lambda pod: (not pod.ready, pod.made, pod.name)
    ):
        short_of = [role for role in POOL_ROLES if _count(roles, role) < sizes[role]]
        roles[pod.uid] = pod.role if pod.role in short_of or not short_of else short_of[0]
    made = (Assigned(pod, roles.get(pod.uid, pod.role), pod.uid in spare) for pod in staying)
    return tuple(sorted(made, key=lambda each: each.pod.name))


def _spare(pods: list[WorkerPod], sizes: Mapping[Role, int]) -> frozenset[str]:
    """Uids of those that are one too many."""
    left, have = list(pods), {role: sum(pod.role is role for pod in pods) for role in POOL_ROLES}
    found: set[str] = set()
    for _ in range(len(pods) - sum(sizes.values())):
        surplus = {role: have[role] - sizes[role] for role in POOL_ROLES}
        left.sort(key=lambda pod: pod.name)
        left.sort(key=lambda pod: (not pod.ready, surplus[pod.role], pod.is_spare, pod.made), reverse=True)
        going = left.pop(0)
        found.add(going.uid)
        have[going.role] -= 1
    return frozenset(found)


def _count(roles: Mapping[str, Role], wanted: Role) -> int:
    return sum(role is wanted for role in roles.values())


def serving_as_labelled(
    routable: Mapping[tuple[Role, str], int],
    sets: Iterable[WorkerSet],
    pods: Iterable[WorkerPod],
    told: Iterable[FlexibleWorker],
) -> dict[tuple[Role, str], int]:
    """Routable workers by role and template, flexible ones where their Pods say the same: who serves as something else
    now is about to flip, and nobody's place is given up for that one."""
    given = {(_address(pod.address), pod.role): pod.template for pod in pods if pod.is_assigned and not pod.leaving}
    found = {**routable, **{(each.role, each.revision.template): 0 for each in sets if each.is_flexible}}
    for worker in told:
        template = given.get((_address(worker.host), worker.role))
        if worker.is_routable and (worker.role, template) in found:
            found[worker.role, str(template)] += 1
    return found


def orders(pods: Iterable[WorkerPod], told: Iterable[FlexibleWorker]) -> tuple[FlipOrder, ...]:
    """What workers are to be told whose role is not their Pod's. The number is the next after the last one that the
    worker carried out: the same worker in the same role gets the same order, whoever asks and however often."""
    roles = {_address(pod.address): pod.role for pod in pods if pod.is_assigned and pod.address and not pod.leaving}
    found = [
        FlipOrder(worker.epoch, worker.flip + 1, role)
        for worker in told
        if (role := roles.get(_address(worker.host))) is not None and role is not worker.role
    ]
    return tuple(sorted(found, key=lambda order: order.worker))


def _address(text: str) -> str:
    """In one notation: IPv6 has several."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text
