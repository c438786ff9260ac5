"""Log lines that strangers can cause: each kind once a second, with the number of those that were not written."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

EVERY_S = 1.0


class Complaints:
    """One per logger."""

    def __init__(
        self, log: logging.Logger, now: Callable[[], float] = time.monotonic, level: int = logging.ERROR
    ) -> None:
        self._log = log
        self._now = now
        self._level = level
        self._said: dict[str, tuple[float, int]] = {}
        """When a kind was last written, and how often it came since. Kinds are constants of the code."""

    def say(self, kind: str, detail: str = "", error: BaseException | None = None) -> None:
        """Write `kind: detail`, with the traceback of `error`, unless this kind was written within the last second."""
        now = self._now()
        last_s, unsaid = self._said.get(kind, (-EVERY_S, 0))
        if now - last_s < EVERY_S:
            self._said[kind] = (last_s, unsaid + 1)
            return
        self._said[kind] = (now, 0)
        more = f" (and {unsaid} more since the last such line)" if unsaid else ""
        self._log.log(self._level, "%s%s%s%s", kind, ": " if detail else "", detail, more, exc_info=error)


def tell_loop_errors(loop: asyncio.AbstractEventLoop, log: logging.Logger) -> None:
    """What no coroutine caught is said, by way of `Complaints`."""
    complaints = Complaints(log)

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        complaints.say("unexpected in the event loop", str(context.get("message")), error)

    loop.set_exception_handler(handle)
