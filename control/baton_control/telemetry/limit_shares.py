"""Divides each tenant's limits among gateway processes by what is asked of them. Pure: `now` is an argument.

A process has a bucket with its share of a limit. Shares follow demand, and tokens move with them: what one process
loses another one gets, so that the sum over all processes is the limit however reports are delayed. A process without
demand keeps a small share, with which a tenant's first request there is served at once.

A limit of concurrent sequences is divided in whole sequences. What a process gives up is given to another one only
after a report says that it is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from baton_wire.messages.operator_link import LimitMeasure, LimitShare, LimitUse

IDLE_SHARE = 0.02
"""The part of a limit that all processes without demand have together."""
FORGET_S = 60.0
"""A limit without a report for this long is divided equally again."""
FADING = 0.5
"""Weight of the former demand in a new report's."""
MAX_WANTED = 20_000
"""Limits whose use is kept apart for metrics. Those that are asked for later are added up by measure."""
OTHERS = "*others"
"""The tenant of such sums. No tenant can have this name."""
LEAST_CHANGE = 0.01
"""Smaller changes of a share, or of a part of the limit, are not worth a message."""


@dataclass(slots=True)
class _Part:
    share: float
    level: float
    demand: float = 0.0
    is_new: bool = True
    """True until an order named the process."""
    pending: list[tuple[int, float]] = field(default_factory=list)
    """Orders that the process has not acknowledged: their numbers, and the tokens that they move. For `CONCURRENT` the
    sequences that it could have before."""

    def acknowledge(self, number: int) -> None:
        self.pending = [(order, amount) for order, amount in self.pending if order > number]


@dataclass(slots=True)
class _Limit:
    amount: float
    used_s: float
    parts: dict[bytes, _Part] = field(default_factory=dict)
    reported: set[bytes] = field(default_factory=set)
    """Processes that have reported since the last division."""


