"""Bounds on a listener's connections: one on all of them, one for each address. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from baton_wire.listening.source_address import source_of


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`per_address` None: no bound of its own, for listeners that see all clients under one address."""

    total: int
    per_address: int | None = None


class ConnectionBook:
    """The connections of one listener, by address. Addresses of one host count together (`source_of`)."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._by_address: Counter[str] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @property
    def is_full(self) -> bool:
        return self._total >= self._limits.total

    def take(self, address: str) -> bool:
        """Count a new connection; False: its address has too many."""
        source = source_of(address)
        if self._limits.per_address is not None and self._by_address[source] >= self._limits.per_address:
            return False
        self._by_address[source] += 1
        self._total += 1
        return True

    def leave(self, address: str) -> None:
        source = source_of(address)
        self._total -= 1
        self._by_address[source] -= 1
        if not self._by_address[source]:
            del self._by_address[source]
