"""A lock that is fair among clients: a client with many waiters holds up no client with few."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from baton_gateway.errors import TurnTimeoutError
from baton_wire.round_robin import RoundRobin

T = TypeVar("T")
STOP_S = 1.0


class FairLock:
    """A lock that goes round robin among waiting clients, by name; one client's waiters are served in order."""

    def __init__(self) -> None:
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._is_held = False
        self._acquired_s = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()

    def held_s(self, now: float) -> float:
        """Return for how long the lock has been held; 0: it is free."""
        return now - self._acquired_s if self._is_held else 0.0

    @asynccontextmanager
    async def hold(self, client: str, within_s: float) -> AsyncIterator[None]:
        """Hold the lock. The wait may be cancelled. Raises TurnTimeoutError when the lock is not free in time."""
        await self._acquire(client, within_s)
        try:
            yield
        finally:
            self._release()

    async def run(self, client: str, work: Callable[[], Coroutine[Any, Any, T]], within_s: float) -> T:
        """Run `work` while holding the lock, and return its result.

        The work holds the lock until it ends, even if its caller is cancelled: otherwise clients that hang up would
        bring ever more work ahead of the others'. Raises TurnTimeoutError as `hold` does.
        """
        await self._acquire(client, within_s)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(_run_into(result, work))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._finish, result))
        return await result

    async def stop(self) -> None:
        """Cancel the work that holds the lock. Waiters go on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    def _finish(self, result: asyncio.Future[Any], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._release()
        if not result.done():  # cancelled before it began
            result.cancel()

    async def _acquire(self, client: str, within_s: float) -> None:
        if self._is_held:
            try:
                async with asyncio.timeout(within_s):
                    await self._wait(client)
            except TimeoutError:
                raise TurnTimeoutError(f"no turn came within {within_s:g} s") from None
        self._is_held = True
        self._acquired_s = time.monotonic()

    async def _wait(self, client: str) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # granted and cancelled at once: the next waiter gets it
                self._release()
            raise

    def _release(self) -> None:
        """Hand the lock to the next client's first waiter, if there is one."""
        while (granted := self._waiting.take()) is not None:
            if not granted.done():
                granted.set_result(None)
                return
        self._is_held = False


async def _run_into(result: asyncio.Future[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
    """Run work whose caller may have gone, and set its result."""
    try:
        value = await work()
    except asyncio.CancelledError:
        result.cancel()
        raise
    except BaseException as error:  # noqa: BLE001 (any error is passed on to the caller)
        if not result.done():
            result.set_exception(error)
    else:
        if not result.done():
            result.set_result(value)
