"""A limit on events that a peer may cause a few times, and that end its link when they do not stop."""

from __future__ import annotations

from collections import deque
from typing import Final

from baton_wire.errors import BadMessageError

MOST_BAD_MESSAGES: Final = 64
BAD_MESSAGES_S: Final = 10.0


class Flood:
    """Counts one kind of event of one link."""

    def __init__(
        self, what: str = "bad messages", most: int = MOST_BAD_MESSAGES, within_s: float = BAD_MESSAGES_S
    ) -> None:
        """`what` names the events; `most` of them are allowed within `within_s`."""
        self._what, self._most, self._within_s = what, most, within_s
        self._met_s: deque[float] = deque(maxlen=most)

    def met(self, now: float, detail: str = "") -> None:
        """Count one. Raises BadMessageError when it is one too many."""
        if len(self._met_s) == self._most and now - self._met_s[0] < self._within_s:
            last = f", the last one: {detail}" if detail else ""
            raise BadMessageError(f"more than {self._most} {self._what} within {self._within_s:g} s{last}")
        self._met_s.append(now)
