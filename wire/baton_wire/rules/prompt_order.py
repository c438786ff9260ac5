"""The order in which prompts wait at a gateway while every prefill worker is busy: by their target, late ones last.

Whose first token has to start soonest to come within the TTFT target goes first (least slack first, Dertouzos 1974).
What is late already goes last, in the order in which it became so. In turn, a backlog would make everybody behind it
late as well. Gateways keep their prompts so, and the twin predicts it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

BUSY_S = 0.5
"""Work that surely keeps a worker from falling idle before more can reach it."""
BUSY_SHARE = 0.3
"""Of the TTFT target, what a prompt may find before it at a prefill worker. What waits at a worker goes in order of
arrival, late or not: with 0.5 s before it under a target of 0.5 s, every prompt of a full pool would be late."""
REPORT_S = 0.1
"""Workers report so often: less work than for this long can be over before more reaches them."""
BEGIN_SHARE = 0.6
"""Of the target, by when a prompt shall have been computed if it were alone. The rest is for what it meets at the
worker: the step that runs there ends first. In simulated runs 0.6 misses a third less than 1, 0.8 a tenth less."""

T = TypeVar("T")


def busy_s(ttft_s: float | None) -> float:
    """A prefill worker with more work than this gets no more: prompts wait where any worker can still have them."""
    return BUSY_S if ttft_s is None else min(BUSY_S, max(REPORT_S, BUSY_SHARE * ttft_s))


class PromptOrder(Generic[T]):
    """Prompts that wait for a prefill worker. Without a target they go in order of arrival."""

    def __init__(self, ttft_s: float | None) -> None:
        self.ttft_s = ttft_s
        self._retried: deque[T] = deque()
        """Their clients have waited before: they go first."""
        self._in_time: list[tuple[float, int, T]] = []
        """(latest start, number, prompt), a heap"""
        self._late: deque[T] = deque()
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._retried) + len(self._in_time) + len(self._late)

    def __iter__(self) -> Iterator[T]:
        """In no order."""
        return itertools.chain(self._retried, (prompt for _, _, prompt in self._in_time), self._late)

    def push(self, prompt: T, arrival_s: float, own_s: float) -> None:
        """`own_s`: seconds that a worker computes it. What takes longer than its target waits as if it took none."""
        slack_s = 0.0
        if self.ttft_s is not None:
            by_s = BEGIN_SHARE * self.ttft_s
            slack_s = by_s - own_s if own_s <= by_s else by_s
        self._pushed += 1
        heapq.heappush(self._in_time, (arrival_s + slack_s, self._pushed, prompt))

    def push_front(self, prompt: T) -> None:
        self._retried.appendleft(prompt)

    def first(self, now: float) -> T:
        """Whose turn it is; there is one."""
        if self.ttft_s is not None:
            while self._in_time and self._in_time[0][0] < now:
                self._late.append(heapq.heappop(self._in_time)[2])
        if self._retried:
            return self._retried[0]
        return self._in_time[0][2] if self._in_time else self._late[0]

    def pop(self) -> T:
        """Take what `first` just said."""
        if self._retried:
            return self._retried.popleft()
        return heapq.heappop(self._in_time)[2] if self._in_time else self._late.popleft()

    def drop_late(self, is_over: Callable[[T], bool]) -> None:
        """Forget late prompts that nobody waits for any more: their turn may be far away."""
        self._late = deque(prompt for prompt in self._late if not is_over(prompt))
