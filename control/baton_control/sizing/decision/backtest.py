"""Which size is enough for the last half hour and for what comes until a worker that is started now can serve. Pure.

The percentile is one of all requests. So a pool may be too small for a burst if the rest of the time it is not, and it
stays large enough for one that it has seen. The twin knows sizes that a pool never had. Clients know what the twin is
wrong about, of sizes that it had.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from baton_control.sizing.decision.capacity import Mix, Sizer
from baton_control.sizing.inputs.memory import HISTORY, PoolMemory
from baton_control.sizing.inputs.observations import Lateness, PoolSeen
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_wire.messages.values import Role

GOING_PART = 0.5
"""Of what the percentile allows to be late, so much at most would be of the half hour without those who go: what comes
is not what was."""


class Load(NamedTuple):
    """What a pool has to do in one interval."""

    requests_per_s: float
    """That come: each counts once, however long it is."""
    rate_per_s: float
    """Requests of the mix that are as much work."""
    mix: Mix


class ObservedLateness(NamedTuple):
    """What clients saw of the first of some intervals, the oldest of which is the first."""

    sizes: Sequence[int | None] = ()
    """The fewest workers that served what came in each; None: it is not known, or may not have ended yet."""
    late_per_s: Mapping[int, float] = MappingProxyType({})
    """By size, the sum over its intervals of the requests that were late."""


NOBODY = ObservedLateness()

_Between = Callable[[Load], tuple[float, float]]
"""The share of a load that is late, at least and at most, as far as it is known."""


def enough(
    role: Role,
    loads: Sequence[Load],
    least: int,
    most: int,
    sizer: Sizer,
    part: float = 1.0,
    witness: ObservedLateness = NOBODY,
) -> int:
    """The fewest workers from `least` to `most` that keep the percentile over all of these intervals, and of what it
    allows to be late use no more than this part; else `most`.

    Where no more served, no more are late than clients saw, whatever the twin says.
    """
    if least >= most:
        return least
    fewer, budget, told = 1, part * _allowed(role, loads, sizer), _ascending(loads, witness)
    while least < most:  # from above: a size that is far too small takes longest
        workers = max((least + most) // 2, most - fewer)
        _, is_kept = _late(role, told, workers, sizer, budget, witness.late_per_s)
        least, most = (least, workers) if is_kept else (workers + 1, most)
        fewer *= 2
    return least


def share_late(role: Role, loads: Sequence[Load], workers: int, sizer: Sizer) -> float:
    """Predicted share over the target of the requests of all these intervals; at least so much, where that is more than
    the percentile allows. It costs nothing where it was just found that so many are not enough.
    """
    late, _ = _late(role, _ascending(loads, NOBODY), workers, sizer, _allowed(role, loads, sizer), NOBODY.late_per_s)
    return late / max(1e-9, sum([load.requests_per_s for load in loads]))


def allowed(role: Role, loads: Sequence[Load], sizer: Sizer) -> float:
    """Share of the requests of all these intervals that may be late. Who is late even when alone is."""
    return _allowed(role, loads, sizer) / max(1e-9, sum([load.requests_per_s for load in loads]))


def _allowed(role: Role, loads: Sequence[Load], sizer: Sizer) -> float:
    """How many requests that are."""
    requests: dict[Mix, float] = {}  # few mixes, of many intervals
    for load in loads:
        requests[load.mix] = requests.get(load.mix, 0.0) + load.requests_per_s
    return sum(count * (1.0 - sizer.reachable_share(role, mix)) for mix, count in requests.items())


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Loads of one mix, ascending, and the shares of them that are late at least and at most."""

    loads: Sequence[Load]
    requests: float
    least: float
    most: float
    is_whole: bool
    """Nobody was asked about any of the mix yet."""

    @property
    def doubt(self) -> float:
        return self.requests * (self.most - self.least)

    def split(
        self, late_at: Callable[[Load], float], known: _Between, capable_per_s: float
    ) -> tuple[_Part, float, _Part]:
        """What is below one of the loads, the requests that are late of it, and what is above it: the one in the
        middle, or at first the highest that can be done at all. Of one mix no more are late at less load."""
        sums = list(accumulate([load.requests_per_s for load in self.loads]))
        place = min(len(self.loads) - 1, bisect_right(sums, sums[-1] / 2))
        if self.is_whole:
            place = max(place, bisect_right(self.loads, capable_per_s, key=lambda load: load.rate_per_s) - 1)
        below, at, above = self.loads[:place], self.loads[place], self.loads[place + 1 :]
        late = min(self.most, max(self.least, late_at(at)))
        under, over = _part(below, self.least, late, known), _part(above, late, self.most, known)
        return under, late * at.requests_per_s, over


def _part(loads: Sequence[Load], least: float, most: float, known: _Between, is_whole: bool = False) -> _Part:
    if loads:
        least = min(most, max(least, known(loads[0])[0]))
        most = max(least, min(most, known(loads[-1])[1]))
    return _Part(loads, sum([load.requests_per_s for load in loads]), least, most, is_whole)


