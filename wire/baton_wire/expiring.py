"""A bounded memory of keys that ended, or of messages that came before their time: each entry expires. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringMap(Generic[K, V]):
    """Insertion-ordered, every entry lives `lifetime_s`, the oldest goes first when there are more than `capacity`."""

    def __init__(self, lifetime_s: float, capacity: int) -> None:
        self._lifetime_s = lifetime_s
        self._capacity = capacity
        self._entries: dict[K, tuple[float, V]] = {}

    def put(self, key: K, value: V, now: float) -> list[tuple[K, V]]:
        """Remember; returns what had to go for it."""
        self._entries.pop(key, None)
        self._entries[key] = (now + self._lifetime_s, value)
        return self._drop_oldest(len(self._entries) - self._capacity)

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        return None if found is None else found[1]

    def pop(self, key: K) -> V | None:
        found = self._entries.pop(key, None)
        return None if found is None else found[1]

    def expire(self, now: float) -> list[tuple[K, V]]:
        """Forget what is too old and return it."""
        count = 0
        for expires, _ in self._entries.values():
            if expires > now:
                break
            count += 1
        return self._drop_oldest(count)

    def items(self) -> list[tuple[K, V]]:
        return [(key, value) for key, (_, value) in self._entries.items()]

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def _drop_oldest(self, count: int) -> list[tuple[K, V]]:
        keys = [key for key, _ in zip(self._entries, range(count), strict=False)]
        return [(key, self._entries.pop(key)[1]) for key in keys]
