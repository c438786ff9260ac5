"""Pairs of gateways: does each gateway have a fitting pair of workers, or had one a moment ago? Then every request is
answered, whichever gateway gets it.

Rollouts count differently: the workers that *every* gateway has. During a drain there may be none, because the old
gateway has the old workers and its successor the new ones, while both answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

PAIR_MEMORY_S = 8.0
"""Time for which a gateway without a pair is expected to get one. It holds prompts longer than that (`--park-s`, 10 s),
so requests in the meantime are answered once new workers are linked."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of the linked gateways of one deployment."""

    gateways: int
    """Number of linked gateways."""
    lacking: tuple[str, ...] = ()
    """Gateways without a pair for `PAIR_MEMORY_S`, which refuse requests."""
    may_lack_soon: bool = False
    """True: another gateway has had no pair for a shorter time, so the answer may change without a new report."""


@dataclass(slots=True)
class _Process:
    """A gateway process with a live link."""

    gateway: str
    processes: int
    since_s: float
    reported_s: float = -math.inf
    has_pair: bool = False
    unpaired_s: float = 0.0
    """Time since which it has had no pair, at the earliest the start of its link."""


@dataclass(slots=True)
class PairMemory:
    """The pairs that gateway processes reported. `silent_s`: age at which a report says nothing about now. Times are of
    a clock that only goes forward.

    >>> memory = PairMemory(silent_s=10.0)
    >>> memory.linked(b"epoch", "gateway-0", processes=1, now=0.0)
    >>> memory.report(b"epoch", has_pair=True, now=1.0)
    >>> memory.pairs(now=2.0)
    Pairs(gateways=1, lacking=(), may_lack_soon=False)
    >>> memory.pairs(now=60.0) is None  # silent for too long
    True
    """

    silent_s: float
    _processes: dict[bytes, _Process] = field(default_factory=dict)
    _paired_s: float = -math.inf
    """Last time at which any gateway had a pair, one that is gone included."""

    def linked(self, epoch: bytes, gateway: str, processes: int, now: float) -> None:
        self._processes[epoch] = _Process(gateway, processes, now, unpaired_s=now)

    def report(self, epoch: bytes, has_pair: bool, now: float) -> None:
        process = self._processes[epoch]
        if process.has_pair or has_pair:  # it had one until now
            process.unpaired_s = self._paired_s = now
        process.has_pair, process.reported_s = has_pair, now

    def gone(self, epoch: bytes, now: float) -> None:
        process = self._processes.pop(epoch, None)
        if process is not None and process.has_pair:
            self._paired_s = now

    def pairs(self, now: float) -> Pairs | None:
        """The pairs now. None: unknown, because no gateway has reported, or one is silent that had time to report."""
        gateways: dict[str, list[_Process]] = {}
        for process in self._processes.values():
            gateways.setdefault(process.gateway, []).append(process)
        reporting: list[_Process] = []
        silent: list[_Process] = []
        for processes in gateways.values():
            (reporting if self._has_reported(processes, now) else silent).extend(processes)
        if not reporting or any(now - process.since_s >= PAIR_MEMORY_S for process in silent):
            return None
        without = [process for process in reporting if not process.has_pair]
        # If no gateway has served lately, a new one lacks a pair at once: there is none for it to find.
        has_served = len(without) < len(reporting) or now - self._paired_s < PAIR_MEMORY_S
        lacking = {p.gateway for p in without if not has_served or now - p.unpaired_s >= PAIR_MEMORY_S}
        may_lack = bool(silent) or any(p.gateway not in lacking for p in without)
        return Pairs(len(gateways), tuple(sorted(lacking)), may_lack)

    def _has_reported(self, processes: list[_Process], now: float) -> bool:
        """True when all processes of a gateway have reported lately."""
        count = sum(now - process.reported_s <= self.silent_s for process in processes)
        return count == len(processes) and count >= max(process.processes for process in processes)
