"""Repairs of a rig whose processes are killed: started again, until they run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any


class Repairs:
    """Repairs under way, one at a time for each name. A repair that failed may begin again, and is counted."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.begun = 0
        self.failures: Counter[str] = Counter()
        """By error."""

    def begin(self, name: str, repair: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begins a repair unless one of this name is under way."""
        if name in self._tasks:
            return
        self._tasks[name] = task = asyncio.create_task(repair())
        task.add_done_callback(lambda ended: self._ended(name, ended))
        self.begun += 1

    @property
    def are_open(self) -> bool:
        return bool(self._tasks)

    async def stop(self, within_s: float) -> None:
        """Awaits the repairs that are under way: what they start must be known before it can be stopped."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures[f"{name}: {type(error).__name__}: {str(error)[:200]}"] += 1
