"""Turns among the sources that have something waiting: one member of each, then again. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Member = TypeVar("Member")


class SourceTurns(Generic[Member]):
    """Waiting members by source. A source's own are taken in the order in which they came."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Member]] = OrderedDict()
        """The source whose turn is next comes first. No line is empty."""
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, source: str, member: Member) -> None:
        self._lines.setdefault(source, deque()).append(member)
        self._total += 1

    def take(self) -> Member | None:
        """Remove the next member; None: nothing waits."""
        if not self._lines:
            return None
        source, line = self._lines.popitem(last=False)
        member = line.popleft()
        if line:
            self._lines[source] = line
        self._total -= 1
        return member
