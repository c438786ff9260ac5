"""Paces how many requests the event loop begins in one round, in turns among their holders.

Parsing a request holds the loop for a fraction of a millisecond, or for tens of them where it is large. A client with
many connections has many requests ready at once, and whatever anybody else needs waits behind all of them. So a round
of the loop begins only what takes a few milliseconds. The rest waits here, and every holder's turn comes round.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from baton_gateway.errors import RefusedError, queue_timeout

ROUND_S = 0.004
"""Of one round of the loop, what beginning requests may take."""
MOST_A_ROUND = 64
FIRST_COST_S = 0.0005
"""What beginning a request is taken to cost until some have been measured."""
FADING = 0.8
WITHIN_S = 30.0


class LoopPacing:
    """One for all requests of a process."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._cost_s = FIRST_COST_S
        self._left = self._most()
        self._has_round = False
        self._called = 0
        self._resumed_s: float | None = None
        """When the first of those called in this round went on."""

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def turn(self, holder: str) -> None:
        """Return when the holder may begin a request: at once unless this round has begun enough of them.

        Raises RefusedError when its turn does not come within 30 s.
        """
        if self._left > 0 and not self._waiting:
            self._left -= 1
            self._keep_round()
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(called)
        self._keep_round()
        try:
            async with asyncio.timeout(WITHIN_S):
                await called
        except TimeoutError:
            raise RefusedError(queue_timeout(1)) from None
        if self._resumed_s is None:
            self._resumed_s = self._clock()

    def _keep_round(self) -> None:
        if not self._has_round:
            self._has_round = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        """Runs right behind those that the last round called, so that the time since the first of them is theirs."""
        if self._resumed_s is not None and self._called:
            cost_s = (self._clock() - self._resumed_s) / self._called
            self._cost_s = FADING * self._cost_s + (1 - FADING) * cost_s
        self._resumed_s, self._called = None, 0
        self._left = self._most()
        while self._left > 0 and self._call_next():
            self._left -= 1
            self._called += 1
        self._has_round = False
        if self._called or self._waiting:
            self._keep_round()

    def _most(self) -> int:
        if self._cost_s * MOST_A_ROUND <= ROUND_S:  # also where it is too short to be seen: 0
            return MOST_A_ROUND
        return max(1, int(ROUND_S / self._cost_s))

    def _call_next(self) -> bool:
        """Call the next holder's first request. False: nobody waits."""
        while self._waiting:
            holder, line = self._waiting.popitem(last=False)
            called = line.popleft()
            if line:
                self._waiting[holder] = line
            if not called.done():
                called.set_result(None)
                return True
        return False
