"""AIBrix's APA with its defaults: HPA's ratio with two tolerances and rate limits, on a 30 s mean.

Up when metric/target > 1.1, to ceil(n · ratio) but at most 2n; down when < 0.9, to ceil(n · ratio) but at least n/2,
and no further than the most of 300 s (its scale-down cool-down). Decode on KV use (target 0.5 in its examples), prefill
on requests. Lost metrics: no change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_simulate.baselines.signals import Signals, Sizes, Window, window
from baton_wire.messages.values import POOL_ROLES, Role

UP_TOLERANCE, DOWN_TOLERANCE, UP_RATE, DOWN_RATE, WINDOW_S, COOL_DOWN_S = 0.1, 0.1, 2.0, 2.0, 30.0, 300.0


def target_replicas(workers: int, use: float, target: float) -> int:
    """APA's rule for one metric per worker."""
    ratio = use / target
    if ratio > 1 + UP_TOLERANCE:
        return min(ceil(workers * ratio), ceil(UP_RATE * workers))
    if ratio < 1 - DOWN_TOLERANCE:
        return max(ceil(workers * ratio), floor(workers / DOWN_RATE))
    return workers


@dataclass(slots=True)
class Apa:
    spec: SizingSpec
    queue_target: float
    kv_target: float
    interval_s: float = 10.0
    windows: dict[Role, Window] = field(default_factory=lambda: {role: window(WINDOW_S) for role in POOL_ROLES})
    proposals: dict[Role, Window] = field(default_factory=lambda: {role: window(COOL_DOWN_S) for role in POOL_ROLES})

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        if signals is None:
            return None
        sizes = {}
        for role, target in ((Role.PREFILL, self.queue_target), (Role.DECODE, self.kv_target)):
            pool, bounds = signals.of(role), self.spec.bounds_of[role]
            use = (pool.running + pool.queued) / max(1, pool.ready) if role is Role.PREFILL else pool.kv_use
            self.windows[role].add(now, use)
            wanted = target_replicas(pool.ready, self.windows[role].mean(), target) if pool.ready else pool.workers
            if pool.ready < pool.workers:
                wanted = max(wanted, pool.workers)  # it counts ready pods; what starts is not taken back
            self.proposals[role].add(now, wanted)
            if wanted < pool.workers:
                wanted = min(pool.workers, int(self.proposals[role].most()))
            sizes[role] = min(bounds.maximum, max(bounds.minimum, wanted))
        return sizes
