"""Messages of one peer that were refused one by one: few cost nothing but themselves, many end the link."""

from __future__ import annotations

from collections import deque
from typing import Final

from baton_wire.errors import BadFieldsError, BadMessageError

MOST: Final = 64
WITHIN_S: Final = 10.0


class BadFrames:
    """One per link."""

    def __init__(self) -> None:
        self._met_s: deque[float] = deque(maxlen=MOST)
        self.count = 0

    def met(self, refusal: BadFieldsError, now: float) -> None:
        """Count a message that was refused. Raises BadMessageError when too many came: the peer floods this process."""
        self.count += 1
        if len(self._met_s) == MOST and now - self._met_s[0] < WITHIN_S:
            raise BadMessageError(f"more than {MOST} bad messages within {WITHIN_S:g} s, the last one: {refusal}")
        self._met_s.append(now)
