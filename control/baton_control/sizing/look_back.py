"""Which size would have been enough for the last half hour: by the twin, and by what clients saw. Pure.

The twin knows sizes that a pool never had. Clients know what the twin is wrong about, of sizes that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton_control.sizing.capacity import Mix, Sizer
from baton_control.sizing.readings import Lateness, PoolSeen
from baton_control.sizing.remembered import HISTORY, PoolMemory
from baton_control.sizing.spec import SizingSpec
from baton_wire.messages.values import Role

SEEN_SHARE = 0.5
"""Of the misses that a percentile allows, what clients may have seen while as many workers served."""


def with_served(memory: PoolMemory, pool: PoolSeen, served: Lateness | None) -> PoolMemory:
    """The memory with one more interval, when it is known what clients saw and how many workers served."""
    if served is None or pool.routable is None:
        return memory
    return replace(memory, served=(*memory.served, (pool.routable, served))[-HISTORY:])


def enough(
    spec: SizingSpec,
    role: Role,
    memory: PoolMemory,
    rates_per_s: Sequence[float],
    least: int,
    workers: int,
    mix: Mix,
    sizer: Sizer,
) -> int:
    """The fewest workers, from `workers` on down to `least`, that would have been enough for all of the past.

    `rates_per_s`: requests of this mix in each interval of the past.
    """
    allowed = 1.0 - spec.targets.share(role)
    for served, seen in _by_workers(spec, memory).items():
        if served < workers and seen.late > SEEN_SHARE * allowed * seen.requests:
            least = max(least, served + 1)
    while least < workers:
        middle = (least + workers) // 2
        least, workers = (
            (least, middle) if _is_kept(role, rates_per_s, middle, allowed, mix, sizer) else (middle + 1, workers)
        )
    return least


def _is_kept(role: Role, rates_per_s: Sequence[float], workers: int, allowed: float, mix: Mix, sizer: Sizer) -> bool:
    """Whether at most this share of all requests is late, by the twin."""
    left = sum(rates_per_s)
    budget = allowed * left
    for rate in sorted(rates_per_s, reverse=True):
        late = 1.0 - sizer.share_met(role, mix, rate, workers)
        budget, left = budget - rate * late, left - rate
        if budget < 0.0 or left * late <= budget:  # at less load no more are late
            break
    return budget >= 0.0


def _by_workers(spec: SizingSpec, memory: PoolMemory) -> dict[int, Lateness]:
    """What clients saw, by how many workers served.

    Who is late now came before: each interval counts for the fewest that served in the minute that it tells of.
    """
    back = round(spec.stabilisation_s / spec.interval_s)
    found: dict[int, Lateness] = {}
    for place, (_, seen) in enumerate(memory.served):
        fewest = min(routable for routable, _ in memory.served[max(0, place - back) : place + 1])
        before = found.get(fewest, Lateness(0, 0.0))
        found[fewest] = Lateness(before.requests + seen.requests, before.late + seen.late)
    return found
