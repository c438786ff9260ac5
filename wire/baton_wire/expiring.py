"""A bounded map whose entries expire: keys that ended, messages that came before their request. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringMap(Generic[K, V]):
    """A map in insertion order. Every entry lives `lifetime_s`; over `capacity` entries the oldest goes first.

    >>> ended: ExpiringMap[str, int] = ExpiringMap(lifetime_s=10.0, capacity=2)
    >>> ended.put("a", 1, now=0.0), ended.put("b", 2, now=4.0)
    ([], [])
    >>> ended.put("c", 3, now=5.0)
    [('a', 1)]
    >>> ended.expire(now=14.5)
    [('b', 2)]
    >>> ended.get("c"), "b" in ended
    (3, False)
    """

    def __init__(self, lifetime_s: float, capacity: int) -> None:
        self._lifetime_s = lifetime_s
        self._capacity = capacity
        self._entries: dict[K, tuple[float, V]] = {}

    def put(self, key: K, value: V, now: float) -> list[tuple[K, V]]:
        """Add or replace an entry; returns the entries that were dropped for it."""
        self._entries.pop(key, None)
        self._entries[key] = (now + self._lifetime_s, value)
        return self._drop_oldest(len(self._entries) - self._capacity)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[1]

    def expire(self, now: float) -> list[tuple[K, V]]:
        """Drop the expired entries and return them."""
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
