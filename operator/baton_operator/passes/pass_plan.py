"""The plan of a pass: sizes, flips, replacements of evicted Pods and the next step of the rollout. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from baton_control.hashes import Revision
from baton_control.rollout import Group, Limits, Step, Wanted, find_superseded, next_step
from baton_control.sizing.decision.scaling import Sized
from baton_control.spec.api import LLMDeployment
from baton_operator.objects.fetch_state import FetchState, fetch_of, retry_in_s
from baton_operator.passes.deployment_sizer import PoolSizes
from baton_operator.passes.drain_replacement import DrainReplacement, places_of, plan_replacement
from baton_operator.passes.held_gateway import GATEWAYS_WAIT, find_held_gateway
from baton_operator.passes.observe import WorkerSet, rollout_groups
from baton_operator.passes.pool_size import PoolPlan
from baton_operator.passes.rendering import Rendering
from baton_operator.passes.roles import apply_flips, sizes_after_flips
from baton_operator.passes.serving import Serving, earliest
from baton_operator.passes.snapshot import Snapshot
from baton_operator.passes.template_records import Stored
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The decisions of one pass, made before anything is written."""

    pools: Mapping[Role, PoolPlan]
    sized: Sized | None
    """The answer of sizing; None: sizing has no say in this mode."""
    wanted: Mapping[Role, Revision]
    """The template that each pool is to run."""
    sets: tuple[WorkerSet, ...]
    """The live worker sets, with the sizes that flips give them."""
    groups: tuple[Group, ...]
    """The same sets as the status shows them."""
    step: Step
    replacement: DrainReplacement
    fetch: FetchState
    held_gateway: Stored | None = None
    """The record whose gateway template stays until workers of the new images are ready; None: the present one is
    used."""
    retry_s: float | None = None
    """Seconds until a fetch that was given up begins anew; None: it was not given up."""
    again_s: float | None = None
    """When the next pass may plan something else; None: only after an event."""


def plan_pass(
    snapshot: Snapshot,
    rendering: Rendering,
    serving: Serving,
    sizes: PoolSizes,
    emptying: frozenset[str] | None,
    now: datetime,
) -> PassPlan:
    """`emptying`: nodes that are being emptied; None: nodes cannot be read."""
    deployment, record = rendering.deployment, rendering.record
    replacement = _replacement(snapshot, deployment, sizes.plans, emptying, now)
    wanted = {
        role: Wanted(record.rendered[role].revision, sizes.plans[role].workers + (role in replacement.replaced))
        for role in POOL_ROLES
    }
    seen = (serving.routable, snapshot.pod_counts, serving.linked)
    flipped = sizes_after_flips(wanted, rollout_groups(snapshot.sets, *seen))
    sets = snapshot.sets if flipped is None else apply_flips(snapshot.sets, wanted, flipped)
    groups = rollout_groups(sets, *seen)
    rollout = deployment.spec.rollout
    limits = Limits(rollout.max_surge, rollout.max_unavailable, rollout.canary)
    fetch = fetch_of(rendering.objects, snapshot.fetches)
    retry_s = retry_in_s(fetch, now)
    step = next_step(wanted, _without_doubtful(groups, serving.doubtful), limits, rollout.paused)
    starting = {
        change.role for change in step.changes if change.workers > 0 and change.revision == wanted[change.role].revision
    }
    starting |= {group.role for group in find_superseded(wanted, groups, limits)}
    held = find_held_gateway(snapshot, record, sets, wanted, limits, starting, paused=rollout.paused)
    return PassPlan(
        pools=sizes.plans,
        sized=sizes.sized,
        wanted={role: pool.revision for role, pool in wanted.items()},
        sets=sets,
        groups=rollout_groups(sets, serving.shown, snapshot.pod_counts),
        step=step if held is None else replace(step, reason=f"{step.reason}; {GATEWAYS_WAIT}"),
        replacement=replacement,
        fetch=fetch,
        held_gateway=held,
        retry_s=retry_s,
        again_s=earliest((sizes.again_s, retry_s)),
    )


def _replacement(
    snapshot: Snapshot,
    deployment: LLMDeployment,
    plans: Mapping[Role, PoolPlan],
    emptying: frozenset[str] | None,
    now: datetime,
) -> DrainReplacement:
    """The replacements for pools and gateways of one; gateways under an autoscaler are left to it."""
    gateway = deployment.spec.gateway
    counts = {role: plans[role].workers for role in POOL_ROLES}
    counts |= {Role.GATEWAY: gateway.replicas_at(0)} if gateway.autoscaling is None else {}
    replacement = plan_replacement(counts, places_of(snapshot.live_pods), emptying, now)
    if not deployment.spec.autoscaling.flips and not any(worker_set.is_flexible for worker_set in snapshot.sets):
        return replacement
    # Kubernetes counts what a budget lets go by the Deployments of its Pods, and these have Pods of both pools.
    usual = {role: max(counts[role] - 1, 0) for role in POOL_ROLES}
    return replace(replacement, least=usual | dict(replacement.least))


def _without_doubtful(groups: tuple[Group, ...], doubtful: frozenset[tuple[Role, str]]) -> tuple[Group, ...]:
    """The groups as the planner sees them: a doubtful template counts as unknown."""
    return tuple(
        replace(group, routable=None) if (group.role, group.revision.template) in doubtful else group
        for group in groups
    )
