"""Evictions where tenants share a room that is full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.requests.fair_eviction import Newcomer, TenantUsage, select_evictions

Places = dict[str, list[int]]
"""Sizes of each tenant's places, the oldest first; tickets are numbered through."""
NEW = Newcomer("new", 1.0, 1)


def evicted(limit: int, size: int, places: Places, own: int = 0, weights: dict[str, float] | None = None) -> object:
    weights = weights or {}
    tickets = iter(range(1, 10_000))
    numbered = {name: [(next(tickets), place) for place in sizes] for name, sizes in places.items()}
    usages = {
        name: TenantUsage(weights.get(name, 1.0), sum(size for _, size in of), reversed(of))
        for name, of in numbered.items()
    }
    return select_evictions(limit, Newcomer("new", weights.get("new", 1.0), size), usages, own)


@pytest.mark.parametrize(
    ("limit", "size", "places", "own", "weights", "tickets"),
    [
        (4, 1, {"a": [1, 1, 1]}, 0, {}, []),
        (4, 1, {"a": [1, 1, 1, 1]}, 0, {}, [4]),
        (4, 2, {"a": [1, 1, 1, 1]}, 0, {}, [4, 3]),
        (4, 1, {"a": [1, 1]}, 2, {}, None),
        (4, 1, {"a": [1], "b": [1, 1]}, 1, {}, None),
        (4, 1, {"a": [1], "b": [1, 1, 1]}, 0, {}, [4]),
        (4, 3, {"a": [1, 1], "b": [1, 1]}, 0, {}, None),
        (4, 1, {"a": [1, 1, 1]}, 1, {"new": 1.0, "a": 3.0}, None),
        (4, 1, {"a": [1, 1, 1]}, 1, {"new": 2.0}, [3]),
        (4, 9, {}, 0, {}, None),
        (4, 1, {"a": [4]}, 0, {}, [1]),
    ],
    ids=[
        *("there is room", "the newest of one", "two of one", "no tenant has more", "it would have as much"),
        *(
            "of the tenant with the most",
            "it is the large one",
            "weights",
            "weights of the newcomer",
            "too large",
            "a large one",
        ),
    ],
)
def test_the_newest_of_whoever_has_the_most_for_its_weight_gives_way(
    limit: int, size: int, places: Places, own: int, weights: dict[str, float], tickets: list[int] | None
) -> None:
    assert evicted(limit, size, places, own, weights) == tickets


def test_what_may_not_leave_stays_and_still_counts() -> None:
    fixed = TenantUsage(1.0, 4, iter(()))
    assert select_evictions(4, NEW, {"a": fixed}) is None
    assert select_evictions(6, NEW, {"a": fixed, "b": TenantUsage(1.0, 2, iter([(9, 1), (8, 1)]))}) == [9]


@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 3), min_size=1, max_size=6)),
)
def test_it_fits_afterwards_and_nobody_falls_below_the_newcomer_by_more_than_one_place(
    limit: int, size: int, places: Places
) -> None:
    tickets = evicted(limit, size, places)
    if not isinstance(tickets, list):
        return
    number, left = 0, {}
    for name, sizes in places.items():
        numbers = range(number + 1, number + 1 + len(sizes))
        number += len(sizes)
        left[name] = sum(size for ticket, size in zip(numbers, sizes, strict=True) if ticket not in tickets)
        if left[name] < sum(sizes):
            last = sizes[sorted(numbers).index(min(ticket for ticket in tickets if ticket in numbers))]
            assert left[name] + last > size
    assert sum(left.values()) + size <= limit