@dataclass(slots=True)
class _Group:
    """Intervals of which no more requests were late than clients saw, and what the twin says of them so far."""

    cap: float
    least: float = 0.0
    most: float = 0.0

    @property
    def is_open(self) -> bool:
        """More questions would tell more."""
        return self.least < min(self.cap, self.most)


_Told = Sequence[tuple[Load, int | None]]
"""Loads, ascending, and how many workers served each, where clients told of it."""


def _ascending(loads: Sequence[Load], witness: ObservedLateness) -> _Told:
    sizes = [*witness.sizes, *[None] * (len(loads) - len(witness.sizes))]
    return sorted(zip(loads, sizes, strict=True), key=lambda each: each[0].rate_per_s)


def _late(
    role: Role, told: _Told, workers: int, sizer: Sizer, budget: float, late_per_s: Mapping[int, float]
) -> tuple[float, bool]:
    """Requests over the target in all of these intervals, as far as they had to be found out to know whether with so
    many workers they are no more than the budget; and whether they are not."""

    def late_at(load: Load) -> float:
        return 1.0 - sizer.share_met(role, load.mix, load.rate_per_s, workers)

    def known(load: Load) -> tuple[float, float]:
        return sizer.late_between(role, load.mix, load.rate_per_s, workers)

    groups, parts = _grouped(told, workers, late_per_s, known)
    doubted = [(-each.doubt, place, group, each) for place, (group, each) in enumerate(parts) if each.doubt > 0.0]
    """heap"""
    heapify(doubted)
    count = len(parts)
    while True:
        late = sum(min(group.cap, group.least) for group in groups.values())
        if not doubted or late > budget or sum(min(group.cap, group.most) for group in groups.values()) <= budget:
            return late, late <= budget
        _, _, size, most = heappop(doubted)
        group = groups[size]
        if not group.is_open:
            continue
        below, more, above = most.split(late_at, known, workers * sizer.most_per_s(role, most.loads[0].mix))
        group.least += more - most.requests * most.least
        group.most += more - most.requests * most.most
        for each in (below, above):
            group.least += each.requests * each.least
            group.most += each.requests * each.most
            count += 1
            if each.doubt > 0.0:
                heappush(doubted, (-each.doubt, count, size, each))


def _grouped(
    told: _Told, workers: int, late_per_s: Mapping[int, float], known: _Between
) -> tuple[dict[int | None, _Group], list[tuple[int | None, _Part]]]:
    """The loads by how many workers served them, if that were no more than these; None: the twin alone can tell. And
    in each group those of one mix, ascending."""
    by_mix: dict[tuple[int | None, Mix], list[Load]] = {}
    for load, size in told:
        by_mix.setdefault((size if size is not None and size <= workers else None, load.mix), []).append(load)
    groups: dict[int | None, _Group] = {}
    parts = []
    for (size, _), each in by_mix.items():
        one = _part(each, 0.0, 1.0, known, is_whole=True)
        group = groups.setdefault(size, _Group(inf if size is None else late_per_s.get(size, 0.0)))
        group.least += one.requests * one.least
        group.most += one.requests * one.most
        parts.append((size, one))
    return groups, parts


def with_served(memory: PoolMemory, pool: PoolSeen, served: Lateness | None) -> PoolMemory:
    """The memory with one more interval, when it is known what clients saw and how many workers served."""
    if served is None or pool.routable is None:
        return memory
    return replace(memory, served=(*memory.served, (pool.routable, served))[-HISTORY:])


def seen_enough(spec: SizingSpec, memory: PoolMemory, workers: int, share: float) -> int:
    """The fewest workers, at most `workers`, that clients did not see to be too few in the last half hour: of all
    requests no more than a `share` was late. Who was late with some would have been so with fewer."""
    budget = share * sum(seen.requests for _, seen in memory.served)
    late = _late_by_size(_by_size(spec, memory))
    for size in sorted(late, reverse=True):
        if size < workers:
            budget -= late[size]
            if budget < 0.0:
                return size + 1
    return 1


def witnessed(spec: SizingSpec, memory: PoolMemory, intervals: int, recent: int) -> ObservedLateness:
    """What clients saw of the last so many intervals. What came in the `recent` ones may not have ended."""
    told = _by_size(spec, memory)[-intervals:]
    known = told[: max(0, len(told) - recent)]
    sizes = [None] * (intervals - len(told)) + [size for size, _ in known]
    # Each request is told of in as many intervals as fit into the time that an interval tells of.
    late = {size: late / spec.stabilisation_s for size, late in _late_by_size(told).items()}
    return ObservedLateness(sizes, late)


def _by_size(spec: SizingSpec, memory: PoolMemory) -> list[tuple[int, Lateness]]:
    """What clients saw in each interval, and the fewest workers that served in the minute that it tells of: who is late
    now came before."""
    back = round(spec.stabilisation_s / spec.interval_s)
    sizes = [routable for routable, _ in memory.served]
    return [(min(sizes[max(0, place - back) : place + 1]), seen) for place, (_, seen) in enumerate(memory.served)]


def _late_by_size(told: Sequence[tuple[int, Lateness]]) -> dict[int, float]:
    late: dict[int, float] = {}
    for size, seen in told:
        late[size] = late.get(size, 0.0) + seen.late
    return late
