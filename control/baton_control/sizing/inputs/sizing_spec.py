"""Bounds, targets, budget and speed of one deployment's sizing, from its LLMDeployment and with defaults.

The terms of sizing, in the order in which a decision uses them:

    measurement  known, proven zero, or unknown (then everything holds)
    arrivals     requests that came in an interval, refused ones included
    mix          lengths of recent requests, to draw from
    horizon      seconds until a worker that is ordered now can serve
    forecast     arrivals at the horizon, as a quantile
    backlog      what waits now, or runs on top of what keeps TPOT, and still will at the horizon; spread over the time
                 in which it shall drain
    late         more requests wait than can be answered within the target: nothing shrinks
    demand       the load that a pool has to be ready for: forecast and backlog together
    needed       the fewest workers with which the simulator meets the target for the demand
    relaxed      needed for the forecast alone with a margin: what a pool may shrink to
    stabilised   upwards at once; downwards only to the most that was needed in a window, after a rest
    enough       workers that keep the percentile over the last half hour and the time of a start, by the simulator: no
                 more are started. A smaller pool may use at most half of what may be late; clients' latencies can
                 forbid it, or allow it where fewer workers served as much
    flips        workers of one pool that serve in the other from now on: what one needs now and the other does not
    concurrent   the share of both pools' demands that comes at once: pools that take turns do not peak together
    orders       workers asked for that should not be routable yet
    floor        the minimum at this time, schedules included
    hold         nothing moves, because input is unknown
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from baton_wire.messages.values import Role


@dataclass(frozen=True, slots=True)
class Targets:
    """The latencies that requests should see, and the share of requests that should."""

    ttft_s: float
    tpot_s: float
    ttft_share: float = 0.95
    tpot_share: float = 0.95

    def limit_s(self, role: Role) -> float:
        return self.ttft_s if role is Role.PREFILL else self.tpot_s

    def share(self, role: Role) -> float:
        return self.ttft_share if role is Role.PREFILL else self.tpot_share


@dataclass(frozen=True, slots=True)
class Bounds:
    minimum: int
    maximum: int
    accelerators: int = 1
    """Per worker."""
    cost_per_hour: float | None = None
    """Per worker; None: not given."""

    def clamp(self, workers: int) -> int:
        return min(self.maximum, max(self.minimum, workers))


@dataclass(frozen=True, slots=True)
class Schedule:
    """At least `minimum` workers of a pool in a daily window (UTC); a window may cross midnight."""

    role: Role
    minimum: int
    start_minute: int
    end_minute: int
    days: frozenset[int] = frozenset(range(7))
    """Monday is 0; of a window that crosses midnight, the day on which it starts."""

    def is_open(self, epoch_s: float) -> bool:
        minute = int(epoch_s // 60) % 1440
        day = (int(epoch_s // 86_400) + 3) % 7  # the epoch began on a Thursday
        if self.start_minute <= self.end_minute:
            return day in self.days and self.start_minute <= minute < self.end_minute
        return (day in self.days and minute >= self.start_minute) or (
            (day - 1) % 7 in self.days and minute < self.end_minute
        )


@dataclass(frozen=True, slots=True)
class SizingSpec:
    prefill: Bounds
    decode: Bounds
    targets: Targets
    max_accelerators: int | None = None
    scale_to_zero_after_s: float | None = None
    """Quiet time after which both pools sleep; None: they never do."""
    schedules: tuple[Schedule, ...] = ()
    interval_s: float = 10.0
    """How often a decision is made; also the width of a bucket of history."""
    quantile: float = 0.8
    """The quantile of the forecast: how sure an interval's load shall be covered."""
    startup_s: float = 120.0
    """Until a start has been measured."""
    stabilisation_s: float = 60.0
    """A pool shrinks only to what it needed at most during this time."""
    max_step_down: int = 8
    flip_s: float | None = None
    """Seconds until a worker of one pool serves in the other; None: it cannot."""
    bounds_of: dict[Role, Bounds] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds_of", {Role.PREFILL: self.prefill, Role.DECODE: self.decode})
        assert self.prefill.minimum <= self.prefill.maximum, "bounds are ordered"
        assert self.decode.minimum <= self.decode.maximum, "bounds are ordered"
        is_alike = self.prefill.accelerators == self.decode.accelerators
        assert self.flip_s is None or is_alike, "workers that flip are alike"

    @property
    def roles(self) -> tuple[Role, ...]:
        """The pools that may have workers: one of a deployment that generates nothing."""
        return tuple(role for role, bounds in self.bounds_of.items() if bounds.maximum)

    def cost_per_hour(self, workers: Mapping[Role, int]) -> float | None:
        """The cost of pools of that size; None where a pool with workers has no price."""
        total = 0.0
        for role, count in workers.items():
            price = self.bounds_of[role].cost_per_hour
            if count and price is None:
                return None
            total += count * (price or 0.0)
        return total

    def floor(self, role: Role, epoch_s: float) -> int:
        """The pool's minimum at this time, schedules included, never above its maximum."""
        bounds = self.bounds_of[role]
        open_now = (s.minimum for s in self.schedules if s.role is role and s.is_open(epoch_s))
        return min(bounds.maximum, max((bounds.minimum, *open_now)))

    def clamp(self, role: Role, workers: int, epoch_s: float) -> int:
        """The nearest number from the floor at this time to the maximum."""
        return min(self.bounds_of[role].maximum, max(self.floor(role, epoch_s), workers))
