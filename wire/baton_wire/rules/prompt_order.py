"""The order in which prompts wait at a gateway while every prefill worker is busy: by their target, late ones last.

Whose first token has to start soonest to come within the TTFT target goes first (least slack first, Dertouzos 1974).
What is late already goes last, in the order in which it became so. In turn, a backlog would make everybody behind it
late as well. Gateways keep their prompts so, and the twin predicts it.

When more waits than can be computed in time, somebody will be late. Then the longest prompts are set aside, as few as
have to be (Moore 1968, with Hodgson's rule): a long one would make several short ones late. They come behind all that
are in time, and back in line as soon as there is room for them.
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

PLAN_S = 0.02
"""So often at most it is reckoned who has to be set aside: that looks at all who are in time."""

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
        self._in_time: list[tuple[float, int, float, T]] = []
        """(latest start, number, own seconds, prompt), a heap"""
        self._set_aside: list[tuple[float, int, float, T]] = []
        """The same of those that would make more of the others late; in time themselves, yet."""
        self._late: deque[T] = deque()
        self._pushed = 0
        self._planned_s = float("-inf")

    def __len__(self) -> int:
        return len(self._retried) + len(self._in_time) + len(self._set_aside) + len(self._late)

    def __iter__(self) -> Iterator[T]:
        """In no order."""
        timed = itertools.chain(self._in_time, self._set_aside)
        return itertools.chain(self._retried, (prompt for _, _, _, prompt in timed), self._late)

    def push(self, prompt: T, arrival_s: float, own_s: float) -> None:
        """`own_s`: seconds that a worker computes it. What takes longer than its target waits as if it took none."""
        slack_s = 0.0
        if self.ttft_s is not None:
            by_s = BEGIN_SHARE * self.ttft_s
            slack_s = by_s - own_s if own_s <= by_s else by_s
        self._pushed += 1
        heapq.heappush(self._in_time, (arrival_s + slack_s, self._pushed, own_s, prompt))

    def push_front(self, prompt: T) -> None:
        self._retried.appendleft(prompt)

    def first(self, now: float, workers: float = 0.0) -> T:
        """Whose turn it is; there is one. `workers`: that compute them side by side, or a part of one; 0: nobody is set
        aside."""
        if self.ttft_s is not None:
            for timed in (self._in_time, self._set_aside):
                while timed and timed[0][0] < now:
                    self._late.append(heapq.heappop(timed)[3])
            if workers and now - self._planned_s >= PLAN_S:
                self._planned_s = now
                self._set_longest_aside(now, workers)
        if self._retried:
            return self._retried[0]
        timed = self._in_time or self._set_aside
        return timed[0][3] if timed else self._late[0]

    def pop(self) -> T:
        """Take what `first` just said."""
        if self._retried:
            return self._retried.popleft()
        timed = self._in_time or self._set_aside
        return heapq.heappop(timed)[3] if timed else self._late.popleft()

    def drop_late(self, is_over: Callable[[T], bool]) -> None:
        """Forget late prompts that nobody waits for any more: their turn may be far away."""
        self._late = deque(prompt for prompt in self._late if not is_over(prompt))

    def _set_longest_aside(self, now: float, workers: float) -> None:
        """In their order, as soon as one could not start in time behind those before it, the longest so far goes."""
        timed = self._in_time + self._set_aside
        if not timed or now + sum(own_s for _, _, own_s, _ in timed) / workers <= min(timed)[0]:
            self._in_time, self._set_aside = timed, []
            heapq.heapify(timed)
            return
        kept: list[tuple[float, int, tuple[float, int, float, T]]] = []
        """(-own seconds, -number, prompt), a heap: of the longest whoever came last"""
        aside, before_s = [], 0.0
        for each in sorted(timed):
            latest_s, number, own_s, _ = each
            heapq.heappush(kept, (-own_s, -number, each))
            if now + before_s / workers > latest_s:
                _, _, longest = heapq.heappop(kept)
                aside.append(longest)
                before_s -= longest[2]
            before_s += own_s
        self._in_time, self._set_aside = [each for _, _, each in kept], aside
        heapq.heapify(self._in_time)
        heapq.heapify(self._set_aside)
