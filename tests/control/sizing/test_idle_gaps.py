"""The quiet time before sleep, by money: against what every other quiet time would have cost."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.sizing.decision.forecast import MIN_TESTS
from baton_control.sizing.decision.idle_gaps import (
    KEPT,
    Gap,
    IdleGaps,
    Prices,
    counted,
    ended,
    quiet_time,
)

HOUR_S = 3600.0
LEAST_S = 60.0
PRICES = Prices(awake_per_hour=7.2, miss=0.05)
"""A second awake costs 0.002: a wake that makes 12 requests late is even with 300 s."""
_gaps = st.lists(st.builds(Gap, st.floats(LEAST_S, 20 * HOUR_S), st.floats(1, 500)), min_size=MIN_TESTS, max_size=KEPT)
_prices = st.builds(Prices, st.floats(0.01, 500), st.floats(0.0001, 50))


def cost(gaps: list[Gap], prices: Prices, quiet_s: float) -> float:
    """By gap, by the words of the module: awake until asleep, and who is late then."""
    total = 0.0
    for gap in gaps:
        if gap.seconds > quiet_s:
            total += quiet_s / HOUR_S * prices.awake_per_hour + gap.late * prices.miss
        else:
            total += gap.seconds / HOUR_S * prices.awake_per_hour
    return total


@given(gaps=_gaps, prices=_prices, other_s=st.floats(LEAST_S, 30 * HOUR_S))
def test_no_other_quiet_time_would_have_cost_less(gaps: list[Gap], prices: Prices, other_s: float) -> None:
    chosen = quiet_time(IdleGaps(tuple(gaps)), prices, 1.0, LEAST_S).seconds
    assert chosen >= LEAST_S
    assert cost(gaps, prices, chosen) <= cost(gaps, prices, other_s) * (1 + 1e-9)


@given(gap_s=st.floats(LEAST_S, 1e6), late=st.floats(1, 1e4), prices=_prices)
def test_without_history_it_never_costs_more_than_twice_what_knowing_the_gap_would(
    gap_s: float, late: float, prices: Prices
) -> None:
    chosen = quiet_time(IdleGaps(busy_per_s=late, busy=1), prices, 1.0, LEAST_S).seconds
    gap = [Gap(gap_s, late)]
    best = min(cost(gap, prices, LEAST_S), cost(gap, prices, inf))
    assert cost(gap, prices, chosen) <= 2 * best * (1 + 1e-9)


@given(gaps=_gaps, prices=_prices, times=st.floats(1.1, 50))
def test_the_dearer_a_miss_the_longer_pools_stay_awake(gaps: list[Gap], prices: Prices, times: float) -> None:
    kept = IdleGaps(tuple(gaps))
    dearer = Prices(prices.awake_per_hour, prices.miss * times)
    assert quiet_time(kept, dearer, 1.0, LEAST_S).seconds >= quiet_time(kept, prices, 1.0, LEAST_S).seconds * (1 - 1e-9)


@pytest.mark.parametrize(
    ("gaps", "late", "seconds"),  # of gaps, requests behind each, until sleep
    [
        ([], 12.0, 300.0),
        ([], 1.0, 60.0),
        ([120.0] * 20 + [8 * HOUR_S] * 2, 12.0, 120.0),
        ([1800.0] * 10, 12.0, 60.0),
        ([100.0] * 10, 12.0, 300.0),
        ([8 * HOUR_S], 12.0, 300.0),
    ],
)
def test_it_stays_awake_through_the_gaps_that_are_cheaper_awake(gaps: list[float], late: float, seconds: float) -> None:
    kept = IdleGaps(tuple(Gap(each, late) for each in gaps), busy_per_s=late, busy=1)
    assert quiet_time(kept, PRICES, 1.0, LEAST_S).seconds == pytest.approx(seconds)


def test_the_reason_has_both_sums() -> None:
    kept = IdleGaps(tuple(Gap(each, 12.0) for each in (*[120.0] * 20, *[8 * HOUR_S] * 2)))
    assert quiet_time(kept, PRICES, 1.0, LEAST_S).why == (
        "over 22 gaps, 120 s awake would have cost 5.28 and 1.2 for late requests, never sleeping 120"
    )
    assert quiet_time(IdleGaps(busy_per_s=0.2, busy=9), PRICES, 60.0, LEAST_S).why == (
        "7.2 an hour awake, 0.6 for the 12 that a wake makes late are even after 300 s, by 0 gaps"
    )


def test_pools_that_cost_nothing_stay_awake() -> None:
    for kept in ((), (Gap(600.0, 3.0),) * MIN_TESTS):
        assert quiet_time(IdleGaps(kept), Prices(0.0, 0.05), 1.0, LEAST_S).seconds == inf


def test_who_is_late_is_counted_until_a_worker_could_have_been_there() -> None:
    gaps = ended(IdleGaps(), 600.0, since_s=1000.0, start_s=25.0, least_s=LEAST_S)
    for now in (1010.0, 1020.0, 1030.0, 1040.0):
        gaps = counted(gaps, 4, 10.0, now)
    assert gaps.kept == (Gap(600.0, pytest.approx(4 + 4 + 2)),)  # type: ignore[arg-type]
    assert gaps.end is None
    assert gaps.busy_per_s == pytest.approx(0.4)


def test_short_gaps_are_no_gaps_and_old_ones_are_forgotten() -> None:
    gaps = IdleGaps()
    for place in range(KEPT + 10):
        gaps = ended(gaps, 30.0, 0.0, 25.0, LEAST_S)
        gaps = counted(ended(gaps, 100.0 + place, 0.0, 25.0, LEAST_S), 1, 10.0, 30.0)
    assert len(gaps.kept) == KEPT
    assert gaps.kept[-1].seconds == 100.0 + KEPT + 9
    assert min(gap.seconds for gap in gaps.kept) == 110.0
