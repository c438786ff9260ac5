"""Slots, the rows of the runner's per-sequence state: free, taken, or closed and waiting for a step to end.

A slot is given out again only when the step that closed it has been collected: until then the runner may still write
for it.
"""

from __future__ import annotations

from heapq import heappop, heappush


class SlotTable:
    """Slots 0 … num_slots - 1, lowest first, so that the batch stays dense."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots))
        self._closing: list[int] = []
        self._fenced: dict[int, list[int]] = {}
        self._flows: dict[int, bytes] = {}
        self._held: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        return len(self._free)

    @property
    def has_closing(self) -> bool:
        """True when the next plan has slots to close."""
        return bool(self._closing)

    @property
    def taken(self) -> int:
        return self.num_slots - len(self._free)

    def held_by(self, flow: bytes) -> int:
        """Number of slots that the flow has taken and not given back."""
        return self._held.get(flow, 0)

    def take(self, flow: bytes) -> int:
        slot = heappop(self._free)
        self._flows[slot] = flow
        self._held[flow] = self._held.get(flow, 0) + 1
        return slot

    def close(self, slot: int) -> None:
        """Give the slot back; the next plan tells the runner."""
        self._closing.append(slot)
        flow = self._flows.pop(slot)
        self._held[flow] -= 1
        if not self._held[flow]:
            del self._held[flow]

    def close_in(self, step: int) -> tuple[int, ...]:
        """Take the slots that the plan of `step` closes; they are free when the step has been collected."""
        if not self._closing:
            return ()
        closes = self._closing
        self._closing = []
        self._fenced.setdefault(step, []).extend(closes)
        return tuple(closes)

    def collect(self, step: int) -> None:
        for slot in self._fenced.pop(step, ()):
            heappush(self._free, slot)
