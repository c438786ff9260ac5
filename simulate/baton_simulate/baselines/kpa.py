"""Knative's pod autoscaler with its defaults, on concurrency.

Stable window 60 s, panic window 6 s, target utilisation 70 %, panic at 200 % of what is ready, up by at most
1000×, down by at most 2× per tick of 2 s; in panic it never shrinks, and panic lasts 60 s after its last cause.
Lost metrics: no change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_simulate.baselines.signals import PoolSignals, Signals, Sizes, Window, window
from baton_wire.messages.values import POOL_ROLES, Role

STABLE_S, PANIC_S = 60.0, 6.0
UTILISATION, PANIC_THRESHOLD, UP_RATE, DOWN_RATE = 0.7, 2.0, 1000.0, 2.0


def counts(stable: float, panic: float, ready: int, target: float) -> tuple[int, int, bool]:
    """(pods by the stable window, pods by the panic window, is the panic threshold crossed)"""
    base = max(1, ready)
    low, high = floor(base / DOWN_RATE), ceil(UP_RATE * base)
    by_stable, by_panic = ceil(stable / target), ceil(panic / target)
    return (
        min(max(by_stable, low), high),
        min(max(by_panic, low), high),
        by_panic / base >= PANIC_THRESHOLD,
    )


@dataclass(slots=True)
class _State:
    stable: Window = field(default_factory=lambda: window(STABLE_S))
    panic: Window = field(default_factory=lambda: window(PANIC_S))
    panic_since: float | None = None
    panic_most: int = 0


@dataclass(slots=True)
class Kpa:
    """`concurrency`: requests that one worker of the pool is meant to have at full use."""

    spec: SizingSpec
    concurrency: dict[Role, float]
    utilisation: float = UTILISATION
    interval_s: float = 2.0
    states: dict[Role, _State] = field(default_factory=lambda: {role: _State() for role in POOL_ROLES})

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        if signals is None:
            return None
        return {role: self._size(role, signals.of(role), now) for role in POOL_ROLES}

    def _size(self, role: Role, pool: PoolSignals, now: float) -> int:
        state, bounds = self.states[role], self.spec.bounds_of[role]
        state.stable.add(now, pool.running + pool.queued)
        state.panic.add(now, pool.running + pool.queued)
        target = self.utilisation * self.concurrency[role]
        by_stable, by_panic, panics = counts(state.stable.mean(), state.panic.mean(), pool.ready, target)
        if panics:
            state.panic_most = state.panic_most if state.panic_since is not None else 0
            state.panic_since = now
        elif state.panic_since is not None and now - state.panic_since > STABLE_S:
            state.panic_since, state.panic_most = None, 0
        wanted = by_stable
        if state.panic_since is not None:
            state.panic_most = wanted = max(by_stable, by_panic, state.panic_most, pool.ready)
        return min(bounds.maximum, max(bounds.minimum, wanted))
