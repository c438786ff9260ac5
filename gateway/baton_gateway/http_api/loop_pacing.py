"""Paces how many requests the event loop begins in one round, in turns among their holders.

Parsing a request blocks the loop for a fraction of a millisecond, or for tens of milliseconds if it is large. A client
with many connections has many requests ready at once, and all other work would wait for them. So one round of the loop
begins requests for a few milliseconds only. The others wait here, and the holders take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from baton_gateway.errors import RefusedError, queue_timeout
from baton_wire.round_robin import RoundRobin

ROUND_S = 0.002
"""The time that beginning requests may take in one round of the loop."""
MAX_PER_ROUND = 64
FIRST_COST_S = 0.0005
"""The assumed cost of beginning a request, until costs have been measured."""
COST_DECAY = 0.8
"""The weight of the former cost when a round is measured."""
MAX_WAIT_S = 30.0


class LoopPacing:
    """Admits the requests of one process to its event loop."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._cost_s = FIRST_COST_S
        self._round_left = self._round_size()
        self._is_scheduled = False
        self._num_admitted = 0
        """Waiting requests that this round has admitted."""
        self._resumed_s: float | None = None
        """When the first admitted request went on."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def admit(self, holder: str) -> None:
        """Return when the holder may begin a request: at once, unless this round has begun enough requests.

        Raises RefusedError if the holder's turn does not come within 30 s.
        """
        if self._round_left > 0 and not self._waiting:
            self._round_left -= 1
            self._schedule_round()
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(holder, admitted)
        self._schedule_round()
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await admitted
        except TimeoutError:
            raise RefusedError(queue_timeout(1)) from None
        if self._resumed_s is None:
            self._resumed_s = self._clock()

    def _schedule_round(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        """Measure the last round and begin the next. Runs right after the requests that the last one admitted."""
        if self._resumed_s is not None and self._num_admitted:
            cost_s = (self._clock() - self._resumed_s) / self._num_admitted
            self._cost_s = COST_DECAY * self._cost_s + (1 - COST_DECAY) * cost_s
        self._resumed_s, self._num_admitted = None, 0
        self._round_left = self._round_size()
        while self._round_left > 0 and self._admit_next():
            self._round_left -= 1
            self._num_admitted += 1
        self._is_scheduled = False
        if self._num_admitted or self._waiting:
            self._schedule_round()

    def _round_size(self) -> int:
        if self._cost_s * MAX_PER_ROUND <= ROUND_S:  # also if the clock is too coarse to see the cost: 0
            return MAX_PER_ROUND
        return max(1, int(ROUND_S / self._cost_s))

    def _admit_next(self) -> bool:
        """Admit the first request of the next holder. False: no request waits."""
        while (admitted := self._waiting.take()) is not None:
            if not admitted.done():
                admitted.set_result(None)
                return True
        return False
