"""Sizes the pools of a deployment: asks sizing in mode SLO, and shows the sizes as metrics."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from baton_control.names import Key
from baton_control.rollout import Group
from baton_control.sizing.decision.scaling import HoldSizing, PoolNow, Sized, Sizing, SizingRequest
from baton_control.sizing.metrics import SizingMetrics
from baton_control.spec.api import ScalingMode
from baton_operator.passes import accelerators
from baton_operator.passes.pool_size import PoolPlan, last_sizes, plan_pools
from baton_operator.passes.rendering import Rendering
from baton_operator.passes.snapshot import Snapshot, read_facade
from baton_operator.passes.worker_pods import placement_s
from baton_wire.messages.values import POOL_ROLES, Role

SIZING_S = 10.0
"""Time to the next decision of sizing."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """The sizes of both pools."""

    plans: Mapping[Role, PoolPlan]
    sized: Sized | None
    """The answer of sizing; None: sizing has no say in this mode."""
    again_s: float | None = None
    """When sizing is asked again; None: only after an event."""


class DeploymentSizer:
    """Sizes pools for all deployments. `metrics` shows the sizes. `asks_again`: gateways report a load that can change
    between events."""

    def __init__(
        self,
        sizing: Sizing | None,
        metrics: SizingMetrics | None,
        now: Callable[[], datetime.datetime],
        *,
        asks_again: bool,
    ) -> None:
        self._sizing, self._metrics, self._now, self._asks_again = sizing or HoldSizing(), metrics, now, asks_again

    def size(self, snapshot: Snapshot, rendering: Rendering, groups: tuple[Group, ...]) -> PoolSizes:
        deployment = rendering.deployment
        facades = {role: read_facade(pool) for role, pool in snapshot.pools.items()}
        statuses = {Role.PREFILL: snapshot.before.prefill, Role.DECODE: snapshot.before.decode}
        published = {role: None if pool is None else pool.desired for role, pool in statuses.items()}
        now = _pools_now(snapshot, rendering, groups)
        before = last_sizes(deployment, facades, published, {role: now[role].workers for role in POOL_ROLES})
        sized, again_s = None, None
        if deployment.spec.autoscaling.mode is ScalingMode.SLO:
            pools = {role: replace(now[role], workers=before[role]) for role in POOL_ROLES}
            gateways = deployment.spec.gateway.replicas_at(snapshot.gateways_ready)
            request = SizingRequest(
                snapshot.key, deployment, pools, snapshot.before.sizing_memory, self._now().timestamp(), gateways
            )
            sized = self._sizing.decide(request)
            again_s = SIZING_S if self._asks_again else None
        plans = plan_pools(deployment, facades, before, sized)
        self._show(snapshot.key, plans, sized, now)
        return PoolSizes(plans, sized, again_s)

    def forget(self, key: Key) -> None:
        """Drop the metrics of a deployment that is gone."""
        if self._metrics is not None:
            self._metrics.forget(key)

    def _show(self, key: Key, plans: Mapping[Role, PoolPlan], sized: Sized | None, now: Mapping[Role, PoolNow]) -> None:
        if self._metrics is None:
            return
        if sized is not None:
            self._metrics.saw(key, sized, now)
        else:
            self._metrics.saw_pools(key, {role: plans[role].workers for role in POOL_ROLES}, now)


def _pools_now(snapshot: Snapshot, rendering: Rendering, groups: tuple[Group, ...]) -> dict[Role, PoolNow]:
    pods = {**snapshot.templates, **rendering.pods}
    return {
        role: PoolNow(
            sum(group.workers for group in groups if group.role is role),
            _sum_routable(groups, role),
            placement_s(snapshot.pods, role),
            *accelerators.count_other_types(rendering.deployment, role, groups, pods),
        )
        for role in POOL_ROLES
    }


def _sum_routable(groups: tuple[Group, ...], role: Role) -> int | None:
    counts = [group.routable for group in groups if group.role is role]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