class LimitShares:
    """The shares of one deployment's processes."""

    def __init__(self) -> None:
        self._processes: list[bytes] = []
        self._limits: dict[tuple[str, LimitMeasure], _Limit] = {}
        self._numbers: dict[bytes, int] = {}
        """The number of each process's last order."""
        self.wanted: dict[tuple[str, LimitMeasure], float] = {}
        """The amount that was spent or refused of each limit by the minute, since the first report of it."""

    def __len__(self) -> int:
        return len(self._limits)

    @property
    def num_processes(self) -> int:
        return max(1, len(self._processes))

    def join(self, process: bytes) -> None:
        """A process is linked."""
        if process not in self._processes:
            self._processes.append(process)
        self._numbers[process] = 0
        for limit in self._limits.values():
            if (part := limit.parts.get(process)) is not None:
                part.pending.clear()

    def leave(self, process: bytes) -> None:
        """A process is gone, with the tokens that it had."""
        if process in self._processes:
            self._processes.remove(process)
            del self._numbers[process]
        for limit in self._limits.values():
            limit.parts.pop(process, None)

    def amounts(self) -> dict[tuple[str, LimitMeasure], float]:
        """The limits by the minute that are divided now: those that were asked for lately."""
        return {place: limit.amount for place, limit in self._limits.items() if place[1] is not LimitMeasure.CONCURRENT}

    def number(self, process: bytes) -> int:
        """The number of a process's last order."""
        return self._numbers.get(process, 0)

    def report(self, process: bytes, uses: Iterable[LimitUse], order: int, now: float) -> None:
        """A process reports the limits that were asked for. `order`: the last one that it had carried out."""
        if process not in self._processes:
            return
        for use in uses:
            limit = self._limits.setdefault((use.tenant, use.measure), _Limit(use.per_minute, now))
            limit.amount, limit.used_s = use.per_minute, now
            for known in self._processes:
                limit.parts.setdefault(known, self._first_part(use))
            part = limit.parts[process]
            part.acknowledge(order)
            is_count = use.measure is LimitMeasure.CONCURRENT
            part.level = use.level if is_count else use.level + sum(moved for _, moved in part.pending)
            if not is_count:
                place = (use.tenant, use.measure)
                if place not in self.wanted and len(self.wanted) >= MAX_WANTED:
                    place = (OTHERS, use.measure)
                self.wanted[place] = self.wanted.get(place, 0.0) + use.wanted
            part.demand = use.wanted if is_count else FADING * part.demand + (1 - FADING) * use.wanted
            limit.reported.add(process)

    def divide(self, now: float) -> dict[bytes, list[LimitShare]]:
        """The new shares by process, of those that change. Each process's list is one order."""
        orders: dict[bytes, list[LimitShare]] = {}
        for (tenant, measure), limit in list(self._limits.items()):
            if now - limit.used_s > FORGET_S:
                self._share_equally(tenant, measure, limit, orders)
                del self._limits[tenant, measure]
                continue
            if not limit.reported:
                continue
            for known in self._processes:
                limit.parts.setdefault(known, _Part(0.0, 0.0))
            if measure is LimitMeasure.CONCURRENT:
                self._divide_sequences(tenant, limit, orders)
            else:
                self._divide_rate(tenant, measure, limit, orders)
            limit.reported.clear()
        for process in orders:
            self._numbers[process] += 1
        return orders

    def _first_part(self, use: LimitUse) -> _Part:
        """The part of a limit that a process has without an order: an equal one, from which nothing was taken."""
        if use.measure is LimitMeasure.CONCURRENT:
            return _Part(max(1, int(use.per_minute / self.num_processes)), 0.0)
        share = 1 / self.num_processes
        return _Part(share, use.per_minute * share)

    def _divide_rate(
        self, tenant: str, measure: LimitMeasure, limit: _Limit, orders: dict[bytes, list[LimitShare]]
    ) -> None:
        for process, part in limit.parts.items():
            if process not in limit.reported:
                part.demand *= FADING
                part.level = min(limit.amount * part.share, part.level + limit.amount * part.share / 60)
        demand = sum(part.demand for part in limit.parts.values())
        if demand <= 0:
            return
        least = IDLE_SHARE / len(limit.parts)
        shares = {process: least + (1 - IDLE_SHARE) * part.demand / demand for process, part in limit.parts.items()}
        moves = _moves(limit, shares)
        is_small = all(
            abs(shares[process] - part.share) < LEAST_CHANGE and abs(moves[process]) < LEAST_CHANGE * limit.amount
            for process, part in limit.parts.items()
        )
        if is_small and not any(part.is_new for part in limit.parts.values()):
            return  # all or none, because what one gets another one gives
        for process, part in limit.parts.items():
            part.share, part.level, part.is_new = shares[process], part.level + moves[process], False
            part.pending.append((self._numbers[process] + 1, moves[process]))
            orders.setdefault(process, []).append(LimitShare(tenant, measure, part.share, moves[process]))

    def _divide_sequences(self, tenant: str, limit: _Limit, orders: dict[bytes, list[LimitShare]]) -> None:
        total = int(limit.amount)
        wanted = _whole_parts({process: part.demand for process, part in limit.parts.items()}, total)
        held = {
            process: max(part.share, part.level, *(former for _, former in part.pending))
            for process, part in limit.parts.items()
        }
        for process, part in limit.parts.items():
            if wanted[process] < part.share or part.is_new:
                part.pending.append((self._numbers[process] + 1, part.share))
                part.share, part.is_new = float(min(wanted[process], part.share)), False
                orders.setdefault(process, []).append(LimitShare(tenant, LimitMeasure.CONCURRENT, part.share, 0.0))
        free = total - sum(held.values())
        for process, part in limit.parts.items():
            more = min(float(wanted[process]) - part.share, free)
            if more >= 1:
                part.share += int(more)
                free -= int(more)
                orders.setdefault(process, []).append(LimitShare(tenant, LimitMeasure.CONCURRENT, part.share, 0.0))

    def _share_equally(
        self, tenant: str, measure: LimitMeasure, limit: _Limit, orders: dict[bytes, list[LimitShare]]
    ) -> None:
        is_count = measure is LimitMeasure.CONCURRENT
        share = float(max(1, int(limit.amount / self.num_processes))) if is_count else 1 / self.num_processes
        for process in self._processes:
            orders.setdefault(process, []).append(LimitShare(tenant, measure, share, 0.0))


def _moves(limit: _Limit, shares: Mapping[bytes, float]) -> dict[bytes, float]:
    """The tokens that each process gets (negative: gives), zero together. A process that reported nothing gives what
    does not fit into its new share; the others have levels in proportion to their shares afterwards.
    """
    moves: dict[bytes, float] = {}
    level = share = 0.0
    for process, part in limit.parts.items():
        if process in limit.reported:
            level, share = level + part.level, share + shares[process]
        else:
            moves[process] = min(0.0, limit.amount * shares[process] - part.level)
            level -= moves[process]
    for process in limit.reported & limit.parts.keys():
        moves[process] = level * shares[process] / share - limit.parts[process].level
    return moves


def _whole_parts(demands: dict[bytes, float], total: int) -> dict[bytes, int]:
    """Whole numbers of at most `total` together: as demanded if that fits, otherwise in proportion. What is left over
    is divided equally."""
    demand = sum(demands.values())
    scale = min(1.0, total / demand) if demand > 0 else 0.0
    parts = {process: int(amount * scale) for process, amount in demands.items()}
    left = total - sum(parts.values())
    by_rest = sorted(demands, key=lambda process: (parts[process] - demands[process] * scale, parts[process], process))
    for place in range(left):
        parts[by_rest[place % len(by_rest)]] += 1
    return parts
