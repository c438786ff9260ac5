"""Whether a request would be answered, wherever it comes in: whether each gateway has a pair of workers that fit each
other, or had one a moment ago.

That is not what rollouts go by. They count the workers that *every* gateway has, and in a drain there may be none: the
gateway that goes has the old workers, its successor the new ones, and both answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

PAIR_MEMORY_S = 8.0
"""For so long a gateway without a pair is taken for one that will have one. It holds prompts for longer (`--park-s`,
10 s), so that who asks meanwhile is answered when the successors of its workers come."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Of the gateways of one deployment that are linked."""

    gateways: int
    """How many."""
    lacking: tuple[str, ...] = ()
    """Those that have had none for `PAIR_MEMORY_S`: requests that come to them are refused."""
    may_lack_soon: bool = False
    """Another one has none now, and not for long: after a while this is another answer though nobody tells anything."""


@dataclass(slots=True)
class _Process:
    """One gateway process behind a live link."""

    gateway: str
    processes: int
    since_s: float
    heard_s: float = -math.inf
    has_pair: bool = False
    unpaired_s: float = 0.0
    """Since when it has had none, its link's beginning at the earliest."""


@dataclass(slots=True)
class PairMemory:
    """`silent_s`: a process that told nothing for longer says nothing about now. Times are of a clock that only goes
    forward."""

    silent_s: float
    _processes: dict[bytes, _Process] = field(default_factory=dict)
    _paired_s: float = -math.inf
    """When any gateway was last known to have a pair, one that has gone too."""

    def linked(self, epoch: bytes, gateway: str, processes: int, now: float) -> None:
        self._processes[epoch] = _Process(gateway, processes, now, unpaired_s=now)

    def told(self, epoch: bytes, has_pair: bool, now: float) -> None:
        process = self._processes[epoch]
        if process.has_pair or has_pair:  # it had one until now
            process.unpaired_s = self._paired_s = now
        process.has_pair, process.heard_s = has_pair, now

    def gone(self, epoch: bytes, now: float) -> None:
        process = self._processes.pop(epoch, None)
        if process is not None and process.has_pair:
            self._paired_s = now

    def pairs(self, now: float) -> Pairs | None:
        """None: not known, because no gateway has told anything, or one is silent that has had the time to tell."""
        gateways: dict[str, list[_Process]] = {}
        for process in self._processes.values():
            gateways.setdefault(process.gateway, []).append(process)
        heard: list[_Process] = []
        silent: list[_Process] = []
        for each in gateways.values():
            (heard if self._is_heard(each, now) else silent).extend(each)
        if not heard or any(now - process.since_s >= PAIR_MEMORY_S for process in silent):
            return None
        without = [process for process in heard if not process.has_pair]
        # Where nobody has served lately, there is nothing that a new gateway could not have found yet.
        has_served = len(without) < len(heard) or now - self._paired_s < PAIR_MEMORY_S
        lacking = {p.gateway for p in without if not has_served or now - p.unpaired_s >= PAIR_MEMORY_S}
        may_lack = bool(silent) or any(p.gateway not in lacking for p in without)
        return Pairs(len(gateways), tuple(sorted(lacking)), may_lack)

    def _is_heard(self, processes: list[_Process], now: float) -> bool:
        """Whether all of a gateway's processes have told something lately."""
        heard = sum(now - each.heard_s <= self.silent_s for each in processes)
        return heard == len(processes) and heard >= max(each.processes for each in processes)
