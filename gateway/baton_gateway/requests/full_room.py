"""Who gives way when a room that tenants share is full: the newest of whoever has the most in it for its weight. Pure.

A tenant alone may have all of it. A newcomer of a tenant with less then takes the place of one of the tenant with the
most, so that no tenant fills a room that others need (longest queue drop: Suter, Lakshman, Stiliadis and Choudhury,
1998, for buffers of routers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupant:
    """What one tenant has in the room."""

    weight: float
    size: int
    places: Iterable[tuple[int, int]]
    """(ticket, size) of each that may leave, the newest first; together at most `size`."""


def displaced(
    limit: int, tenant: str, weight: float, size: int, occupants: Mapping[str, Occupant], own: int = 0
) -> list[int] | None:
    """Tickets that leave the room so that `size` more of this tenant fit into `limit`, beside the `own` that it has.
    Empty: there is room. None: nobody has more for its weight, so the newcomer is the one too many.
    """
    sizes = {name: each.size for name, each in occupants.items() if name != tenant}
    places = {name: iter(occupants[name].places) for name in sizes}
    over = sum(sizes.values()) + own + size - limit
    claim = (own + size) / weight
    leaving: list[int] = []
    while over > 0:
        largest = max(sizes, key=lambda name: sizes[name] / occupants[name].weight, default=None)
        if largest is None or sizes[largest] / occupants[largest].weight <= claim:
            return None
        if (leaves := next(places[largest], None)) is None:
            del sizes[largest]
            continue
        ticket, place = leaves
        leaving.append(ticket)
        sizes[largest] -= place
        over -= place
    return leaving
