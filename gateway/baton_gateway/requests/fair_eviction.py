"""Chooses evictions where a room that tenants share is full: the newest of the tenant with the most, by weight. Pure.

A tenant alone may use all of the room. A newcomer of a tenant with less then takes the place of a request of the tenant
with the most, so that no tenant fills a room that others need (longest queue drop: Suter, Lakshman, Stiliadis and
Choudhury, 1998, for buffers of routers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request that needs room."""

    tenant: str
    weight: float
    size: int


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """One tenant's use of the room."""

    weight: float
    size: int
    places: Iterable[tuple[int, int]]
    """(ticket, size) of each request that may be evicted, the newest first; together at most `size`."""


def select_evictions(
    limit: int, newcomer: Newcomer, usages: Mapping[str, TenantUsage], own: int = 0
) -> list[int] | None:
    """Tickets to evict so that the newcomer fits into `limit`, besides the `own` that its tenant has. Empty: there is
    room. None: no tenant has more for its weight, so the newcomer itself is refused.
    """
    sizes = {name: usage.size for name, usage in usages.items() if name != newcomer.tenant}
    places = {name: iter(usages[name].places) for name in sizes}
    over = sum(sizes.values()) + own + newcomer.size - limit
    claim = (own + newcomer.size) / newcomer.weight
    evicted: list[int] = []
    while over > 0:
        largest = max(sizes, key=lambda name: sizes[name] / usages[name].weight, default=None)
        if largest is None or sizes[largest] / usages[largest].weight <= claim:
            return None
        if (place := next(places[largest], None)) is None:
            del sizes[largest]
            continue
        ticket, size = place
        evicted.append(ticket)
        sizes[largest] -= size
        over -= size
    return evicted
