"""A lock that is fair among clients: a client with many waiters holds up no client with few.

The next work begins as soon as the last one has ended. Its caller is not woken first: on a busy event loop the lock
would be idle until the caller's turn came, while all others wait for it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from baton_gateway.errors import TurnTimeoutError
from baton_wire.round_robin import RoundRobin

T = TypeVar("T")
STOP_S = 1.0


class _Turn(Generic[T]):
    """Work that waits for the lock or holds it, and its result."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.work = work
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.has_begun = False

    def mark_seen(self) -> None:
        """Mark an error as seen: its caller may have been cancelled at the same time."""
        if self.result.done() and not self.result.cancelled():
            self.result.exception()

    def expire(self, within_s: float) -> None:
        """Give up waiting."""
        if not self.has_begun and not self.result.done():
            self.result.set_exception(TurnTimeoutError(f"no turn came within {within_s:g} s"))


class FairLock:
    """A lock that goes round robin among waiting clients, by name; one client's waiters are served in order."""

    def __init__(self) -> None:
        self._waiting: RoundRobin[_Turn[Any]] = RoundRobin()
        self._is_held = False
        self._acquired_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def held_s(self, now: float) -> float:
        """Return for how long the lock has been held; 0: it is free."""
        return now - self._acquired_s if self._is_held else 0.0

    async def run(self, client: str, work: Callable[[], Coroutine[Any, Any, T]], within_s: float) -> T:
        """Run `work` while holding the lock, and return its result. The wait for the lock may be cancelled.

        The work holds the lock until it ends, even if its caller is cancelled: otherwise clients that hang up would
        bring ever more work ahead of the others'. Raises TurnTimeoutError when the lock is not free in time.
        """
        turn = _Turn(work)
        timer: asyncio.TimerHandle | None = None
        if self._is_held:
            self._waiting.add(client, turn)
            timer = asyncio.get_running_loop().call_later(within_s, turn.expire, within_s)
        else:
            self._begin(turn)
        try:
            return await turn.result
        finally:
            if timer is not None:
                timer.cancel()
            turn.mark_seen()

    async def stop(self) -> None:
        """Cancel the work that holds the lock, and what waits for it."""
        while (turn := self._waiting.take()) is not None:
            turn.result.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    def _begin(self, turn: _Turn[Any]) -> None:
        self._is_held, turn.has_begun = True, True
        self._acquired_s = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._carry_out(turn))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._finish, turn))

    async def _carry_out(self, turn: _Turn[T]) -> None:
        """Run work whose caller may have gone, and set its result."""
        result = turn.result
        try:
            value = await turn.work()
        except asyncio.CancelledError:
            result.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 (any error is passed on to the caller)
            if not result.done():
                result.set_exception(error)
        else:
            if not result.done():
                result.set_result(value)

    def _finish(self, turn: _Turn[Any], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not turn.result.done():  # cancelled before it began
            turn.result.cancel()
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin the first work of the next client whose caller still waits, if there is one."""
        while (turn := self._waiting.take()) is not None:
            if not turn.result.done():
                self._begin(turn)
                return
        self._is_held = False
