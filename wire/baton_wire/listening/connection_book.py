"""Bounds on a listener's connections: one on all of them, one for each address, and for each owner. Pure.

An owner is whom connections seem to belong to, such as a tenant. It may have eight times as many connections as there
are places free. So one owner alone has 8 of 9 places, two have 8 of 17 each, and one with few always finds a place
(dynamic thresholds, Choudhury and Hahne 1998).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from baton_wire.listening.source_address import source_of

K = TypeVar("K")
OWNER_PLACES = 8
"""Connections that an owner may have for each free place."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`per_address` None: no bound of its own, for listeners that see all clients under one address."""

    total: int
    per_address: int | None = None


class ConnectionPlace(NamedTuple):
    """The address and the owner that a connection counts for. `owner` None: unknown."""

    address: str
    owner: str | None = None

    @property
    def source(self) -> str:
        return source_of(self.address)


class ConnectionBook:
    """The connections of one listener, by address. Addresses of one host count together (`source_of`)."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._by_address: Counter[str] = Counter()
        self._by_owner: Counter[str] = Counter()
        self._by_both: Counter[tuple[str, str]] = Counter()
        """Connections by address and owner."""
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @property
    def is_full(self) -> bool:
        return self._total >= self._limits.total

    def is_full_for(self, address: str) -> bool:
        """Return whether an address has as many connections as one may have."""
        most = self._limits.per_address
        return most is not None and self._by_address.get(source_of(address), 0) >= most

    def is_over_share(self, place: ConnectionPlace) -> bool:
        """Return whether an owner has as many connections as it may have next to others, here or at its address."""
        limits, owner = self._limits, place.owner
        if owner is None:
            return False
        if self._by_owner.get(owner, 0) >= OWNER_PLACES * (limits.total - self._total):
            return True
        if limits.per_address is None:
            return False
        source = place.source
        free = limits.per_address - self._by_address.get(source, 0)
        return self._by_both.get((source, owner), 0) >= OWNER_PLACES * free

    def take(self, place: ConnectionPlace) -> bool:
        """Count a new connection; False: there are too many, or too many of its address or owner."""
        if self.is_full or self.is_full_for(place.address) or self.is_over_share(place):
            return False
        self._count(place)
        return True

    def move(self, place: ConnectionPlace, owner: str | None) -> ConnectionPlace:
        """Count a connection for another owner from now on, if that has not too many; returns its place."""
        moved = ConnectionPlace(place.address, owner)
        if moved == place or self.is_over_share(moved):
            return place
        self.leave(place)
        self._count(moved)
        return moved

    def _count(self, place: ConnectionPlace) -> None:
        source = place.source
        self._total += 1
        self._by_address[source] += 1
        if place.owner is not None:
            self._by_owner[place.owner] += 1
            self._by_both[source, place.owner] += 1

    def leave(self, place: ConnectionPlace) -> None:
        source = place.source
        self._total -= 1
        _uncount(self._by_address, source)
        if place.owner is not None:
            _uncount(self._by_owner, place.owner)
            _uncount(self._by_both, (source, place.owner))


def _uncount(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
