"""Parked requests, which wait for a first pair of workers: their number and bytes are bounded, shared by tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from baton_gateway.requests.fair_eviction import Newcomer, TenantUsage, select_evictions
from baton_gateway.requests.live_request import LiveRequest, text_bytes


def select_parked_evictions(
    live: LiveRequest, parked: Sequence[LiveRequest], max_requests: int, max_bytes: int
) -> list[LiveRequest] | None:
    """The parked requests to evict so that the new one fits; None: it does not fit. `parked` is in order of arrival. A
    request that is alone always fits, however large.
    """
    if not parked:
        return [] if max_requests > 0 else None
    by_number = _select(live, parked, max_requests, lambda other: 1)
    if by_number is None:
        return None
    by_bytes = _select(live, parked, max_bytes, _bytes)
    if by_bytes is None:
        return None
    return list({other.ticket: other for other in by_number + by_bytes}.values())


def _bytes(live: LiveRequest) -> int:
    """The request's bytes, computed once because each new request counts all parked ones."""
    if live.parked_bytes is None:
        live.parked_bytes = text_bytes(live.request)
    return live.parked_bytes


def _select(
    live: LiveRequest, parked: Sequence[LiveRequest], limit: int, size: Callable[[LiveRequest], int]
) -> list[LiveRequest] | None:
    if size(live) + sum(map(size, parked)) <= limit:
        return []
    by_tenant: dict[str, list[LiveRequest]] = {}
    for other in reversed(parked):
        by_tenant.setdefault(other.tenant.name, []).append(other)
    own = sum(map(size, by_tenant.pop(live.tenant.name, [])))
    usages = {
        name: TenantUsage(others[0].tenant.weight, sum(map(size, others)), _places(others, size))
        for name, others in by_tenant.items()
    }
    newcomer = Newcomer(live.tenant.name, live.tenant.weight, size(live))
    tickets = select_evictions(limit, newcomer, usages, own)
    if tickets is None:
        return None
    by_ticket = {other.ticket: other for other in parked}
    return [by_ticket[ticket] for ticket in tickets]


def _places(newest: list[LiveRequest], size: Callable[[LiveRequest], int]) -> Iterator[tuple[int, int]]:
    """(ticket, size) of the requests that may be evicted: none that workers had, because its client may have read a
    part of its answer."""
    return ((other.ticket, size(other)) for other in newest if not other.life.attempts)
