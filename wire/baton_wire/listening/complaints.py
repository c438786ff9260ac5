"""Log lines that strangers can cause: each kind once a second, with the number of lines that were left out."""

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
        self._written: dict[str, tuple[float, int]] = {}
        """When a kind was last written, and how often it occurred since. Kinds are constants of the code."""

    def say(self, kind: str, detail: str = "", error: BaseException | None = None) -> None:
        """Write `kind: detail`, with the traceback of `error`, unless this kind was written within the last second."""
        now = self._now()
        last_s, unwritten = self._written.get(kind, (-EVERY_S, 0))
        if now - last_s < EVERY_S:
            self._written[kind] = (last_s, unwritten + 1)
            return
        self._written[kind] = (now, 0)
        more = f" (and {unwritten} more since the last such line)" if unwritten else ""
        self._log.log(self._level, "%s%s%s%s", kind, ": " if detail else "", detail, more, exc_info=error)


def log_loop_errors(loop: asyncio.AbstractEventLoop, log: logging.Logger) -> None:
    """Log errors that no coroutine caught, through `Complaints`."""
    complaints = Complaints(log)

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        complaints.say("unexpected in the event loop", str(context.get("message")), error)

    loop.set_exception_handler(handle)
