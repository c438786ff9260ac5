"""An asyncio event loop on virtual time: what sleeps an hour is awake at once, in the same order every time.

`loop.time()` is the virtual time in seconds. It moves only when nothing is ready to run, straight to the next timer.
Nothing here may wait for sockets, threads or processes. A run that waits for nothing at all is an error, not a hang.
"""

from __future__ import annotations

import asyncio
import datetime
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
Result = TypeVar("Result")


class DeadlockError(RuntimeError):
    """Everything waits, and no timer will wake anything."""


class _Selector(selectors.SelectSelector):
    """Instead of waiting, moves the clock."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise DeadlockError("nothing is ready and no timer is set")
            self.loop.skip(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self._virtual_s = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual_s

    def skip(self, seconds: float) -> None:
        """Move the clock, never backwards."""
        self._virtual_s += max(seconds, 0.0)


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on a fresh virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def wall(seconds: float) -> datetime.datetime:
    """The wall clock that belongs to a virtual time."""
    return START + datetime.timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    """That wall clock as Kubernetes writes it."""
    return wall(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
