"""The position of a row in its thought, from the ids drawn: before it, inside it, or after it. Pure."""

from __future__ import annotations

import enum

from baton_wire.messages.values import Thought


class ThoughtStage(enum.Enum):
    """The part of the output that the next token belongs to."""

    OPENING = "opening"
    """The mark that opens a thought, or the answer."""
    INSIDE = "inside"
    """The thought, or the mark that closes it."""
    OVER = "over"
    """The answer."""


class ThoughtTracker:
    """Follows one row. A mark is complete when the last ids drawn are its ids."""

    def __init__(self, thought: Thought) -> None:
        self.stage = ThoughtStage.OPENING if thought.start else ThoughtStage.INSIDE
        self._start, self._end, self._max_tokens = thought.start, thought.end, thought.max_tokens
        self._opened = 0  # ids of `start` drawn
        self._drawn = 0  # ids since the thought began
        self._closed = 0  # ids of `end` that the last ones are

    @property
    def opening(self) -> int | None:
        """The id that continues the opening mark, while the mark may still come."""
        return self._start[self._opened] if self.stage is ThoughtStage.OPENING else None

    @property
    def forced(self) -> int | None:
        """The only id that may come next when the thought's budget is used up: it continues the closing mark."""
        is_used = self._max_tokens is not None and self._drawn >= self._max_tokens
        return self._end[self._closed] if self.stage is ThoughtStage.INSIDE and is_used else None

    def take(self, token: int) -> None:
        """Take the token that the row drew."""
        if self.stage is ThoughtStage.OPENING:
            if token != self._start[self._opened]:
                self.stage = ThoughtStage.OVER
                return
            self._opened += 1
            if self._opened == len(self._start):
                self.stage = ThoughtStage.INSIDE
        elif self.stage is ThoughtStage.INSIDE:
            self._drawn += 1
            self._closed = _overlap((*self._end[: self._closed], token), self._end)
            if self._closed == len(self._end):
                self.stage = ThoughtStage.OVER


def _overlap(last: tuple[int, ...], mark: tuple[int, ...]) -> int:
    """Length of the longest beginning of `mark` that `last` ends with."""
    return next(length for length in range(len(last), -1, -1) if last[len(last) - length :] == mark[:length])
