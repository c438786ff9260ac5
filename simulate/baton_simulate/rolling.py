"""Workers of a replay that come and go by the rollout's planner, as on a cluster: those of another type come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baton_control.hashes import Revision
from baton_control.rollout import Group, Limits, Wanted, next_step
from baton_control.sizing.simulator.simulator import Simulator
from baton_simulate.baselines.signals import Sizes
from baton_wire.messages.values import POOL_ROLES, Role

MOST_STEPS = 64
"""Changes at one moment; each starts or stops a worker."""
FIT = "one"
"""Workers of all types serve the same model, so they fit each other."""


def roll(
    simulator: Simulator, wanted: Sizes, types: Mapping[Role, str], limits: Limits, start: Callable[[Role, str], None]
) -> None:
    """Do what the rollout allows now. `start`: has one worker of a pool and type come."""
    target = {role: Wanted(Revision(FIT, types[role]), wanted[role]) for role in POOL_ROLES}
    for _ in range(MOST_STEPS):
        step = next_step(target, _groups(simulator), limits)
        for change in step.changes:
            for _ in range(change.workers):
                start(change.role, change.revision.template)
            for _ in range(-change.workers):
                simulator.remove(change.role, change.revision.template)
        if not step.changes:
            return


def exchange(simulator: Simulator, wanted: Sizes, flip_s: float) -> None:
    """Workers that one pool has too many and the other lacks change their role."""
    for giver, taker in (POOL_ROLES, POOL_ROLES[::-1]):
        for _ in range(min(simulator.workers(giver) - wanted[giver], wanted[taker] - simulator.workers(taker))):
            simulator.flip(giver, flip_s)


def _groups(simulator: Simulator) -> tuple[Group, ...]:
    return tuple(
        Group(role, Revision(FIT, kind), workers, routable)
        for role in POOL_ROLES
        for kind, (workers, routable) in simulator.kinds(role).items()
    )
