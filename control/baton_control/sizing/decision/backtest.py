"""Which size is enough for the last half hour and for what comes until a worker that is started now can serve. Pure.

The percentile is one of all requests of that time. So a pool may be too small for a burst if it is large enough for the
rest, and it stays large enough for a burst that it has seen. The simulator answers for sizes that the pool never had.
Clients correct it for sizes that the pool had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from baton_control.sizing.decision.capacity import Sizer
from baton_control.sizing.inputs.memory import HISTORY, PoolMemory
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Lateness, ObservedPool
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_wire.messages.values import Role

SHRINK_SHARE = 0.5
"""The part of what the percentile allows to be late that a smaller pool may have used in the half hour: the next one
will differ."""


class Load(NamedTuple):
    """The load of a pool in one interval."""

    requests_per_s: float
    """Requests that arrive: each counts once, however long it is."""
    rate_per_s: float
    """Requests of the mix that are as much work."""
    mix: Mix


class ObservedLateness(NamedTuple):
    """Late requests that clients saw in the oldest of some intervals."""

    sizes: Sequence[int | None] = ()
    """The fewest workers that served the requests of each interval; None: unknown, or they may not have ended yet."""
    late_per_s: Mapping[int, float] = MappingProxyType({})
    """By size, the sum over its intervals of the late requests per second."""


NOTHING_OBSERVED = ObservedLateness()


def fewest_enough(
    role: Role,
    loads: Sequence[Load],
    least: int,
    most: int,
    sizer: Sizer,
    share: float = 1.0,
    observed: ObservedLateness = NOTHING_OBSERVED,
) -> int:
    """The fewest workers from `least` to `most` with which the requests that are late over all these intervals are no
    more than a `share` of what the percentile allows; else `most`.

    Where clients observed that no more workers served, no more requests count as late than they saw.
    """
    budget = share * _allowed(role, loads, sizer)
    while least < most:
        workers = (least + most) // 2
        is_enough = _late(role, loads, workers, sizer, budget, observed) <= budget
        least, most = (least, workers) if is_enough else (workers + 1, most)
    return least


def late_share(role: Role, loads: Sequence[Load], workers: int, sizer: Sizer) -> float:
    """The predicted share of late requests over all these intervals; a lower bound where the percentile is missed."""
    late = _late(role, loads, workers, sizer, _allowed(role, loads, sizer), NOTHING_OBSERVED)
    return late / max(1e-9, sum(load.requests_per_s for load in loads))


def allowed_late_share(role: Role, loads: Sequence[Load], sizer: Sizer) -> float:
    """The share of the requests of all these intervals that may be late, or are late even when alone."""
    return _allowed(role, loads, sizer) / max(1e-9, sum(load.requests_per_s for load in loads))


def _allowed(role: Role, loads: Sequence[Load], sizer: Sizer) -> float:
    """Late requests per second that the percentile allows."""
    return sum(load.requests_per_s * (1.0 - sizer.reachable_share(role, load.mix)) for load in loads)


def _late(
    role: Role, loads: Sequence[Load], workers: int, sizer: Sizer, budget: float, observed: ObservedLateness
) -> float:
    """Late requests per second over all these intervals; the sum stops where it is over the budget."""
    sizes = [*observed.sizes, *[None] * (len(loads) - len(observed.sizes))]
    late: dict[int | None, float] = {}
    """By the workers that served, where clients may correct the simulator."""
    in_time: set[Mix] = set()
    """No fewer requests are in time at less load."""
    total = 0.0
    for load, size in sorted(zip(loads, sizes, strict=True), key=lambda pair: -pair[0].rate_per_s):
        if load.mix in in_time:
            continue
        share = 1.0 - sizer.share_met(role, load.mix, load.rate_per_s, workers)
        if share <= 0.0:
            in_time.add(load.mix)
        served = size if size is not None and size <= workers else None
        late[served] = late.get(served, 0.0) + share * load.requests_per_s
        total = sum(min(sum_, inf if key is None else observed.late_per_s.get(key, 0.0)) for key, sum_ in late.items())
        if total > budget:
            break
    return total


def with_lateness(memory: PoolMemory, pool: ObservedPool, served: Lateness | None) -> PoolMemory:
    """The memory with one more interval, where it is known what clients saw and how many workers served."""
    if served is None or pool.routable is None:
        return memory
    return replace(memory, served=(*memory.served, (pool.routable, served))[-HISTORY:])


def fewest_by_clients(spec: SizingSpec, memory: PoolMemory, workers: int, share: float) -> int:
    """The fewest workers, at most `workers`, that were not too few in the last half hour, as clients saw it: at most a
    `share` of all requests was late. A request that was late with some workers would have been late with fewer."""
    budget = share * sum(lateness.requests for _, lateness in memory.served)
    late = _late_by_size(_by_size(spec, memory))
    for size in sorted(late, reverse=True):
        if size < workers:
            budget -= late[size]
            if budget < 0.0:
                return size + 1
    return 1


def observed_lateness(spec: SizingSpec, memory: PoolMemory, intervals: int, recent: int) -> ObservedLateness:
    """Late requests that clients saw in the last `intervals`; those of the `recent` intervals may not have ended."""
    by_size = _by_size(spec, memory)[-intervals:]
    ended = by_size[: max(0, len(by_size) - recent)]
    sizes = [None] * (intervals - len(by_size)) + [size for size, _ in ended]
    # Each request is reported in as many intervals as fit into the time that a report covers.
    late = {size: late / spec.stabilisation_s for size, late in _late_by_size(by_size).items()}
    return ObservedLateness(sizes, late)


def _by_size(spec: SizingSpec, memory: PoolMemory) -> list[tuple[int, Lateness]]:
    """(fewest workers, what clients saw) of each interval. The workers are the fewest of the minute that the report
    covers: a request that is late now arrived earlier."""
    back = round(spec.stabilisation_s / spec.interval_s)
    sizes = [routable for routable, _ in memory.served]
    return [(min(sizes[max(0, place - back) : place + 1]), seen) for place, (_, seen) in enumerate(memory.served)]


def _late_by_size(by_size: Sequence[tuple[int, Lateness]]) -> dict[int, float]:
    late: dict[int, float] = {}
    for size, lateness in by_size:
        late[size] = late.get(size, 0.0) + lateness.late
    return late
