"""Jumps of the load: believed at once, unless those of the past were over before a worker could have helped."""

from __future__ import annotations

import numpy as np
import pytest

from baton_control.sizing.decision.forecast import _quantiles, _steps, _test, forecast, means

CALM, HIGH = [4.0] * 24, [12.0] * 6
"""Requests per second in buckets of ten seconds: four minutes, and a minute of burst."""


def test_the_first_jump_is_believed() -> None:
    ahead = forecast([*CALM, *CALM, *HIGH[:1]], 10.0, 150.0, 0.8)
    assert ahead.is_step
    assert ahead.mean == 12.0


def test_a_jump_is_not_believed_to_last_when_those_before_it_did_not() -> None:
    ahead = forecast([*CALM, *HIGH, *CALM, *HIGH[:1]], 10.0, 150.0, 0.8)
    assert not ahead.is_step
    assert ahead.mean < 8.0


def test_it_is_believed_where_a_worker_is_there_in_time() -> None:
    ahead = forecast([*CALM, *HIGH, *CALM, *HIGH[:1]], 10.0, 30.0, 0.8)
    assert ahead.is_step


def test_one_of_several_that_stayed_is_enough() -> None:
    short = [*CALM, *HIGH]
    stayed = [*CALM, *[12.0] * 30]
    assert forecast([*short, *stayed, *CALM, *HIGH[:2]], 10.0, 150.0, 0.8).is_step


def test_one_that_comes_again_while_a_worker_started_for_it_would_serve_is_believed() -> None:
    again = [*CALM, *HIGH, *CALM[:12], *HIGH]
    assert forecast([*again, *CALM, *CALM, *HIGH[:1]], 10.0, 150.0, 0.8).is_step
    assert not forecast([*again, *CALM, *CALM, *HIGH[:1]], 10.0, 90.0, 0.8).is_step, "calm for 90 to 180 s behind it"


def test_means_are_those_of_the_last_values_up_to_each_place() -> None:
    series = np.random.default_rng(1).uniform(0.0, 9.0, 40)
    for width in (1, 3, 18, 60):
        by_hand = [series[max(0, place + 1 - width) : place + 1].mean() for place in range(len(series))]
        assert means(series, 10.0, 10.0 * width).tolist() == pytest.approx(by_hand)
    assert means([3.0], 10.0, 600.0).tolist() == [3.0]


def test_predictors_are_tested_side_by_side_as_each_alone() -> None:
    random = np.random.default_rng(2)
    for places in (9, 180):
        actual, predicted, ahead = random.uniform(1.0, 9.0, places), random.uniform(1.0, 9.0, (4, places)), 7
        weights = random.uniform(0.1, 1.0, places - ahead)
        losses, highs = _test(predicted, actual, ahead, 0.8, weights)
        for loss, high, predictor in zip(losses, highs, predicted, strict=True):
            past, later = predictor[:-ahead], actual[ahead:]
            ratio, more = (by_hand(errors, weights, 0.8) for errors in (later / past, later - past))
            ratio, more = max(1.0, ratio), max(0.0, more)
            limit = np.minimum(past * ratio, past + more)
            pinball = np.where(later > limit, 0.8 * (later - limit), 0.2 * (limit - later))
            assert loss == pytest.approx(np.average(pinball, weights=weights))
            assert high == pytest.approx(min(predictor[-1] * ratio, predictor[-1] + more))


def by_hand(values: np.ndarray, weights: np.ndarray, quantile: float) -> float:
    """The least value that so much of the weight is at or under."""
    return float(min(value for value in values if weights[values <= value].sum() >= quantile * weights.sum()))


def test_a_quantile_of_equal_values_is_that_value() -> None:
    assert _quantiles(np.full((2, 5), 3.0), np.ones(5), 1.0).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("after", "is_step"), [(120.0, False), (199.0, False), (201.0, True)])
def test_a_rise_of_a_large_load_is_a_step_from_twice_on(after: float, is_step: bool) -> None:
    rates = np.array([100.0] * 6 + [after] * 6)
    assert (after - 100.0) > 4 * np.sqrt(2 * 100.0 / 30.0), "each of them is beyond chance"
    assert bool(_steps(rates, 10.0, 1.0).any()) is is_step
