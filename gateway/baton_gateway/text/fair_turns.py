"""One at a time, and nobody waits behind all that somebody else has brought."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """A lock that goes round among those who wait, by name; each one's own wait in order of arrival."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Hold the lock. May be cancelled while it waits."""
        if self._is_taken:
            await self._wait(who)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, who: str) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # called and cancelled at once: the turn is the next one's
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            who, line = self._waiting.popitem(last=False)
            called = line.popleft()
            if line:
                self._waiting[who] = line
            if not called.done():
                called.set_result(None)
                return
        self._is_taken = False
