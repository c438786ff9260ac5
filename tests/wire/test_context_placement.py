"""Where turns with long contexts go, on two H200 with the figures of an 8B model: TTFT 2 s, TPOT 15 ms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.rules.context_placement import ContextSide, is_long, place_context
from baton_wire.rules.prompt_placement import LatencyTargets, Placement

TARGETS = LatencyTargets(ttft_s=2.0, tpot_s=0.015)
KV_S, FIXED_S, TOKEN_S = 30e-9, 0.00415, 22e-6
CONTEXT = 26_000
OWN_S = CONTEXT * KV_S
NEW = 1_700


def side(sessions: int, missing: int = NEW, **changes: object) -> ContextSide:
    """A worker that decodes this many sessions of 26,000 tokens."""
    made = ContextSide(sessions, FIXED_S + sessions * OWN_S, TOKEN_S, 0, missing)
    return replace(made, **changes)  # type: ignore[arg-type]


def place(prefill: ContextSide, decode: ContextSide) -> Placement:
    return place_context(prefill, decode, OWN_S, TARGETS)


def test_context_decides_what_is_long_and_not_the_number_of_rows() -> None:
    assert is_long(OWN_S, TARGETS)
    assert not is_long(1_200 * KV_S, TARGETS)
    assert not is_long(0.0, TARGETS), "the cost is not known"


def test_a_few_new_tokens_go_to_an_idle_prefill_worker_that_holds_the_prefix() -> None:
    assert place(side(0), side(5)) is Placement.DISAGGREGATED


def test_they_are_computed_at_home_in_pieces_while_the_prefill_worker_is_busy() -> None:
    busy = side(0, queued_tokens=100_000)
    assert place(busy, side(5)) is Placement.DECODE_LOCAL
    assert place(busy, side(13)) is not Placement.DECODE_LOCAL, "no piece fits beside 13 contexts"


@pytest.mark.parametrize("sessions", [5, 12])
def test_a_context_is_not_computed_again_where_its_home_can_compute_what_is_new(sessions: int) -> None:
    assert place(side(0, CONTEXT), side(sessions)) is Placement.DECODE_LOCAL


def test_a_session_moves_to_an_idle_prefill_worker_when_it_would_make_all_at_home_late() -> None:
    assert place(side(0, CONTEXT), side(14)) is Placement.PREFILL_LOCAL


def test_an_answer_is_kept_where_its_prefix_is_when_the_decode_worker_would_miss_its_target() -> None:
    assert place(side(4), side(14)) is Placement.PREFILL_LOCAL
    assert place(side(4, has_slot=False), side(14)) is Placement.DISAGGREGATED
    assert place(side(14), side(14)) is not Placement.PREFILL_LOCAL, "it would miss it there, too"


def test_no_answer_is_kept_where_it_would_make_more_waiting_prompts_late_than_it_saves() -> None:
    assert place(side(4, waiting=14), side(14)) is Placement.PREFILL_LOCAL, "15 answers miss TPOT at the decode worker"
    assert place(side(4, waiting=16), side(14)) is Placement.DISAGGREGATED


def test_sequences_that_end_before_a_turn_lands_make_no_answer_late() -> None:
    """14 contexts are promised, and 9 of them are being decoded: half of these end while the turn is computed."""
    promised = side(14, running_s=9 * OWN_S, promised_s=14 * OWN_S)
    prefill = side(0, CONTEXT, queued_tokens=30_000)
    away = replace(promised, missing_tokens=CONTEXT)
    assert place_context(prefill, away, OWN_S, TARGETS, 200) is Placement.DISAGGREGATED
    assert place_context(prefill, away, OWN_S, TARGETS, 100_000) is Placement.PREFILL_LOCAL
    assert place_context(prefill, away, OWN_S, TARGETS) is Placement.PREFILL_LOCAL


def test_first_tokens_of_pieces_that_are_dear_leave_no_room_for_a_turn_at_its_home() -> None:
    busy = side(0, queued_tokens=10_000)
    assert place(busy, side(5)) is Placement.DECODE_LOCAL
    assert place(busy, side(5, piece_fixed_s=0.008)) is Placement.DISAGGREGATED
    assert place(busy, side(5, recent_step_s=0.016)) is Placement.DISAGGREGATED, "steps turn out too long"


def test_while_nothing_shows_what_pieces_cost_few_tokens_are_tried_and_no_answer_is_kept() -> None:
    busy = side(0, queued_tokens=10_000)
    assert place(busy, side(5, knows_pieces=False)) is Placement.DECODE_LOCAL
    assert place(busy, side(5, knows_pieces=False, queued_tokens=2_000)) is Placement.DISAGGREGATED
    assert place(side(4), side(14)) is Placement.PREFILL_LOCAL
    assert place(side(4, knows_pieces=False), side(14)) is Placement.DISAGGREGATED
    assert place(side(4, recent_step_s=0.016), side(14)) is Placement.DISAGGREGATED, "its steps turn out too long"


def test_an_answer_that_a_prefill_worker_keeps_delays_prompts_until_their_queue_has_drained() -> None:
    """Its pieces leave no room for others, and it is decoded for 6 s. 15 answers would miss TPOT elsewhere."""
    dear, full = side(0, piece_fixed_s=0.012), side(14)
    assert place_context(replace(dear, coming_tokens_s=2_000), full, OWN_S, TARGETS, 400) is Placement.PREFILL_LOCAL
    assert place_context(replace(dear, coming_tokens_s=5_000), full, OWN_S, TARGETS, 400) is Placement.DISAGGREGATED
    assert place_context(replace(dear, coming_tokens_s=5_000), full, OWN_S, TARGETS, 40) is Placement.PREFILL_LOCAL
    nearly = replace(dear, coming_tokens_s=8_000, token_s=1e-4)
    assert place_context(nearly, full, OWN_S, TARGETS, 40) is Placement.DISAGGREGATED, "the queue drains too slowly"


def test_a_turn_is_not_computed_in_the_trough_of_a_wave_of_rows() -> None:
    busy = side(0, queued_tokens=10_000)
    assert place(busy, side(5)) is Placement.DECODE_LOCAL
    assert place(busy, side(5, usual_rows_s=FIXED_S + 13 * OWN_S)) is Placement.DISAGGREGATED


def test_no_answer_is_kept_where_pieces_have_no_room_for_the_prompts_that_come() -> None:
    """A prefill worker that is busy with prompts would compute them at a third of the rate beside an answer."""
    assert place(side(0, coming_tokens_s=15_000.0), side(14)) is Placement.PREFILL_LOCAL
    assert place(side(0, coming_tokens_s=55_000.0), side(14)) is Placement.DISAGGREGATED


def test_attention_to_the_context_makes_a_busy_prefill_worker_too_slow_for_a_turn() -> None:
    """Behind 26,000 tokens a token takes twice as long, and so do those that are queued."""
    assert place(side(0, queued_tokens=2_500), side(5)) is Placement.DISAGGREGATED
    slow = side(0, queued_tokens=2_500, token_s=2 * TOKEN_S, own_token_s=2 * TOKEN_S)
    assert place(slow, side(5, own_token_s=2 * TOKEN_S)) is Placement.DECODE_LOCAL


def test_an_answer_is_not_kept_while_the_decode_worker_has_room() -> None:
    assert place(side(0), side(6)) is Placement.DISAGGREGATED


def test_a_first_prompt_does_not_wait_for_many_others_when_the_decode_worker_computes_it_within_tpot() -> None:
    assert place(side(0, CONTEXT, queued_tokens=24 * 24_000), side(4, CONTEXT)) is Placement.DECODE_LOCAL


def test_without_a_slot_at_the_decode_worker_the_prefill_worker_serves() -> None:
    assert place(side(0), side(3, has_slot=False)) is Placement.PREFILL_LOCAL
    assert place(side(0, has_slot=False), side(3, has_slot=False)) is Placement.DISAGGREGATED


def test_each_answer_is_one_of_the_three_for_any_load() -> None:
    for sessions in range(0, 60, 7):
        for queued in (0, 5_000, 10**7):
            for coming in (0.0, 1e4, 1e9):
                decode = side(sessions, queued_tokens=queued, coming_tokens_s=coming)
                assert place(side(60 - sessions, queued_tokens=10**7 - queued, coming_tokens_s=coming), decode)


SECONDS = st.sampled_from([0.0, 1e-9, 0.004, 0.015, 2.0])
TOKENS = st.sampled_from([0, 1, 1_700, 26_000])
SIDES = st.builds(
    ContextSide,
    sequences=st.sampled_from([0, 1, 14]),
    rows_s=SECONDS,
    token_s=st.sampled_from([1e-9, TOKEN_S, 1.0]),
    queued_tokens=TOKENS,
    missing_tokens=TOKENS,
    own_token_s=st.none() | SECONDS,
    running_s=st.none() | SECONDS,
    promised_s=SECONDS,
    usual_rows_s=SECONDS,
    coming_tokens_s=st.sampled_from([0.0, 1e6]),
    has_slot=st.booleans(),
    waiting=st.sampled_from([0, 3]),
)


@given(SIDES, SIDES, SECONDS, st.none() | st.sampled_from([1, 500]))
def test_a_turn_is_placed_whatever_costs_are_measured_as_nothing(
    prefill: ContextSide, decode: ContextSide, own_s: float, answer_tokens: int | None
) -> None:
    """A step that takes no time is a measured one: of a small model, whose cost is noise."""
    assert place_context(prefill, decode, own_s, TARGETS, answer_tokens) in Placement
