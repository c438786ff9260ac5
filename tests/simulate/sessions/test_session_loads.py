"""Loads of sessions: the same for the same seed, prefixes as planned, and an ideal that no order changes."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.errors import ManifestError
from baton_simulate.sessions.hash_traces import hash_trace
from baton_simulate.sessions.session_generator import generated_load
from baton_simulate.sessions.session_load import IdealCache, SessionLoad, SessionTurn, ideal_cached_tokens
from baton_simulate.sessions.session_shapes import SHAPES, SessionShape, drawn_shape
from baton_simulate.sessions.turn_order import LoopLimits, TurnOrder


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


def test_agents_send_64k_tokens_get_400_and_have_sent_nine_tenths_of_them_before() -> None:
    for seed in range(5):
        load = generated_load(SHAPES["agents"], seed, "agents")
        assert mean([turn.prompt_tokens for turn in load.turns]) == pytest.approx(64_000, rel=0.08)
        assert mean([turn.output_tokens for turn in load.turns]) == pytest.approx(400, rel=0.08)
        assert sum(ideal_cached_tokens(load)) / load.prompt_tokens == pytest.approx(0.9, abs=0.02)
        assert max(turn.prompt_tokens for turn in load.turns) < 131_072


@pytest.mark.parametrize("shape", [*SHAPES.values(), *map(drawn_shape, range(30))])
def test_a_seed_is_a_whole_load_whose_turns_come_after_what_they_wait_for(shape: SessionShape) -> None:
    load = generated_load(shape, 3, "x")
    assert load == generated_load(shape, 3, "x")
    assert load != generated_load(shape, 4, "x")
    assert load.sessions == shape.sessions
    for place, turn in enumerate(load.turns):
        assert all(before < place and load.turns[before].session == turn.session for before in turn.after)
        assert turn.output_tokens >= 1
        assert all(tokens >= 1 for _, tokens in turn.prompt)
    assert max(turn.prompt_tokens for turn in load.turns) < 131_072


def test_numbers_draw_shapes_that_differ() -> None:
    assert len({drawn_shape(number) for number in range(50)}) == 50
    assert drawn_shape(7) == drawn_shape(7)


@given(st.integers(0, 60), st.randoms(use_true_random=False))
def test_the_ideal_of_a_load_is_the_same_in_any_order(number: int, dice: random.Random) -> None:
    load = generated_load(drawn_shape(number), number, "x")
    load = SessionLoad("x", load.turns[:60])
    order = list(range(len(load.turns)))
    dice.shuffle(order)
    assert sum(ideal_cached_tokens(load, order)) == pytest.approx(sum(ideal_cached_tokens(load)), abs=len(order))


def test_an_ideal_cache_finds_a_prefix_to_the_token_and_computes_the_last_one_again() -> None:
    cache = IdealCache()
    assert cache.add([(1, 100), (2, 50)]) == 0
    assert cache.add([(1, 100), (2, 50)]) == 149
    assert cache.add([(1, 100), (2, 80), (3, 10)]) == 150
    assert cache.add([(1, 100), (2, 60)]) == 159
    assert cache.add([(1, 40)]) == 39
    assert cache.add([(1, 100), (4, 80)]) == 100
    assert cache.add([(2, 50), (1, 100)]) == 0
    assert cache.add([(1, 40), (2, 80)]) == 40, "after 40 tokens of 1 the others had more of 1"


def test_branches_go_back_and_sub_agents_begin_with_their_parents_prompt() -> None:
    branching = generated_load(SHAPES["branching"], 1, "x")
    back = [
        turn for turn in branching.turns if turn.after and turn.prompt[:-2] != branching.turns[turn.after[0]].prompt
    ]
    assert back, "some turn continues from an earlier one than it waits for"
    agents = generated_load(SHAPES["subagents"], 1, "x")
    waiting = [turn for turn in agents.turns if len(turn.after) > 1]
    assert waiting, "some turn waits for several sub-agents"
    for turn in waiting:
        firsts = [place for place in range(len(agents.turns)) if place in turn.after]
        common = {agents.turns[place].prompt[: len(turn.prompt) - 1] for place in firsts}
        assert common == {turn.prompt[:-1]}, "they have the parent's prompt and answer in common"


def row(at_ms: int, tokens: int, ids: list[int], output: int = 5) -> str:
    return json.dumps({"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids})


def test_a_trace_is_replayed_with_its_own_prefixes_and_sessions() -> None:
    load = hash_trace(
        [
            row(0, 1100, [1, 2, 3]),
            row(500, 600, [1, 9]),
            row(9000, 1700, [1, 2, 4, 5]),
            row(9500, 2100, [1, 2, 4, 6, 7]),
        ],
        "t",
    )
    assert [turn.session for turn in load.turns] == [0, 1, 0, 0]
    assert [turn.after for turn in load.turns] == [(), (), (0,), (2,)]
    assert [turn.at_s for turn in load.turns] == [0.0, 0.5, 9.0, 9.5]
    assert [turn.prompt_tokens for turn in load.turns] == [1100, 600, 1700, 2100]
    assert ideal_cached_tokens(load) == [0, 512, 1024, 1536]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{}", "timestamp"),
        ('{"timestamp": 0, "input_length": 10, "output_length": 1}', "hash_ids"),
        (row(0, 2000, [1, 2]), "has 2 hash_ids for 2000 tokens"),
        (row(0, 0, []), "out of bounds"),
        (row(-5, 10, [1]), "out of bounds"),
        ("[1]", "is not a Mooncake request"),
        (row(0, 10, ["x"]), "is not a Mooncake request"),  # type: ignore[list-item]
    ],
)
def test_a_row_that_is_no_request_is_named_by_its_line(line: str, complaint: str) -> None:
    with pytest.raises(ManifestError, match="line 2") as caught:
        hash_trace([row(0, 10, [1]), line], "t")
    assert complaint in str(caught.value)


def test_turns_of_a_load_wait_for_earlier_ones_alone() -> None:
    with pytest.raises(AssertionError):
        SessionLoad("x", (SessionTurn(0, ((1, 1),), 1, after=(0,)),))


def test_sessions_that_would_begin_after_the_end_leave_their_users_to_the_next_ones() -> None:
    """Two of four sessions would begin too late: two of three users have none at all, or one that another left."""
    starts_s = (50.0, 0.0, 60.0, 1.0)
    turns = tuple(SessionTurn(number, ((number, 100),), 5, at_s=at_s) for number, at_s in enumerate(starts_s))
    order = TurnOrder(SessionLoad("x", turns), LoopLimits(users=3, duration_s=10.0))
    assert sorted(order.begin()) == [(0.0, 1), (1.0, 3)]
    for place in (1, 3):
        assert order.may_send(place)
        assert order.ended(place, 2.0) == []
    assert order.is_over
