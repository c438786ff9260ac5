"""Gateways that hold prompts for the same workers send one after the other, the most urgent first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_wire.rules.held_turns import TURN_S, HeldRank, HeldTurns, TurnInRound

RANKS = st.sampled_from([None, *HeldRank])


def told(*ranks: HeldRank | None) -> HeldTurns[int]:
    turns: HeldTurns[int] = HeldTurns()
    for link, rank in enumerate(ranks):
        turns.told(link, rank)
    return turns


def test_nobody_has_a_turn_where_nobody_holds_anything() -> None:
    assert told(None, None).turns([0, 1]) == {}


def test_those_with_prompts_in_time_go_before_all_others() -> None:
    turns = told(HeldRank.LATE, HeldRank.IN_TIME, HeldRank.SET_ASIDE, None).turns([0, 1, 2, 3])
    assert turns == {0: TurnInRound(None, 1), 1: TurnInRound(0, 1), 2: TurnInRound(None, 1), 3: TurnInRound(None, 1)}
    assert turns[1].wait_s(123.0) == 0.0
    assert turns[0].wait_s(123.0) is None


def test_a_change_is_told_once() -> None:
    turns = told(HeldRank.LATE)
    assert not turns.told(0, HeldRank.LATE)
    assert turns.told(0, HeldRank.IN_TIME)
    assert turns.told(0, None)
    assert not turns.told(0, None), "it held nothing"


def test_another_one_is_first_in_each_round() -> None:
    turns = told(HeldRank.IN_TIME, HeldRank.IN_TIME, HeldRank.IN_TIME)
    first = [next(link for link, turn in turns.turns([0, 1, 2]).items() if turn.place == 0) for _ in range(6)]
    assert sorted(first[:3]) == [0, 1, 2]
    assert first[:3] == first[3:]


@given(st.lists(RANKS, min_size=1, max_size=9), st.floats(0, 10))
def test_at_each_moment_it_is_the_turn_of_one_whose_prompts_are_the_most_urgent(
    ranks: list[HeldRank | None], since_s: float
) -> None:
    turns = told(*ranks).turns(list(range(len(ranks))))
    sending = [link for link, turn in turns.items() if turn.wait_s(since_s) == 0.0]
    held = [rank for rank in ranks if rank is not None]
    assert len(sending) == (1 if held else 0)
    assert all(ranks[link] is min(held) for link in sending)


@given(st.integers(1, 9), st.integers(0, 8), st.floats(0, 10))
def test_who_waits_for_its_turn_has_it_then(of: int, place: int, since_s: float) -> None:
    turn = TurnInRound(place % of, of)
    wait_s = turn.wait_s(since_s)
    assert wait_s is not None
    assert wait_s <= of * TURN_S
    assert turn.wait_s(since_s + wait_s + 1e-6) == 0.0
