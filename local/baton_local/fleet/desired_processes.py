"""From an LLMDeployment to the processes that should run here: rollout and WorkerSpec. Pure.

The same functions decide as on a cluster. A *process slot* is the local counterpart of a Pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from baton_control.hashes import Revision
from baton_control.names import gateway_name, worker_name
from baton_control.rollout import Group, Limits, PoolChange, Step, Wanted, next_step
from baton_control.sizing.decision.scaling import PoolNow
from baton_control.spec.api import LLMDeployment
from baton_control.worker_specs import Site, WorkerSpec, gateway_spec, worker_spec
from baton_wire.messages.values import POOL_ROLES, Role

Routable = Mapping[tuple[Role, str], int]
"""Number of routable workers by role and template hash, as the gateway reports it."""


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """The specification of a process slot: its name and the template of its process."""

    name: str
    worker: WorkerSpec


@dataclass(frozen=True, slots=True)
class Fleet:
    """The templates of one deployment on this machine."""

    deployment: LLMDeployment
    gateway: SlotSpec
    templates: dict[Role, WorkerSpec]

    @property
    def name(self) -> str:
        return self.deployment.metadata.name


def plan_fleet(deployment: LLMDeployment, site: Site) -> Fleet:
    """All templates of a deployment. Raises UnsupportedError for a value that no worker supports yet."""
    gateway = SlotSpec(gateway_name(deployment.metadata.name), gateway_spec(deployment, site))
    return Fleet(deployment, gateway, {role: worker_spec(deployment, role, site) for role in POOL_ROLES})


def pools_now(running: Iterable[SlotSpec], routable: Routable | None) -> dict[Role, PoolNow]:
    """The state of the pools for sizing. `running`: workers that were started and not stopped."""
    counts = Counter(slot.worker.role for slot in running)
    by_role: Counter[Role] = Counter()
    for (role, _), count in (routable or {}).items():
        by_role[role] += count
    return {
        role: PoolNow(counts[role], None if routable is None else min(by_role[role], counts[role]))
        for role in POOL_ROLES
    }


def roll(fleet: Fleet, wanted: Mapping[Role, int], running: Iterable[SlotSpec], routable: Routable | None) -> Step:
    """The next rollout step towards the wanted numbers of workers. `routable` None: unknown, so nothing is stopped."""
    groups = Counter((slot.worker.role, slot.worker.revision) for slot in running)
    rollout = fleet.deployment.spec.rollout
    return next_step(
        {role: Wanted(fleet.templates[role].revision, wanted[role]) for role in POOL_ROLES},
        tuple(
            Group(
                role,
                revision,
                count,
                None if routable is None else min(count, routable.get((role, revision.template), 0)),
            )
            for (role, revision), count in groups.items()
        ),
        Limits(rollout.max_surge, rollout.max_unavailable),
        rollout.paused,
    )


def new_slots(fleet: Fleet, role: Role, revision: Revision, count: int, taken: frozenset[str]) -> tuple[SlotSpec, ...]:
    """`count` slots with the lowest ordinals whose names are not taken."""
    template = fleet.templates[role]
    assert template.revision == revision, "only the current template starts new workers"
    assert count > 0, "new slots are for workers that start"
    slots: list[SlotSpec] = []
    ordinal = 0
    while len(slots) < count:
        name = worker_name(fleet.name, role, revision.template, ordinal)
        if name not in taken:
            slots.append(SlotSpec(name, template))
        ordinal += 1
    return tuple(slots)


def slots_to_stop(
    change: PoolChange, running: Iterable[SlotSpec], usable: frozenset[str], started_s: Mapping[str, float]
) -> tuple[SlotSpec, ...]:
    """The slots that a change stops: unusable workers first, then the youngest, whose caches hold least."""
    of_group = [slot for slot in running if (slot.worker.role, slot.worker.revision) == (change.role, change.revision)]
    of_group.sort(key=lambda slot: (slot.name in usable, -started_s.get(slot.name, 0.0), slot.name))
    return tuple(of_group[: -change.workers])
