"""Where turns with long contexts go, on two H200 with the figures of an 8B model: TTFT 2 s, TPOT 15 ms."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
