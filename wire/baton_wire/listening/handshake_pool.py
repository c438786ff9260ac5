"""Connections that have proven nothing yet: a bounded number, shared fairly between their sources. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

MAX_HANDSHAKES = 256
"""Handshakes at once. A handshake takes two round trips, so few are under way even when all gateways dial at once."""

Member = TypeVar("Member")


class HandshakePool(Generic[Member]):
    """A bounded set of handshakes. A newcomer to a full pool ends the oldest handshake of the source that has the most.

    So a newcomer always has a place, and strangers from one source end each other's handshakes and no others.

    >>> pool: HandshakePool[str] = HandshakePool(capacity=3)
    >>> [pool.enter(source, name) for source, name in (("10.0.0.9", "a"), ("10.0.0.9", "b"), ("10.0.0.2", "c"))]
    [None, None, None]
    >>> pool.enter("10.0.0.3", "d")
    'a'
    """

    def __init__(self, capacity: int = MAX_HANDSHAKES) -> None:
        self._capacity = capacity
        self._sources: OrderedDict[Member, str] = OrderedDict()
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._sources)

    def enter(self, source: str, member: Member) -> Member | None:
        """Add a handshake; returns the one that has to end for it."""
        self._sources[member] = source
        if len(self._sources) <= self._capacity:
            return None
        counts = Counter(self._sources.values())
        most = max(counts.values())
        evicted = next(member for member, source in self._sources.items() if counts[source] == most)
        del self._sources[evicted]
        return evicted

    def leave(self, member: Member) -> None:
        """Remove a handshake that ended; one that was evicted is gone already."""
        self._sources.pop(member, None)
