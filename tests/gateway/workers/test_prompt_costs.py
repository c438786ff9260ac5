"""What a prompt costs is learned by its tokens and by the positions that they attend to."""

from __future__ import annotations

import random

import pytest

from baton_gateway.workers.prompt_costs import PromptCosts
from baton_wire.messages.measures import StepTiming
from baton_wire.rules.step_times import attended_pairs

TOKEN_S, PAIR_S, FIXED_S = 22e-6, 0.95e-9, 0.0075


def step(tokens: int, cached: int, rows: int = 0, scatter: float = 1.0) -> StepTiming:
    pairs = attended_pairs(tokens, cached)
    return StepTiming(0, tokens, pairs, rows, 0, scatter * (FIXED_S + TOKEN_S * tokens + PAIR_S * pairs))


def test_without_steps_or_with_steps_that_are_alike_nothing_is_known() -> None:
    costs = PromptCosts()
    assert costs.cost is None
    for _ in range(50):
        costs.observe(step(2_000, 20_000))
        costs.observe(step(1_000 + 10 * _, 0, rows=3))
    assert costs.cost is None


@pytest.mark.parametrize("seed", range(4))
def test_a_turn_behind_a_long_context_is_known_to_cost_twice_as_much_as_a_first_prompt(seed: int) -> None:
    dice, costs = random.Random(seed), PromptCosts()
    for _ in range(80):
        cached = dice.choice((0, 20_000, 35_000))
        costs.observe(step(dice.randint(1_000, 6_000), cached, scatter=dice.uniform(0.97, 1.03)))
    cost = costs.cost
    assert cost is not None
    assert cost.mean_token_s(5_000, 33_000) == pytest.approx(TOKEN_S + PAIR_S * 35_500, rel=0.15)
    assert cost.mean_token_s(5_000, 33_000) > 2 * cost.mean_token_s(1_000, 0)


def test_what_is_learned_stays_while_steps_are_alike() -> None:
    costs = PromptCosts()
    for number in range(20):
        costs.observe(step(1_000 + 300 * number, 30_000 * (number % 2)))
    for _ in range(300):
        costs.observe(step(2_000, 10_000))
    assert costs.cost is not None
    assert costs.cost.pair_s == pytest.approx(PAIR_S, rel=0.05)
    assert costs.cost.usual_pairs == pytest.approx(11_000, rel=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_no_estimate_is_negative_and_no_token_free_whatever_is_reported(seed: int) -> None:
    dice, costs = random.Random(seed), PromptCosts()
    for _ in range(300):
        pairs, seconds = dice.choice((0.0, 1e3, 1e9)), dice.choice((0.0, 9.0))
        costs.observe(StepTiming(0, dice.randint(1, 8_192), pairs, 0, 0, seconds))
        if costs.cost is not None:
            assert costs.cost.token_s > 0.0
            assert costs.cost.pair_s >= 0.0
