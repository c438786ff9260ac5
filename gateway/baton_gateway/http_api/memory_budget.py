"""One budget of bytes for all requests of a process, shared among their holders. Pure.

No holder may have more than is still free: one alone gets half, two get a third each, and some is always left for the
next (the dynamic threshold of Choudhury and Hahne, 1998, for the buffers of switches).
"""

from __future__ import annotations

from collections import Counter


class MemoryBudget:
    """The bytes of each holder, which is a tenant or an address."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._held: Counter[str] = Counter()
        self._used = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    def take(self, holder: str, size: int) -> bool:
        """Take `size` more bytes for a holder. False: they are not free, and nothing changes."""
        left = self.total_bytes - self._used - size
        if self._held[holder] + size > left:
            return False
        self._held[holder] += size
        self._used += size
        return True

    def give_back(self, holder: str, size: int) -> None:
        self._used -= size
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]


class RequestMemory:
    """The bytes that one request holds until it has ended. It has no reference to the request, so makes no cycle."""

    __slots__ = ("_budget", "_holder", "size")

    def __init__(self, budget: MemoryBudget, holder: str) -> None:
        self._budget = budget
        self._holder = holder
        self.size = 0

    def take(self, size: int) -> bool:
        """Take `size` more bytes. False: they are not free, and nothing changes."""
        if not self._budget.take(self._holder, size):
            return False
        self.size += size
        return True

    def give_back(self) -> None:
        """Give all bytes back: the request has ended."""
        self._budget.give_back(self._holder, self.size)
