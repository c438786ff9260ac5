"""Prompts that wait at the gateway of the twin, in the order in which the real one lets them go (`held_runs`)."""

from __future__ import annotations

import heapq
from collections import deque

BEGIN_SHARE = 0.6
"""As in the gateway."""


class PromptQueue:
    """Least slack first, what is late already last; in order of arrival without a target."""

    def __init__(self, ttft_s: float | None = None) -> None:
        self._ttft_s = ttft_s
        self._retried: deque[int] = deque()
        """Their clients have waited before: they go first."""
        self._waiting: list[tuple[float, int]] = []
        """(latest start in time, request), a heap"""
        self._late: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._retried) + len(self._waiting) + len(self._late)

    def push(self, request: int, arrival_s: float, own_s: float) -> None:
        """`own_s`: seconds that a worker computes it; one that is too long for the target waits as if it took none."""
        slack_s = 0.0
        if self._ttft_s is not None:
            by_s = BEGIN_SHARE * self._ttft_s
            slack_s = by_s - own_s if own_s <= by_s else by_s
        heapq.heappush(self._waiting, (arrival_s + slack_s, request))

    def push_front(self, request: int) -> None:
        self._retried.appendleft(request)

    def first(self, now: float) -> int:
        """Whose turn it is; there is one."""
        if self._ttft_s is not None:
            while self._waiting and self._waiting[0][0] < now:
                self._late.append(heapq.heappop(self._waiting)[1])
        if self._retried:
            return self._retried[0]
        return self._waiting[0][1] if self._waiting else self._late[0]

    def pop(self) -> int:
        """Take what `first` just said."""
        if self._retried:
            return self._retried.popleft()
        return heapq.heappop(self._waiting)[1] if self._waiting else self._late.popleft()
