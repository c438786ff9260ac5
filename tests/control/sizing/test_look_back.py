"""Which size is enough for the last half hour, by hand."""

from __future__ import annotations

import pytest

from baton_control.sizing.capacity import Mix
from baton_control.sizing.look_back import enough, seen_enough, share_late, with_served
from baton_control.sizing.readings import Lateness, PoolSeen
from baton_control.sizing.remembered import PoolMemory
from baton_control.sizing.request_shape import RequestShape
from baton_testing.sizing.builders import PerWorker, spec
from baton_wire.messages.values import Role

MIX = Mix((RequestShape(1000, 100),))
CALM, SPIKE = 4.0, 20.0
"""Requests per second; a worker does five."""


class Unreachable(PerWorker):
    """One prompt in ten is late even when it is alone."""

    def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float:
        return 0.9 * super().share_met(role, mix, rate_per_s, workers)

    def reachable_share(self, role: Role, mix: Mix) -> float:
        return 0.9 * super().reachable_share(role, mix)


def found(rates: list[float], least: int = 1, most: int = 6, sizer: PerWorker | None = None) -> int:
    return enough(Role.PREFILL, rates, least, most, MIX, sizer or PerWorker())


@pytest.mark.parametrize(("spikes", "wanted"), [(0, 1), (2, 1), (3, 2), (4, 3), (30, 4)])
@pytest.mark.parametrize("sizer", [PerWorker(), Unreachable()])
def test_the_twin_says_which_size_keeps_the_percentile_over_all_loads(
    spikes: int, wanted: int, sizer: PerWorker
) -> None:
    """One worker loses three quarters of a spike, two half of it: of two spikes 4.0 % of all requests, of three 5.9 and
    3.9 %, of four 5.1 % with two workers. Who is late even when alone changes nothing."""
    assert found([CALM] * (180 - spikes) + [SPIKE] * spikes, sizer=sizer) == wanted


def test_it_stays_between_the_least_and_the_most_that_are_asked_about() -> None:
    assert found([CALM] * 180, least=3) == 3
    assert found([SPIKE] * 180, most=2) == 2


def test_the_share_that_is_late_is_told_as_far_as_it_is_too_much() -> None:
    rates = [CALM] * 5 + [SPIKE]
    assert share_late(Role.PREFILL, rates, 2, MIX, PerWorker()) == pytest.approx(0.25)
    assert share_late(Role.PREFILL, [CALM] * 5 + [SPIKE] * 9, 2, MIX, PerWorker()) == pytest.approx(0.1)
    assert share_late(Role.PREFILL, [0.0], 2, MIX, PerWorker()) == 0.0


def remembered(*seen: tuple[int, float]) -> PoolMemory:
    """(workers that were routable, share of a hundred requests that were late) in each interval."""
    memory = PoolMemory()
    for routable, late in seen:
        memory = with_served(memory, PoolSeen(9, routable), Lateness(100, 100 * late))
    return memory


def least(memory: PoolMemory, sizer: PerWorker | None = None, workers: int = 6) -> int:
    return seen_enough(spec(), Role.PREFILL, memory, workers, MIX, sizer or PerWorker())


def test_a_size_with_which_clients_saw_too_many_of_all_requests_late_is_too_few_and_so_is_a_smaller_one() -> None:
    assert least(remembered(*[(3, 0.04)] * 20)) == 1
    assert least(remembered(*[(3, 0.06)] * 20)) == 4
    assert least(remembered(*[(3, 0.06)] * 20), workers=3) == 1, "nobody asks whether more are needed"
    assert least(remembered(*[(3, 0.06)] * 10, *[(4, 0.0)] * 10)) == 1, "of all requests it is less"
    assert least(remembered(*[(1, 0.3)] * 10, *[(3, 0.04)] * 20)) == 2
    assert least(remembered(*[(1, 0.06)] * 10, *[(3, 0.06)] * 10)) == 2, "who was late with three is so with one"


def test_of_prompts_that_are_late_even_when_alone_clients_may_see_as_many() -> None:
    assert least(remembered(*[(3, 0.12)] * 20)) == 4
    assert least(remembered(*[(3, 0.12)] * 20), Unreachable()) == 1


def test_who_was_late_behind_a_start_counts_for_those_who_served_before_it() -> None:
    spike = remembered(*[(1, 0.0)] * 6, (1, 0.9), (4, 0.9), (4, 0.5), *[(4, 0.0)] * 20)
    assert least(spike) == 2, "four were never too few, one was"


def test_nothing_is_remembered_of_unknown_workers_or_unknown_clients() -> None:
    memory = remembered((2, 0.0))
    assert with_served(memory, PoolSeen(2, None), Lateness(10, 5.0)) is memory
    assert with_served(memory, PoolSeen(2, 2), None) is memory
