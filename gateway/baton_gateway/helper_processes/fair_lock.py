"""One at a time, and nobody waits behind all that somebody else has brought."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from baton_gateway.errors import TurnTimeoutError

T = TypeVar("T")
STOP_S = 1.0


class FairTurns:
    """A lock that goes round among those who wait, by name; each one's own wait in order of arrival."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_taken = False
        self._taken_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()

    def held_s(self, now: float) -> float:
        """For how long the turn has been held; 0: nobody holds it."""
        return now - self._taken_at if self._is_taken else 0.0

    @asynccontextmanager
    async def turn(self, who: str, within_s: float) -> AsyncIterator[None]:
        """Hold the lock. May be cancelled while it waits. Raises TurnTimeoutError when no turn comes in time."""
        await self._take(who, within_s)
        try:
            yield
        finally:
            self._pass_on()

    async def run(self, who: str, work: Callable[[], Coroutine[Any, Any, T]], within_s: float) -> T:
        """The result of `work`, which holds the lock to its own end, also when its caller is cancelled meanwhile: else
        those who hang up would bring more and more work ahead of everybody else's. Raises TurnTimeoutError as `turn`.
        """
        await self._take(who, within_s)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(_work(work, result))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, result))
        return await result

    async def stop(self) -> None:
        """Cancel what holds the lock. Whoever waits goes on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    def _ended(self, result: asyncio.Future[Any], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pass_on()
        if not result.done():  # cancelled before it began
            result.cancel()

    async def _take(self, who: str, within_s: float) -> None:
        if self._is_taken:
            try:
                async with asyncio.timeout(within_s):
                    await self._wait(who)
            except TimeoutError:
                raise TurnTimeoutError(f"no turn came within {within_s:g} s") from None
        self._is_taken = True
        self._taken_at = time.monotonic()

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


async def _work(work: Callable[[], Coroutine[Any, Any, T]], result: asyncio.Future[T]) -> None:
    """Work whose result may be wanted no more."""
    try:
        value = await work()
    except asyncio.CancelledError:
        result.cancel()
        raise
    except BaseException as error:  # noqa: BLE001 (whatever it is, is for the client)
        if not result.done():
            result.set_exception(error)
    else:
        if not result.done():
            result.set_result(value)
