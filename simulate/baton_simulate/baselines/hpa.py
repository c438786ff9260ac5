"""Kubernetes' HorizontalPodAutoscaler, `autoscaling/v2` with its defaults, on queue length or on KV use.

desired = ceil(ready · metric / target) outside a tolerance of 0.1, every 15 s; up by at most max(4, 100 %) per
period, down to the largest proposal of the last 300 s. Lost metrics: no change. Prefill has no meaningful KV use;
it always scales on its requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_simulate.baselines.signals import PoolSignals, Signals, Sizes, Window, window
from baton_wire.messages.values import POOL_ROLES, Role

TOLERANCE = 0.1
DOWN_WINDOW_S = 300.0


def proposal(workers: int, ready: int, per_worker: float, target: float) -> int:
    """HPA's arithmetic for one metric of type AverageValue."""
    if ready == 0:
        return workers
    ratio = per_worker / target
    return workers if abs(ratio - 1.0) <= TOLERANCE else ceil(ready * ratio)


def up_limit(workers: int) -> int:
    return max(workers + 4, workers * 2)


@dataclass(slots=True)
class Hpa:
    """`queue_targets`: requests per worker; `kv_target`: share of KV, then it sizes decode instead."""

    spec: SizingSpec
    queue_targets: dict[Role, float]
    kv_target: float | None = None
    interval_s: float = 15.0
    proposals: dict[Role, Window] = field(default_factory=lambda: {role: window(DOWN_WINDOW_S) for role in POOL_ROLES})

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        if signals is None:
            return None
        return {role: self._size(role, signals.of(role), now) for role in POOL_ROLES}

    def _size(self, role: Role, pool: PoolSignals, now: float) -> int:
        if role is Role.DECODE and self.kv_target is not None:
            wanted = proposal(pool.workers, pool.ready, pool.kv_use, self.kv_target)
        else:
            load = (pool.running + pool.queued) / max(1, pool.ready)
            wanted = proposal(pool.workers, pool.ready, load, self.queue_targets[role])
        return stabilised(self.spec, self.proposals[role], role, pool.workers, wanted, now)


def stabilised(spec: SizingSpec, past: Window, role: Role, workers: int, wanted: int, now: float) -> int:
    """HPA's default behaviour: up at once within the limit, down to the largest proposal of the window."""
    bounds = spec.bounds_of[role]
    past.add(now, wanted)
    wanted = min(wanted, up_limit(workers)) if wanted > workers else min(workers, int(past.most()))
    return min(bounds.maximum, max(bounds.minimum, wanted))
