"""Gateways that hold prompts for the same workers send one after the other, the most urgent first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_wire.rules.gateway_rounds import SILENT_S, TURN_S, GatewayRounds, HeldRank, RoundPosition, Urgency

LATE, DEFERRED, IN_TIME = Urgency(HeldRank.LATE), Urgency(HeldRank.SET_ASIDE, 5.0), Urgency(HeldRank.IN_TIME, 5.0)
TIMES = st.none() | st.integers(0, 3).map(float)
HELD = st.none() | st.builds(Urgency, st.sampled_from(HeldRank), TIMES)


def rounds_of(*held: Urgency | None) -> GatewayRounds[int]:
    turns: GatewayRounds[int] = GatewayRounds()
    for link, urgency in enumerate(held):
        turns.update(link, urgency)
    return turns


def test_nobody_has_a_turn_where_nobody_holds_anything() -> None:
    assert rounds_of(None, None).turns([0, 1]) == {}


def test_those_with_prompts_in_time_go_before_all_others() -> None:
    turns = rounds_of(LATE, IN_TIME, DEFERRED, None).turns([0, 1, 2, 3])
    assert turns == {
        0: RoundPosition(None, 1),
        1: RoundPosition(0, 1),
        2: RoundPosition(None, 1),
        3: RoundPosition(None, 1),
    }
    assert turns[1].wait_s(123.0) == 0.0
    assert turns[0].wait_s(123.0) is None


def test_a_change_is_told_once() -> None:
    turns = rounds_of(LATE)
    assert not turns.update(0, LATE)
    assert turns.update(0, IN_TIME)
    assert not turns.update(0, IN_TIME)
    assert turns.update(0, Urgency(HeldRank.IN_TIME, 6.0)), "the next one in its line"
    assert turns.update(0, None)
    assert not turns.update(0, None), "it held nothing"


def test_whose_prompt_has_to_start_soonest_goes_first() -> None:
    starts = (None, 3.0, 1.0, None, 2.0)
    held = rounds_of(*(None if by_s is None else Urgency(HeldRank.IN_TIME, by_s) for by_s in starts))
    for _ in range(3):
        assert [turn.place for turn in held.turns(list(range(5))).values()] == [None, 2, 0, None, 1]
    held.update(3, Urgency(HeldRank.IN_TIME))
    assert held.turns([1, 2, 3])[3].place == 0, "its client has waited before"


def test_another_one_of_equals_is_first_in_each_round() -> None:
    turns = rounds_of(LATE, LATE, LATE)
    first = [next(link for link, turn in turns.turns([0, 1, 2]).items() if turn.place == 0) for _ in range(6)]
    assert sorted(first[:3]) == [0, 1, 2]
    assert first[:3] == first[3:]


@given(st.lists(HELD, min_size=1, max_size=9), st.floats(0, 10))
def test_at_each_moment_it_is_the_turn_of_one_whose_prompts_are_the_most_urgent(
    held: list[Urgency | None], since_s: float
) -> None:
    turns = rounds_of(*held).turns(list(range(len(held))))
    sending = [link for link, turn in turns.items() if turn.wait_s(since_s) == 0.0]
    ranks = [urgency.rank for urgency in held if urgency is not None]
    assert len(sending) == (1 if ranks else 0)
    for link in sending:
        urgency = held[link]
        assert urgency is not None
        assert urgency.rank is min(ranks)


@given(st.integers(1, 9), st.integers(0, 8), st.floats(0, 10))
def test_who_waits_for_its_turn_has_it_then(of: int, place: int, since_s: float) -> None:
    turn = RoundPosition(place % of, of)
    wait_s = turn.wait_s(since_s)
    assert wait_s is not None
    assert wait_s <= of * TURN_S
    assert turn.wait_s(since_s + wait_s + 1e-6) == 0.0


def test_a_turn_is_for_as_much_work_as_it_lasts_and_one_prompt_at_least() -> None:
    turn = RoundPosition(0, 2)
    assert turn.wait_s(0.0, taken_s=0.0) == 0.0
    assert turn.wait_s(0.0, taken_s=0.9 * TURN_S) == 0.0
    assert turn.wait_s(0.0, taken_s=TURN_S) == SILENT_S, "another gateway may have a more urgent one by now"
    assert turn.wait_s(SILENT_S, taken_s=TURN_S) == RoundPosition(0, 2).wait_s(SILENT_S), "no report says who is next"
    assert turn.wait_s(0.0, taken_s=TURN_S, workers=2) == 0.0
    assert RoundPosition(0, 1).wait_s(0.0, taken_s=9.0) == 0.0, "no other gateway waits for it"
