"""Round robin among owners that have members waiting: one member of each owner, then again. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Member = TypeVar("Member")


class RoundRobin(Generic[Member]):
    """Waiting members by owner: a source address, a tenant. Members of one owner are taken in the order they came in.

    >>> waiting: RoundRobin[str] = RoundRobin()
    >>> for owner, member in (("a", "a1"), ("a", "a2"), ("b", "b1")):
    ...     waiting.add(owner, member)
    >>> [waiting.take() for _ in range(len(waiting))]
    ['a1', 'b1', 'a2']
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Member]] = OrderedDict()
        """The owner whose turn is next comes first. No queue is empty."""
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, owner: str, member: Member) -> None:
        self._queues.setdefault(owner, deque()).append(member)
        self._total += 1

    def first(self, owner: str | None = None) -> Member | None:
        """Return the member that `take` would remove."""
        queue = next(iter(self._queues.values()), None) if owner is None else self._queues.get(owner)
        return None if queue is None else queue[0]

    def take(self, owner: str | None = None) -> Member | None:
        """Remove the next member, of this owner if one is named; None: nothing waits. The owner's next turn is last."""
        if owner is None:
            owner = next(iter(self._queues), None)
        if owner is None or (queue := self._queues.pop(owner, None)) is None:
            return None
        member = queue.popleft()
        if queue:
            self._queues[owner] = queue
        self._total -= 1
        return member
