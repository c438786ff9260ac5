"""Time that another process may compute, counted by its processor time: on a busy machine a clock says nothing of it.

Where the machine does not tell the processor time, elapsed time counts.
"""

from __future__ import annotations

import time

STRETCH = 5.0
"""How many times its limit a process may take on a machine that is busy, ..."""
MAX_STRETCH_S = 30.0
"""... and how much beyond its limit."""
STOPPED = 0.01
"""A process that got less than this share of its limit since the last look is stopped rather than slow."""
_USED_UP = 0.9


def processor_s(pid: int) -> float | None:
    """Processor time of all threads of a process; None when it is gone or nobody knows (Linux tells it)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) answers
    except OSError:
        return None


class ProcessorAllowance:
    """Processor time that a process may use up, and how long that is waited for. Pure."""

    def __init__(self, limit_s: float, now: float, used_s: float | None) -> None:
        """`used_s`: its processor time at the beginning."""
        self._limit_s = limit_s
        self._until_s = now + min(limit_s * STRETCH, limit_s + MAX_STRETCH_S)
        self._before_s = used_s
        self._seen_s = 0.0
        self.is_used_up = False
        """It computed for as long as it may."""

    def more_s(self, now: float, used_s: float | None) -> float | None:
        """Until the next look; None: no longer."""
        if self._before_s is None or used_s is None:
            return None
        spent_s = used_s - self._before_s
        is_last = now >= self._until_s
        self.is_used_up = spent_s >= self._limit_s * (0.5 if is_last else _USED_UP)
        got_s, self._seen_s = spent_s - self._seen_s, spent_s
        if self.is_used_up or is_last or got_s < self._limit_s * STOPPED:
            return None
        return min(max(self._limit_s / 2, self._limit_s - spent_s), self._until_s - now)
