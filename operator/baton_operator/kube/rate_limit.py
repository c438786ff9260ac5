"""How many calls the operator makes in a second."""

from __future__ import annotations

import asyncio


class RateLimit:
    """Spreads calls: `burst` at once, then `per_s` in each second, first come first served."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._gap_s, self._burst_s = 1.0 / per_s, burst / per_s
        self._next = 0.0

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - self._burst_s) + self._gap_s
        if self._next > now:
            await asyncio.sleep(self._next - now)
