"""Virtual time for simulations: a heap of calls, run in order, with a trace that names what happened."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable


class EventHeap:
    """Calls in the order of their time; equal times in the order they were given. Same seed, same run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.trace: list[str] = []
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def next_s(self) -> float:
        """When the next call is due; infinity: none is."""
        return self._heap[0][0] if self._heap else float("inf")

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + max(0.0, delay_s), self._count, call))

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:9.4f}  {text}")

    def step(self) -> bool:
        """Run the next call; False when there is none."""
        if not self._heap:
            return False
        at_s, _, call = heapq.heappop(self._heap)
        self.now = max(self.now, at_s)
        self.events += 1
        call()
        return True

    def run(self, until_s: float = float("inf"), after_each: Callable[[], None] | None = None) -> None:
        """Run calls until none is left or the next lies beyond `until_s`, where the clock then stands."""
        while self._heap and self._heap[0][0] <= until_s:
            self.step()
            if after_each is not None:
                after_each()
        if until_s != float("inf"):
            self.now = until_s
