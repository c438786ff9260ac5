"""Log lines at level DEBUG that say when a hand-over reached each step, to see where its time goes.

Times are of CLOCK_MONOTONIC, which the processes of a machine share, so the lines of both workers can be put together.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

log = logging.getLogger(__name__)


class AttemptKey(Protocol):
    """The key of a hand-over, here or in the engine."""

    @property
    def request(self) -> bytes: ...

    @property
    def attempt(self) -> int: ...


def mark(key: AttemptKey, step: str) -> None:
    """Log that this attempt is at `step` now."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("step %s/%d %.6f %s", key.request.hex(), key.attempt, time.monotonic(), step)
