"""The lines of all batches that are at workers, or wait for room there: bounded together, and shared by tenants.

What one tenant may hold is a multiple of what it leaves free, so that another tenant always finds some: a line may take
ten minutes. Where several wait, the one that holds the fewest goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator

from baton_wire.rules.fair_share import WORKER_GREED, may_take


class LineSlots:
    """The slots of one process."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Lines that wait, by tenant."""

    @contextlib.asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot for a line of the tenant, once there is one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._grant()
        try:
            await turn
            yield
        finally:
            self._leave(tenant, turn)

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        """Give back a slot, or a place among those that wait."""
        if turn.done() and not turn.cancelled():
            self._free += 1
            self._held[tenant] -= 1
            self._held += Counter()
        elif (queue := self._waiting.get(tenant)) is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[tenant]
        self._grant()

    def _grant(self) -> None:
        """Give slots to lines that wait, as long as some tenant may have another one."""
        while self._free:
            able = [name for name in self._waiting if may_take(self._held[name], 1, self._free, WORKER_GREED)]
            if not able:
                return
            tenant = min(able, key=self._held.__getitem__)
            queue = self._waiting[tenant]
            turn = queue.popleft()
            if not queue:
                del self._waiting[tenant]
            if not turn.done():
                turn.set_result(None)
                self._free -= 1
                self._held[tenant] += 1
