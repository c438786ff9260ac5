"""One budget of bytes for all requests of a process, shared by whoever asks. Pure.

Nobody may hold more than is still free: one alone gets half, two a third each, and there is always some left for the
next (the dynamic threshold of Choudhury and Hahne, 1998, for buffers of switches).
"""

from __future__ import annotations

from collections import Counter


class MemoryBudget:
    """Bytes by holder, a tenant or an address."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._held: Counter[str] = Counter()
        self._used = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    def take(self, holder: str, size: int) -> bool:
        """Whether `holder` may hold so many bytes more; if not, nothing changes."""
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
    """What one request holds of a budget until it has ended. It refers to nothing of the request, so makes no cycle."""

    __slots__ = ("_budget", "_holder", "size")

    def __init__(self, budget: MemoryBudget, holder: str) -> None:
        self._budget = budget
        self._holder = holder
        self.size = 0

    def take(self, size: int) -> bool:
        """Whether the request may hold so many bytes more; if not, nothing changes."""
        if not self._budget.take(self._holder, size):
            return False
        self.size += size
        return True

    def give_back(self) -> None:
        """The request has ended."""
        self._budget.give_back(self._holder, self.size)
