"""Which size was enough for the last half hour, by hand."""

from __future__ import annotations

import pytest

from baton_control.sizing.capacity import Mix
from baton_control.sizing.look_back import enough, with_served
from baton_control.sizing.readings import Lateness, PoolSeen
from baton_control.sizing.remembered import PoolMemory
from baton_control.sizing.request_shape import RequestShape
from baton_testing.sizing.builders import PerWorker, spec
from baton_wire.messages.values import Role

MIX = Mix((RequestShape(1000, 100),))
CALM, SPIKE = 4.0, 20.0
"""Requests per second; a worker does five."""


def remembered(*seen: tuple[int, float]) -> PoolMemory:
    """(workers that were routable, share of a hundred requests that were late) in each interval."""
    memory = PoolMemory()
    for routable, late in seen:
        memory = with_served(memory, PoolSeen(9, routable), Lateness(100, 100 * late))
    return memory


def found(memory: PoolMemory, rates: list[float], workers: int = 6) -> int:
    return enough(spec(), Role.PREFILL, memory, rates, 1, workers, MIX, PerWorker())


@pytest.mark.parametrize(("spikes", "wanted"), [(0, 1), (2, 1), (3, 2), (4, 3), (30, 4)])
def test_the_twin_says_which_size_keeps_the_percentile_over_all_loads(spikes: int, wanted: int) -> None:
    """One worker loses three quarters of a spike, two half of it: of two spikes 4.0 % of all requests, of three 5.9 and
    3.9 %, of four 5.1 % with two workers."""
    assert found(PoolMemory(), [CALM] * (180 - spikes) + [SPIKE] * spikes) == wanted


def test_a_size_with_which_clients_saw_half_of_the_allowed_misses_is_not_enough_nor_is_a_smaller_one() -> None:
    rates = [CALM] * 180
    assert found(remembered(*[(3, 0.02)] * 10), rates) == 1
    assert found(remembered(*[(3, 0.03)] * 10), rates) == 4
    assert found(remembered(*[(1, 0.03)] * 10, *[(3, 0.02)] * 10), rates) == 2


def test_who_was_late_behind_a_start_counts_for_those_who_served_before_it() -> None:
    spike = remembered(*[(1, 0.0)] * 6, (1, 0.9), (4, 0.9), (4, 0.5), *[(4, 0.0)] * 20)
    assert found(spike, [CALM] * 180) == 2, "four were never too few, one was"


def test_nothing_is_remembered_of_unknown_workers_or_unknown_clients() -> None:
    memory = remembered((2, 0.0))
    assert with_served(memory, PoolSeen(2, None), Lateness(10, 5.0)) is memory
    assert with_served(memory, PoolSeen(2, 2), None) is memory
