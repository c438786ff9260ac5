"""Which size is enough for the last half hour, by hand."""

from __future__ import annotations

import pytest

from baton_control.sizing.capacity import Mix
from baton_control.sizing.look_back import enough, share_met
from baton_control.sizing.request_shape import RequestShape
from baton_testing.sizing.builders import PerWorker
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


def test_the_share_met_is_that_of_all_requests() -> None:
    rates = [CALM] * 5 + [SPIKE]
    assert share_met(Role.PREFILL, rates, 2, MIX, PerWorker()) == pytest.approx(0.75)
    assert share_met(Role.PREFILL, [0.0], 2, MIX, PerWorker()) == 0.0
