"""Limits on how long another process may compute, measured in processor time: on a busy machine elapsed time misleads.

Where the operating system does not report processor time, elapsed time counts.
"""

from __future__ import annotations

import time

STRETCH = 5.0
"""On a busy machine a process may take this many times its limit in elapsed time, ..."""
MAX_STRETCH_S = 30.0
"""... but no more than this beyond its limit."""
STOPPED = 0.01
"""A process that got less than this share of its limit since the last check is stopped rather than slow."""
_USED_UP = 0.9


def processor_s(pid: int) -> float | None:
    """Return the processor time of all threads of a process; None: the process has ended, or this is not Linux."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the id that clock_getcpuclockid(3) returns
    except OSError:
        return None


class ProcessorAllowance:
    """The processor time that a process may use, and the elapsed time that it may take for that. Pure."""

    def __init__(self, limit_s: float, now: float, used_s: float | None) -> None:
        """`used_s`: the process's processor time at the start."""
        self._limit_s = limit_s
        self._until_s = now + min(limit_s * STRETCH, limit_s + MAX_STRETCH_S)
        self._before_s = used_s
        self._seen_s = 0.0
        self.is_used_up = False
        """True if the process has used all of its processor time."""

    def next_check_s(self, now: float, used_s: float | None) -> float | None:
        """Return the time until the next check; None: the process is out of time."""
        if self._before_s is None or used_s is None:
            return None
        spent_s = used_s - self._before_s
        is_last = now >= self._until_s
        self.is_used_up = spent_s >= self._limit_s * (0.5 if is_last else _USED_UP)
        got_s, self._seen_s = spent_s - self._seen_s, spent_s
        if self.is_used_up or is_last or got_s < self._limit_s * STOPPED:
            return None
        return min(max(self._limit_s / 2, self._limit_s - spent_s), self._until_s - now)
