"""What pieces cost at a worker by its reports: the first tokens of a piece may cost far more than later ones."""

from __future__ import annotations

import pytest

from baton_gateway.workers.piece_costs import FORGOTTEN_S, PieceCosts
from baton_wire.messages.measures import StepTiming

ROWS_S, FIXED_S, TOKEN_S = 0.010, 0.008, 24e-6


def step(tokens: int, rows: int = 16) -> StepTiming:
    seconds = (ROWS_S if rows else 0.0) + TOKEN_S * tokens + (FIXED_S if tokens else 0.0)
    return StepTiming(0, tokens, 0.0, rows, 0, seconds)


def test_nothing_is_known_before_pieces_were_seen() -> None:
    costs = PieceCosts()
    assert (costs.token_s(0.0, forgets=True), costs.fixed_s, costs.recent_step_s(0.0)) == (None, 0.0, None)
    costs.observe([step(0), step(0), step(2_000, rows=0)], 0.1)
    assert costs.token_s(0.1, forgets=True) is None, "prompts alone are no pieces"
    assert costs.recent_step_s(0.1) == pytest.approx(ROWS_S)


def test_pieces_of_some_sizes_show_the_fixed_part_and_the_tokens() -> None:
    costs = PieceCosts()
    for number in range(300):
        costs.observe([step(2_000, rows=0), *(step(tokens) for tokens in (0, 64, 192, 0, 320))], 0.1 * number)
    token_s = costs.token_s(30.0, forgets=True)
    assert token_s == pytest.approx(TOKEN_S, rel=0.3)
    assert costs.fixed_s + 64 * (token_s or 0.0) == pytest.approx(FIXED_S + 64 * TOKEN_S, rel=0.1)


def test_a_cost_of_long_ago_counts_no_longer_where_prompts_alone_show_it_too() -> None:
    costs = PieceCosts()
    costs.observe([step(0), step(64), step(64)], 1.0)
    assert costs.token_s(1.0 + FORGOTTEN_S, forgets=True) is not None
    assert costs.token_s(1.1 + FORGOTTEN_S, forgets=True) is None
    assert costs.token_s(1.1 + FORGOTTEN_S, forgets=False) is not None


def test_recent_steps_count_pieces_and_fade() -> None:
    costs = PieceCosts()
    costs.observe([step(0), step(64)] * 4, 1.0)
    assert costs.recent_step_s(1.0) == pytest.approx((step(0).seconds + step(64).seconds) / 2)
    for number in range(40):
        costs.observe([step(0)] * 8, 1.1 + 0.1 * number)
    assert costs.recent_step_s(5.0) == pytest.approx(ROWS_S, rel=0.02)
    costs.observe([], 100.0)
    assert costs.recent_step_s(100.0) is None


def test_steps_of_a_worker_that_has_reported_nothing_since_are_not_recent() -> None:
    """A worker reports changes: one without work would be taken to be late until its next step."""
    costs = PieceCosts()
    costs.observe([step(64)] * 40, 1.0)
    assert costs.recent_step_s(3.0) == pytest.approx(step(64).seconds)
    assert costs.recent_step_s(60.0) is None
