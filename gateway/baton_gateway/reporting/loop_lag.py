"""How late the event loop comes to what is due: whatever holds the loop makes everybody wait for so long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EVERY_S = 0.02
"""A hold that begins between two timers is seen shorter by at most this. A timer costs some 20 us."""


async def watch_loop_lag(observe: Callable[[float], None]) -> None:
    """Tell how late each of a row of timers fired, in seconds, for the life of the loop."""
    now = asyncio.get_running_loop().time
    while True:
        due_s = now() + EVERY_S
        await asyncio.sleep(EVERY_S)
        observe(max(0.0, now() - due_s))
