"""The room for requests that wait for a first pair of workers: a number of them and of bytes, shared by tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from baton_gateway.requests.full_room import Occupant, displaced
from baton_gateway.requests.live_request import LiveRequest, text_bytes


def parked_that_leave(
    live: LiveRequest, parked: Sequence[LiveRequest], max_requests: int, max_bytes: int
) -> list[LiveRequest] | None:
    """Who leaves so that the request finds room among `parked`, which are in order of arrival; None: it finds none.
    One alone always does, however large.
    """
    if not parked:
        return [] if max_requests > 0 else None
    by_number = _leaving(live, parked, max_requests, lambda other: 1)
    if by_number is None:
        return None
    by_bytes = _leaving(live, parked, max_bytes, _bytes)
    if by_bytes is None:
        return None
    return list({other.ticket: other for other in by_number + by_bytes}.values())


def _bytes(live: LiveRequest) -> int:
    """Computed once: whoever is parked is looked at with each newcomer."""
    if live.parked_bytes is None:
        live.parked_bytes = text_bytes(live.request)
    return live.parked_bytes


def _leaving(
    live: LiveRequest, parked: Sequence[LiveRequest], limit: int, size: Callable[[LiveRequest], int]
) -> list[LiveRequest] | None:
    if size(live) + sum(map(size, parked)) <= limit:
        return []
    by_tenant: dict[str, list[LiveRequest]] = {}
    for other in reversed(parked):
        by_tenant.setdefault(other.tenant.name, []).append(other)
    own = sum(map(size, by_tenant.pop(live.tenant.name, [])))
    occupants = {
        name: Occupant(others[0].tenant.weight, sum(map(size, others)), _places(others, size))
        for name, others in by_tenant.items()
    }
    tickets = displaced(limit, live.tenant.name, live.tenant.weight, size(live), occupants, own)
    if tickets is None:
        return None
    by_ticket = {other.ticket: other for other in parked}
    return [by_ticket[ticket] for ticket in tickets]


def _places(newest: list[LiveRequest], size: Callable[[LiveRequest], int]) -> Iterator[tuple[int, int]]:
    """What workers were told of before stays: its client may have a part of its answer."""
    return ((other.ticket, size(other)) for other in newest if not other.life.attempts)
