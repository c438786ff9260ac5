"""Which size is enough for the last half hour and for what comes until a worker that is started now can serve. Pure.

The percentile is one of all requests. So a pool may be too small for a burst if the rest of the time it is not, and it
stays large enough for one that it has seen. The twin knows sizes that a pool never had. Clients know what the twin is
wrong about, of sizes that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton_control.sizing.capacity import Mix, Sizer
from baton_control.sizing.readings import Lateness, PoolSeen
from baton_control.sizing.remembered import HISTORY, PoolMemory
from baton_control.sizing.spec import SizingSpec
from baton_wire.messages.values import Role


def enough(role: Role, rates_per_s: Sequence[float], least: int, most: int, mix: Mix, sizer: Sizer) -> int:
    """The fewest workers from `least` to `most` that keep the percentile over all of these intervals; else `most`.

    `rates_per_s`: requests of this mix in each of them.
    """
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if _keeps(role, rates_per_s, middle, mix, sizer) else (middle + 1, most)
    return least


def share_late(role: Role, rates_per_s: Sequence[float], workers: int, mix: Mix, sizer: Sizer) -> float:
    """Predicted share over the target of the requests of all these intervals; at least so much, where that is more than
    the percentile allows. It costs nothing where it was just found that so many are not enough.
    """
    late, _ = _late(role, rates_per_s, workers, mix, sizer)
    return late / max(1e-9, sum(rates_per_s))


def _keeps(role: Role, rates_per_s: Sequence[float], workers: int, mix: Mix, sizer: Sizer) -> bool:
    _, is_kept = _late(role, rates_per_s, workers, mix, sizer)
    return is_kept


def _late(role: Role, rates_per_s: Sequence[float], workers: int, mix: Mix, sizer: Sizer) -> tuple[float, bool]:
    """Requests over the target in the intervals of most load, until it is clear whether all of them keep the
    percentile; and whether they do."""
    left, late = sum(rates_per_s), 0.0
    budget = (1.0 - sizer.reachable_share(role, mix)) * left
    for rate in sorted(rates_per_s, reverse=True):
        share = 1.0 - sizer.share_met(role, mix, rate, workers)
        late, left = late + rate * share, left - rate
        if late > budget or late + left * share <= budget:  # at less load no more are late
            break
    return late, late <= budget


def with_served(memory: PoolMemory, pool: PoolSeen, served: Lateness | None) -> PoolMemory:
    """The memory with one more interval, when it is known what clients saw and how many workers served."""
    if served is None or pool.routable is None:
        return memory
    return replace(memory, served=(*memory.served, (pool.routable, served))[-HISTORY:])


def seen_enough(spec: SizingSpec, role: Role, memory: PoolMemory, workers: int, mix: Mix, sizer: Sizer) -> int:
    """The fewest workers, at most `workers`, that clients did not see to be too few in the last half hour.

    Who is late now came before: each interval counts for the fewest that served in the minute that it tells of. Who was
    late with some would have been so with fewer.
    """
    back = round(spec.stabilisation_s / spec.interval_s)
    budget = (1.0 - sizer.reachable_share(role, mix)) * sum(seen.requests for _, seen in memory.served)
    late: dict[int, float] = {}
    for place, (_, seen) in enumerate(memory.served):
        fewest = min(routable for routable, _ in memory.served[max(0, place - back) : place + 1])
        late[fewest] = late.get(fewest, 0.0) + seen.late
    for size in sorted(late, reverse=True):
        if size < workers:
            budget -= late[size]
            if budget < 0.0:
                return size + 1
    return 1
