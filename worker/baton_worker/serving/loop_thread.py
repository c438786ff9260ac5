"""A thread that runs an asyncio loop of its own: the transfer thread, so that moving KV never waits for gateway
traffic.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Owns one event loop. Started in the constructor; `stop` cancels what still runs in it and joins."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Run a plain function in the loop soon; safe from any thread, a no-op once the loop is closed."""
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:  # closed between the check and the call: the process is ending
                return

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine in the loop from another thread and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    async def run_from_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same for a caller that is itself in an event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def stop(self, timeout_s: float) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            self._loop.close()
