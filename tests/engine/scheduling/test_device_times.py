"""The time of steps is shared among requests by the tokens that were computed for them, and nothing is lost."""

from __future__ import annotations

import math

import pytest

from baton_engine.scheduling.events import Drawn, SequenceSpec
from baton_testing.engine.toy_engine import Engine, config, engine, key, spec

STEP_S = 0.001
"""The duration of each of the toy runner's steps."""


def run(running: Engine, *requests: SequenceSpec) -> None:
    for request in requests:
        running.scheduler.submit(request, running.now)
    running.run()


def reports(running: Engine, number: int) -> list[tuple[int, float]]:
    """(index of the token, seconds so far) of each report about a request."""
    drawn = [event for event in running.log if isinstance(event, Drawn) and event.key == key(number)]
    return [(event.first_index, event.device_s) for event in drawn if event.device_s is not None]


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("choices", [(0,), (0, 1, 2)])
def test_the_shares_of_all_requests_are_the_time_of_all_steps(ready: bool, choices: tuple[int, ...]) -> None:
    running = engine(is_ready=lambda: ready)
    run(running, spec(1, 30, max_tokens=20, choices=choices), spec(2, 50, max_tokens=3), spec(3, 9, max_tokens=11))
    shares = [max(seconds for _, seconds in reports(running, number)) for number in (1, 2, 3)]
    surplus = 0 if ready else 3  # rows that were launched before their sequence was known to have ended
    steps = len(running.plans())
    assert sum(shares) <= steps * STEP_S + 1e-9
    assert sum(shares) >= (steps - surplus * len(choices)) * STEP_S


def test_a_step_is_shared_by_the_tokens_that_it_computed_for_each_request() -> None:
    running = engine()
    run(running, spec(1, 10, max_tokens=1), spec(2, 20, max_tokens=1))
    assert len(running.plans()) == 1
    assert math.isclose(reports(running, 1)[0][1], STEP_S * 10 / 30)
    assert math.isclose(reports(running, 2)[0][1], STEP_S * 20 / 30)


def test_it_is_reported_with_the_first_two_of_sixteen_tokens_and_with_the_last_and_never_falls() -> None:
    running = engine()
    run(running, spec(1, 10, max_tokens=37))
    indexes, seconds = zip(*reports(running, 1), strict=True)
    assert indexes == (0, 1, 16, 17, 32, 33, 36)
    assert list(seconds) == sorted(seconds)


def test_each_device_of_a_worker_counts() -> None:
    shares = []
    for devices in (1, 4):
        running = engine(config(devices=devices))
        run(running, spec(1, 10, max_tokens=5))
        shares.append(reports(running, 1)[-1][1])
    assert math.isclose(shares[1], 4 * shares[0])


def test_tokens_that_the_prefix_cache_had_cost_no_time() -> None:
    running = engine()
    first = spec(1, 32, max_tokens=1)
    run(running, first)
    run(running, spec(2, (*first.tokens, 990, 991), max_tokens=1), spec(3, 20, max_tokens=1))
    assert len(running.plans()) == 2
    assert math.isclose(reports(running, 2)[0][1], STEP_S * 2 / 22)
    assert math.isclose(reports(running, 3)[0][1], STEP_S * 20 / 22)
