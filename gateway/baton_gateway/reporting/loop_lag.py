"""The event loop's lag: how late its timers fire. Code that blocks the loop delays every request by that time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EVERY_S = 0.02
"""A block that begins between two timers is measured shorter by at most this. A timer costs some 20 us."""


async def watch_loop_lag(observe: Callable[[float], None]) -> None:
    """Observe how many seconds late each of a series of timers fires, for the life of the loop."""
    now = asyncio.get_running_loop().time
    while True:
        due_s = now() + EVERY_S
        await asyncio.sleep(EVERY_S)
        observe(max(0.0, now() - due_s))
