"""Which size is enough for the last half hour and for what comes until a worker that is started now can serve. Pure.

The percentile is one of all requests. So a pool may be too small for a burst if the rest of the time it is not, and it
stays large enough for one that it has seen. The twin knows sizes that a pool never had. Clients know what the twin is
wrong about, of sizes that it had.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from baton_control.sizing.capacity import Mix, Sizer
from baton_control.sizing.readings import Lateness, PoolSeen
from baton_control.sizing.remembered import HISTORY, PoolMemory
from baton_control.sizing.spec import SizingSpec
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


def enough(role: Role, loads: Sequence[Load], least: int, most: int, sizer: Sizer, part: float = 1.0) -> int:
    """The fewest workers from `least` to `most` that keep the percentile over all of these intervals, and of what it
    allows to be late use no more than this part; else `most`."""
    while least < most:
        middle = (least + most) // 2
        _, is_kept = _late(role, loads, middle, sizer, part)
        least, most = (least, middle) if is_kept else (middle + 1, most)
    return least


def share_late(role: Role, loads: Sequence[Load], workers: int, sizer: Sizer) -> float:
    """Predicted share over the target of the requests of all these intervals; at least so much, where that is more than
    the percentile allows. It costs nothing where it was just found that so many are not enough.
    """
    late, _ = _late(role, loads, workers, sizer)
    return late / max(1e-9, sum(load.requests_per_s for load in loads))


def allowed(role: Role, loads: Sequence[Load], sizer: Sizer) -> float:
    """Share of the requests of all these intervals that may be late. Who is late even when alone is."""
    late = sum(load.requests_per_s * (1.0 - sizer.reachable_share(role, load.mix)) for load in loads)
    return late / max(1e-9, sum(load.requests_per_s for load in loads))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Loads of one mix, ascending, and the shares of them that are late at least and at most."""

    loads: Sequence[Load]
    requests: float
    least: float = 0.0
    most: float = 1.0
    is_whole: bool = True
    """Nobody was asked about any of the mix yet."""

    @property
    def doubt(self) -> float:
        return self.requests * (self.most - self.least)

    def split(self, late_at: Callable[[Load], float]) -> tuple[_Part, float, _Part]:
        """What is below one of the loads, the requests that are late of it, and what is above it: the highest at
        first, then the one in the middle. Of one mix no more are late at less load."""
        place = len(self.loads) - 1
        if not self.is_whole:
            sums = list(accumulate(load.requests_per_s for load in self.loads))
            place = min(place, bisect_right(sums, sums[-1] / 2))
        below, at, above = self.loads[:place], self.loads[place], self.loads[place + 1 :]
        late = min(self.most, max(self.least, late_at(at)))
        return _part(below, self.least, late), late * at.requests_per_s, _part(above, late, self.most)


def _part(loads: Sequence[Load], least: float, most: float) -> _Part:
    return _Part(loads, sum(load.requests_per_s for load in loads), least, most, is_whole=False)


def _late(role: Role, loads: Sequence[Load], workers: int, sizer: Sizer, part: float = 1.0) -> tuple[float, bool]:
    """Requests over the target in all of these intervals, as far as they had to be found out to know whether so many
    workers keep the percentile with a `part` of what may be late; and whether they do."""
    by_mix: dict[Mix, list[Load]] = {}
    for load in sorted(loads, key=lambda each: each.rate_per_s):
        by_mix.setdefault(load.mix, []).append(load)
    parts = [_Part(each, sum(load.requests_per_s for load in each)) for each in by_mix.values()]
    budget = part * sum(each.requests * (1.0 - sizer.reachable_share(role, each.loads[0].mix)) for each in parts)
    late, doubt, count = 0.0, sum(each.doubt for each in parts), len(parts)
    doubted = [(-each.doubt, place, each) for place, each in enumerate(parts)]
    """heap"""
    heapify(doubted)
    while doubted and late <= budget < late + doubt:
        _, _, most = heappop(doubted)
        below, more, above = most.split(lambda load: 1.0 - sizer.share_met(role, load.mix, load.rate_per_s, workers))
        late += more - most.requests * most.least
        doubt -= most.doubt
        for each in (below, above):
            late, doubt, count = late + each.requests * each.least, doubt + each.doubt, count + 1
            if each.doubt > 0.0:
                heappush(doubted, (-each.doubt, count, each))
    return late, late <= budget


def with_served(memory: PoolMemory, pool: PoolSeen, served: Lateness | None) -> PoolMemory:
    """The memory with one more interval, when it is known what clients saw and how many workers served."""
    if served is None or pool.routable is None:
        return memory
    return replace(memory, served=(*memory.served, (pool.routable, served))[-HISTORY:])


def seen_enough(spec: SizingSpec, memory: PoolMemory, workers: int, share: float) -> int:
    """The fewest workers, at most `workers`, that clients did not see to be too few in the last half hour: of all
    requests no more than a `share` was late.

    Who is late now came before: each interval counts for the fewest that served in the minute that it tells of. Who was
    late with some would have been so with fewer.
    """
    back = round(spec.stabilisation_s / spec.interval_s)
    budget = share * sum(seen.requests for _, seen in memory.served)
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
