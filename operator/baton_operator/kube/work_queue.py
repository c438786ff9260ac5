"""The queue of LLMDeployments to reconcile. A machine over keys and times: no clock, no tasks.

A key waits at most once and is in work at most once. A key that is offered while in work waits again afterwards, for a
moment, so that a burst of events becomes one pass. A failed key is retried after a delay that doubles with each
failure. Offers do not shorten that delay, or a fast stream of events would become a fast stream of failures.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass

from baton_control.names import Key

FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 60.0
GAP_S = 0.25
"""Least time between two passes of a key, so that one pass sees a burst of changes."""


@dataclass(slots=True)
class _State:
    due: float | None = None
    """When the key may be taken; None: it does not wait."""
    not_before: float = 0.0
    failures: int = 0
    in_work: bool = False
    again: float | None = None
    """When the key is due again, because it was offered while in work; None: it was not."""


class WorkQueue:
    """The keys that wait or are in work. `together`: most keys of one namespace in work at a time, so that a namespace
    that hangs does not take all workers; None: any number."""

    def __init__(self, rng: random.Random | None = None, together: int | None = None) -> None:
        self._rng, self._together = rng or random.Random(), together
        self._busy: Counter[str] = Counter()
        """Keys in work by namespace."""
        self._parked: dict[str, list[tuple[float, Key]]] = {}
        """Keys that are due but whose namespace has enough in work, each with its due time."""
        self._states: dict[Key, _State] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def __len__(self) -> int:
        """Keys that wait or are worked on."""
        return sum(1 for state in self._states.values() if state.in_work or state.due is not None)

    def offer(self, key: Key, at: float) -> None:
        """Queue the key for that time, or sooner if it waits already."""
        state = self._states.setdefault(key, _State())
        if state.in_work:
            state.again = at if state.again is None else min(at, state.again)
            return
        at = max(at, state.not_before)
        if state.due is None or at < state.due:
            self._push(key, state, at)

    def take(self, now: float) -> Key | None:
        """Take the key that has been due longest into work; None: none is due."""
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            state = self._states.get(key)
            if state is None or state.due != due or state.in_work:
                continue
            if self._together is not None and self._busy[key.namespace] >= self._together:
                self._parked.setdefault(key.namespace, []).append((due, key))
                continue
            state.due, state.in_work = None, True
            self._busy[key.namespace] += 1
            return key
        return None

    def next_at(self) -> float | None:
        """When a key is due next; None: nothing waits."""
        while self._heap:
            due, _, key = self._heap[0]
            state = self._states.get(key)
            if state is not None and state.due == due and not state.in_work:
                return due
            heapq.heappop(self._heap)
        return None

    def done(self, key: Key, now: float, again_at: float | None = None) -> None:
        """End a successful pass; `again_at`: when it wants the next one."""
        state = self._states[key]
        state.failures, state.not_before = 0, now + GAP_S
        self._settle(key, state, again_at)

    def failed(self, key: Key, now: float, at_least_s: float = 0.0) -> float:
        """End a failed pass; returns the delay until the next one."""
        state = self._states[key]
        delay_s = min(FIRST_DELAY_S * 2.0**state.failures, LONGEST_DELAY_S) * self._rng.uniform(0.75, 1.25)
        delay_s = max(delay_s, at_least_s)
        state.failures = min(state.failures + 1, 32)
        state.not_before = now + delay_s
        self._settle(key, state, state.not_before)
        return delay_s

    def is_idle(self, now: float) -> bool:
        """True if no key is in work and none is due."""
        due = self.next_at()
        return (due is None or due > now) and not any(state.in_work for state in self._states.values())

    def forget(self, key: Key) -> None:
        """Drop the state of a deployment that is gone, unless it has been offered again."""
        state = self._states.get(key)
        if state is not None and state.due is None and not state.in_work:
            del self._states[key]

    def waiting_since(self, now: float) -> float:
        """The due time of the key that has been due longest; `now` when none is late."""
        due = self.next_at()
        parked = [waiting[0][0] for waiting in self._parked.values()]
        return min([now, *parked, *([] if due is None else [due])])

    def _settle(self, key: Key, state: _State, again_at: float | None) -> None:
        state.in_work = False
        self._busy[key.namespace] -= 1
        parked = self._parked.pop(key.namespace, [])
        free = len(parked) if not self._busy[key.namespace] else 1
        for due, parked_key in parked[:free]:
            self._count += 1
            heapq.heappush(self._heap, (due, self._count, parked_key))
        if parked[free:]:
            self._parked[key.namespace] = parked[free:]
        offers = [at for at in (state.again, again_at) if at is not None]
        state.again = None
        if offers:
            self._push(key, state, max(min(offers), state.not_before))

    def _push(self, key: Key, state: _State, at: float) -> None:
        state.due = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))
