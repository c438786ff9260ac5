"""Threads for one kind of work of tenants: apart from those of other work, and a few at most for one tenant.

A disk that hangs keeps its threads, and a tenant that brings much waits for its own: the others come after one piece of
its work each. Work that has begun is not interrupted: where its caller leaves, what it returns is thrown away.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TenantThreads:
    """The threads for one kind of work."""

    def __init__(self, name: str, threads: int = 1, of_tenant: int = 1) -> None:
        """`of_tenant`: the most that one tenant has at once. The event loop shares the interpreter with them."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._of_tenant = of_tenant
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        """Callers of each tenant that wait, or whose work is not done."""

    async def run(
        self, tenant: str, work: Callable[[*Ts], T], *arguments: *Ts, undo: Callable[[T], object] | None = None
    ) -> T:
        """Do work for a tenant. `undo`: frees what the work returns where the caller was cancelled meanwhile."""
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(self._of_tenant))
        self._users[tenant] += 1
        try:
            await turns.acquire()
        except BaseException:
            self._leave(tenant)
            raise
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        future.add_done_callback(partial(self._done, tenant, turns))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if undo is not None:
                future.add_done_callback(partial(self._undo, undo))
            raise

    async def free(self, work: Callable[[], object]) -> None:
        """Do work that frees something: without a turn, and whether its caller stays or not."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, work))

    def _done(self, tenant: str, turns: asyncio.Semaphore, future: asyncio.Future[Any]) -> None:
        turns.release()
        self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        self._users[tenant] -= 1
        if not self._users[tenant]:
            del self._users[tenant], self._turns[tenant]

    def _undo(self, undo: Callable[[T], object], future: asyncio.Future[T]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._pool.submit(undo, future.result())
