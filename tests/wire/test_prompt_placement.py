"""Where a prompt is computed: at the decode worker when its first token comes sooner there and no target breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.rules.piece_size import AIM, LEAST_TOKENS
from baton_wire.rules.prompt_placement import (
    FULL,
    TRIED_TOKENS,
    DecodeSide,
    LatencyTargets,
    Placement,
    PrefillSide,
    SeenPieces,
    choose_placement,
    decode_ttft_s,
    is_decode_local,
    is_prefill_local,
    is_shared,
    mean_step_s,
    piece_cost,
    prefill_ttft_s,
    prompts_share,
)

TARGETS = LatencyTargets(ttft_s=0.5, tpot_s=0.01)
PREFILL = PrefillSide(token_s=2.5e-5, more_token_s=2.4e-5, queued_tokens=0, missing_tokens=1_000)
DECODE = DecodeSide(rows=40, base_s=0.006, token_s=1.7e-5, queued_tokens=0, missing_tokens=1_000)
KEEPER = replace(PREFILL, may_decode=True, rows=20, base_s=0.005, piece_token_s=2.4e-5)
"""A prefill worker that decodes some answers, too."""
FULL_DECODE = replace(DECODE, base_s=0.0092)


def test_an_idle_prefill_worker_keeps_even_a_short_prompt() -> None:
    for tokens in (1, 10, 1_000):
        prefill, decode = replace(PREFILL, missing_tokens=tokens), replace(DECODE, missing_tokens=tokens)
        assert not is_decode_local(prefill, decode, TARGETS)
        assert not is_decode_local(prefill, replace(decode, rows=0, base_s=None), TARGETS), "an idle one is no faster"


def test_a_prompt_that_the_decode_worker_has_mostly_goes_there_whatever_its_length() -> None:
    for tokens in (2_000, 20_000):
        prefill, decode = replace(PREFILL, missing_tokens=tokens), replace(DECODE, missing_tokens=50)
        assert is_decode_local(prefill, decode, TARGETS)


def test_a_line_at_the_prefill_worker_is_relieved_until_the_line_here_is_as_long() -> None:
    busy = replace(PREFILL, queued_tokens=4_000)  # 121 ms
    assert is_decode_local(busy, DECODE, TARGETS)
    assert not is_decode_local(busy, replace(DECODE, queued_tokens=2_000), TARGETS)
    assert is_decode_local(replace(busy, queued_tokens=12_000), replace(DECODE, queued_tokens=2_000), TARGETS)


def test_a_decode_worker_whose_rows_use_the_target_up_computes_none() -> None:
    """Also not a prompt whose own target is lost: it would break that of all the others."""
    late = replace(PREFILL, queued_tokens=10**6)
    full = replace(DECODE, base_s=0.0096)
    assert not is_decode_local(late, full, TARGETS)
    assert is_decode_local(late, full, replace(TARGETS, tpot_s=0.015))


def test_a_step_over_the_target_now_and_then_is_not_over_it_on_average() -> None:
    late, nearly = replace(PREFILL, queued_tokens=10**6), replace(DECODE, base_s=0.0093, missing_tokens=300)
    assert is_decode_local(late, nearly, TARGETS), "only steps with a piece are too long"
    assert not is_decode_local(late, replace(nearly, coming_tokens_s=5_000), TARGETS), "there are many of them"


def test_a_prompt_that_would_itself_break_the_target_on_average_is_not_taken() -> None:
    decode = replace(DECODE, base_s=0.0091, coming_tokens_s=2_000.0)
    assert mean_step_s(decode.base_s or 0.0, 1.7e-5, decode.coming_tokens_s) < AIM * TARGETS.tpot_s
    assert decode_ttft_s(replace(decode, missing_tokens=100), PREFILL, TARGETS) is not None
    assert decode_ttft_s(replace(decode, missing_tokens=1_000), PREFILL, TARGETS) is None
    assert decode_ttft_s(replace(decode, missing_tokens=100, queued_tokens=900), PREFILL, TARGETS) is None


def test_pieces_whose_first_tokens_are_dear_are_not_computed_at_the_decode_worker() -> None:
    """64 tokens next to 40 rows of a mixture of experts take 11 ms, and each further one 24 µs, as alone."""
    late, decode = replace(PREFILL, queued_tokens=10**6), replace(DECODE, base_s=0.008)
    assert is_decode_local(late, decode, TARGETS)
    assert not is_decode_local(late, replace(decode, piece_fixed_s=0.01), TARGETS)
    assert not is_decode_local(late, replace(decode, token_s=0.011 / LEAST_TOKENS), TARGETS), "as one size shows it"


def test_steps_of_prompts_alone_show_what_the_first_tokens_of_a_piece_cost() -> None:
    late, unseen = replace(PREFILL, queued_tokens=10**6), replace(DECODE, token_s=None, base_s=0.008)
    assert is_decode_local(replace(late, step_fixed_s=0.006), unseen, TARGETS)
    assert not is_decode_local(replace(late, step_fixed_s=0.019), unseen, TARGETS)
    keeper, full = replace(KEEPER, piece_token_s=None, coming_tokens_s=5_000), replace(FULL_DECODE, token_s=None)
    assert is_prefill_local(replace(keeper, step_fixed_s=0.005), full, TARGETS)
    assert not is_prefill_local(replace(keeper, step_fixed_s=0.019), full, TARGETS)


def test_pieces_that_one_worker_saw_show_the_other_what_they_cost() -> None:
    dear = replace(FULL_DECODE, piece_fixed_s=0.01)
    keeper = replace(KEEPER, piece_token_s=None, coming_tokens_s=5_000)
    assert is_prefill_local(keeper, FULL_DECODE, TARGETS)
    assert not is_prefill_local(keeper, dear, TARGETS)
    late = replace(PREFILL, queued_tokens=10**6, piece_token_s=2e-5, piece_fixed_s=0.01)
    assert not is_decode_local(late, replace(DECODE, token_s=None, base_s=0.008), TARGETS)


def test_while_nothing_shows_what_pieces_cost_few_tokens_are_tried() -> None:
    late, unseen = replace(PREFILL, queued_tokens=10**6), replace(DECODE, token_s=None)
    assert is_decode_local(late, replace(unseen, queued_tokens=TRIED_TOKENS - 1_000), TARGETS)
    assert not is_decode_local(late, replace(unseen, queued_tokens=TRIED_TOKENS), TARGETS)
    assert not is_prefill_local(replace(KEEPER, piece_token_s=None), replace(FULL_DECODE, token_s=None), TARGETS)


def test_pieces_stop_while_steps_turn_out_too_long_whatever_was_predicted() -> None:
    late = replace(PREFILL, queued_tokens=10**6)
    assert is_decode_local(late, replace(DECODE, recent_step_s=0.0099), TARGETS)
    assert not is_decode_local(late, replace(DECODE, recent_step_s=0.0101), TARGETS)
    assert is_prefill_local(replace(KEEPER, recent_step_s=0.0099), FULL_DECODE, TARGETS)
    assert not is_prefill_local(replace(KEEPER, recent_step_s=0.0101), FULL_DECODE, TARGETS)


def test_what_is_not_known_stays_with_the_prefill_worker() -> None:
    late = replace(PREFILL, queued_tokens=10**6)
    assert not is_decode_local(replace(late, token_s=None), DECODE, TARGETS)
    assert not is_decode_local(replace(late, more_token_s=None), DECODE, TARGETS)
    assert is_decode_local(late, replace(DECODE, token_s=None), TARGETS), "taken to be as fast"


@given(
    st.integers(1, 256),
    st.floats(0.001, 0.03),
    st.floats(1e-6, 1e-4),
    st.integers(0, 50_000),
    st.integers(1, 20_000),
    st.sampled_from([0.01, 0.015, 0.025]),
)
def test_a_prompt_here_takes_its_work_in_steps_within_the_target(
    rows: int, base_s: float, token_s: float, queued: int, missing: int, tpot_s: float
) -> None:
    decode = DecodeSide(rows, base_s, token_s, queued, missing)
    targets = LatencyTargets(0.5, tpot_s)
    found = decode_ttft_s(decode, PREFILL, targets)
    cost = piece_cost(SeenPieces(token_s), base_s, PREFILL.more_token_s, None)
    assert cost is not None
    least_s = cost.fixed_s + LEAST_TOKENS * cost.token_s
    assert least_s == pytest.approx(LEAST_TOKENS * token_s), "what the smallest piece cost is not forgotten"
    if found is None:
        assert base_s + least_s > tpot_s, "the least piece is too long"
        assert mean_step_s(base_s, cost.spread_s(LEAST_TOKENS), (queued + missing) / 0.5) > AIM * tpot_s
        return
    work_s = (queued + missing) * cost.token_s
    assert found >= (work_s + base_s + cost.fixed_s) * (1 - 1e-9), "at least one step with a piece, and all tokens"
    if cost.fixed_s == 0.0:
        steps = round((found - work_s) / base_s)
        assert found <= steps * max(AIM * tpot_s, base_s + least_s) * (1 + 1e-9), "no step is longer than the target"


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_more_in_line_never_comes_sooner(less: int, more: int) -> None:
    few, many = sorted((less, more))
    for sides in (PREFILL, KEEPER):
        prefill = [prefill_ttft_s(replace(sides, queued_tokens=tokens), TARGETS) for tokens in (few, many)]
        assert prefill[0] is not None
        assert prefill[1] is not None
        assert prefill[0] <= prefill[1]
    ahead = [decode_ttft_s(replace(DECODE, queued_tokens=tokens), PREFILL, TARGETS) for tokens in (few, many)]
    assert ahead[0] is not None
    assert ahead[1] is not None
    assert ahead[0] <= ahead[1]


def test_an_answer_is_kept_where_steps_are_shorter_once_those_of_the_decode_worker_are_long() -> None:
    assert choose_placement(KEEPER, DECODE, TARGETS) is Placement.DISAGGREGATED, "the decode worker has room"
    assert choose_placement(KEEPER, FULL_DECODE, TARGETS) is Placement.PREFILL_LOCAL
    assert choose_placement(replace(KEEPER, base_s=0.0093), FULL_DECODE, TARGETS) is Placement.DISAGGREGATED, (
        "both are full"
    )
    assert choose_placement(KEEPER, FULL_DECODE, replace(TARGETS, tpot_s=0.012)) is Placement.DISAGGREGATED, (
        "no target breaks"
    )


def test_a_prefill_worker_that_prompts_keep_busy_keeps_no_answers() -> None:
    busy = replace(KEEPER, coming_tokens_s=25_000)
    assert choose_placement(busy, FULL_DECODE, TARGETS) is not Placement.PREFILL_LOCAL, (
        "its steps would be longer still"
    )
    assert choose_placement(replace(KEEPER, coming_tokens_s=5_000), FULL_DECODE, TARGETS) is Placement.PREFILL_LOCAL
    assert not is_prefill_local(replace(KEEPER, queued_tokens=20_000), FULL_DECODE, TARGETS), (
        "what is in line comes, too"
    )


@pytest.mark.parametrize("rows", [0, 8])
@pytest.mark.parametrize("queued", [0, 2_000, 6_000])
@pytest.mark.parametrize("base_s", [0.007, 0.010, 0.017])
def test_no_answer_is_kept_where_both_workers_are_needed_for_prompts(rows: int, queued: int, base_s: float) -> None:
    """As seen at 47 requests a second and 25 ms; once the decode worker's rows seemed to take 17 ms (goodput.md)."""
    token_s, coming, targets = 22.4e-6, 54_300.0, LatencyTargets(0.5, 0.025)
    prefill_s = 0.0052 if rows else None
    prefill = PrefillSide(
        token_s, token_s, queued, 1_000, True, rows, prefill_s, token_s, coming_tokens_s=0.53 * coming, has_slot=True
    )
    decode = DecodeSide(120, base_s, token_s, 0, 1_000, coming_tokens_s=0.47 * coming, least_s=0.00415)
    assert choose_placement(prefill, decode, targets) is not Placement.PREFILL_LOCAL
    assert not is_prefill_local(prefill, decode, targets)
    fewer = replace(prefill, coming_tokens_s=4_000.0, queued_tokens=0)
    full = replace(decode, base_s=0.021, coming_tokens_s=4_000.0)
    assert is_prefill_local(fewer, full, targets), "what keeping is for: long answers and few prompts"


@given(
    st.integers(0, 128),
    st.floats(0.004, 0.03),
    st.integers(1, 256),
    st.floats(0.004, 0.03),
    st.floats(1e-6, 1e-4),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
    st.integers(0, 20_000),
    st.sampled_from([0.01, 0.015, 0.025]),
)
def test_prompts_that_come_are_computed_in_time_beside_each_answer_that_is_kept(  # noqa: PLR0913 - drawn figures
    rows: int,
    prefill_s: float,
    decode_rows: int,
    decode_s: float,
    token_s: float,
    coming: float,
    decode_coming: float,
    queued: int,
    tpot_s: float,
) -> None:
    targets = LatencyTargets(0.5, tpot_s)
    prefill = PrefillSide(
        token_s, token_s, queued, 500, True, rows, prefill_s if rows else None, token_s, coming, has_slot=True
    )
    decode = DecodeSide(decode_rows, decode_s, token_s, 0, 500, decode_coming, least_s=0.004)
    rows_s = prefill_s if rows else 0.004
    room = sum(max(0.0, 1 - each_s / (AIM * tpot_s)) for each_s in (rows_s, decode_s)) / token_s
    tokens_s = coming + decode_coming + queued / targets.ttft_s
    if is_prefill_local(prefill, decode, targets):
        assert tokens_s <= FULL * room * (1 + 1e-9)
        assert rows_s < AIM * tpot_s or decode_s < AIM * tpot_s, "somebody can compute prompts"
    more = replace(prefill, coming_tokens_s=coming + 1_000)
    assert prompts_share(prefill, decode, targets) <= prompts_share(more, decode, targets), (
        "more prompts, a larger share"
    )
    if rows:
        slower = replace(prefill, base_s=prefill_s * 1.1)
        assert prompts_share(prefill, decode, targets) <= prompts_share(slower, decode, targets), "more rows, less room"


def test_tokens_that_take_no_time_leave_all_the_room() -> None:
    free = replace(KEEPER, token_s=0.0, more_token_s=0.0, piece_token_s=0.0)
    assert prompts_share(free, replace(FULL_DECODE, token_s=0.0), TARGETS) == 0.0
    unknown = replace(free, piece_token_s=None, more_token_s=None)
    assert prompts_share(unknown, FULL_DECODE, TARGETS) == float("inf")


def test_a_kept_answer_may_wait_a_little_and_no_longer_than_another_place_takes() -> None:
    decode = replace(DECODE, base_s=0.0085)
    assert choose_placement(replace(KEEPER, queued_tokens=1_000), decode, TARGETS) is Placement.PREFILL_LOCAL
    later = replace(KEEPER, queued_tokens=6_000, base_s=0.003)
    assert is_prefill_local(later, decode, TARGETS)
    assert choose_placement(later, decode, TARGETS) is Placement.DECODE_LOCAL, "its first token would come too late"


@given(st.floats(0.001, 0.1), st.floats(1e-6, 1e-4), st.floats(0, 1e5), st.floats(0, 1e5))
def test_more_prompts_make_steps_longer(base_s: float, token_s: float, one: float, other: float) -> None:
    few, many = sorted((one, other))
    assert base_s <= mean_step_s(base_s, token_s, few) <= mean_step_s(base_s, token_s, many)


def test_a_worker_that_may_not_decode_keeps_nothing() -> None:
    assert choose_placement(replace(KEEPER, may_decode=False), FULL_DECODE, TARGETS) is Placement.DISAGGREGATED


def test_without_rows_a_prefill_worker_begins_to_keep_answers() -> None:
    none, known = replace(KEEPER, rows=0, base_s=None), replace(FULL_DECODE, least_s=0.004)
    assert choose_placement(none, known, TARGETS) is Placement.PREFILL_LOCAL
    assert choose_placement(none, FULL_DECODE, TARGETS) is Placement.DISAGGREGATED, "nobody knows what few rows cost"
    assert choose_placement(replace(none, coming_tokens_s=24_000), known, TARGETS) is Placement.DISAGGREGATED
    unknown = replace(KEEPER, base_s=None)
    assert choose_placement(unknown, known, TARGETS) is Placement.DISAGGREGATED, "rows, and what they cost is not seen"
    assert choose_placement(KEEPER, replace(DECODE, base_s=None), TARGETS) is not Placement.PREFILL_LOCAL


def test_rows_at_the_prefill_worker_make_its_prompts_slower() -> None:
    alone, beside = prefill_ttft_s(PREFILL, TARGETS), prefill_ttft_s(KEEPER, TARGETS)
    assert alone is not None
    assert beside is not None
    assert beside > alone + 5 * 0.005, "six steps at least, each as long as its rows take alone"


def test_with_too_many_rows_for_one_both_workers_do_both_and_take_turns() -> None:
    many, few = replace(FULL_DECODE, least_s=0.004), replace(FULL_DECODE, base_s=0.006, least_s=0.004)
    prefill = replace(KEEPER, base_s=0.006)
    assert is_shared(prefill, many, TARGETS)
    assert choose_placement(prefill, many, TARGETS) is Placement.PREFILL_LOCAL, "its steps are shorter"
    assert choose_placement(replace(prefill, base_s=0.009), few, TARGETS) is Placement.DECODE_LOCAL
    assert not is_shared(replace(prefill, base_s=0.0041), many, TARGETS), "one could do with all rows"
    busy = replace(prefill, coming_tokens_s=45_000)
    assert not is_shared(busy, many, TARGETS), "with half of the prompts neither keeps the target"
    # (6 + 9.2) / 2 = 7.6 ms of rows; half of the prompts, at 20.5 µs a token, may take what is left to 10.
    assert is_shared(replace(prefill, coming_tokens_s=23_100), many, TARGETS)
    assert not is_shared(replace(prefill, coming_tokens_s=23_700), many, TARGETS), "prompts would pile up at both"
    assert not is_shared(replace(prefill, may_decode=False), many, TARGETS)
    assert not is_shared(prefill, FULL_DECODE, TARGETS), "nobody knows what few rows cost"


def test_where_no_slot_is_left_the_answer_is_kept_whatever_steps_take() -> None:
    none, keeper = replace(DECODE, has_slot=False), replace(KEEPER, has_slot=True)
    assert choose_placement(keeper, none, TARGETS) is Placement.PREFILL_LOCAL
    assert choose_placement(replace(keeper, base_s=None, token_s=None), none, TARGETS) is Placement.PREFILL_LOCAL
    assert choose_placement(replace(keeper, may_decode=False), none, TARGETS) is Placement.PREFILL_LOCAL, (
        "half of its slots are taken"
    )
    assert choose_placement(replace(keeper, may_decode=False), DECODE, TARGETS) is not Placement.PREFILL_LOCAL
    assert choose_placement(KEEPER, none, TARGETS) is not Placement.PREFILL_LOCAL, "it has no slot either"
    assert choose_placement(PREFILL, none, TARGETS) is not Placement.PREFILL_LOCAL


def maybe(values: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | values


SECONDS, TOKEN_S, TOKENS = st.floats(0, 0.1), st.floats(0, 1e-3), st.integers(0, 100_000)
PREFILL_SIDES = st.builds(
    PrefillSide,
    *(maybe(TOKEN_S), maybe(TOKEN_S), TOKENS, st.integers(1, 100_000), st.booleans(), st.integers(0, 300)),
    *(maybe(SECONDS), maybe(TOKEN_S), st.floats(0, 1e6), st.booleans()),
)
DECODE_SIDES = st.builds(
    DecodeSide,
    *(st.integers(0, 300), maybe(SECONDS), maybe(TOKEN_S), TOKENS, st.integers(1, 100_000)),
    *(st.floats(0, 1e6), maybe(SECONDS), st.booleans()),
)


@given(PREFILL_SIDES, DECODE_SIDES, st.floats(0.01, 10), st.floats(0.001, 1))
def test_whatever_is_known_or_not_a_place_is_found_that_may_have_it(
    prefill: PrefillSide, decode: DecodeSide, ttft_s: float, tpot_s: float
) -> None:
    targets = LatencyTargets(ttft_s, tpot_s)
    found = choose_placement(prefill, decode, targets)
    has_no_slot = prefill.has_slot and not decode.has_slot
    if found is Placement.PREFILL_LOCAL:
        assert prefill.may_decode or has_no_slot
    if has_no_slot:
        assert found is Placement.PREFILL_LOCAL
    if prefill.token_s is None or prefill.more_token_s is None:
        assert not is_decode_local(prefill, decode, targets), "unknown is not soon"
    if decode.base_s is None and not has_no_slot:
        assert found is not Placement.PREFILL_LOCAL, "nobody knows that its steps are long"
    for first_s in (prefill_ttft_s(prefill, targets), decode_ttft_s(decode, prefill, targets)):
        assert first_s is None or first_s >= 0.0
    assert prompts_share(prefill, decode, targets) >= 0.0


@given(PREFILL_SIDES, DECODE_SIDES, TOKENS)
def test_a_longer_line_at_a_worker_never_draws_a_prompt_to_it(
    prefill: PrefillSide, decode: DecodeSide, more: int
) -> None:
    if is_decode_local(prefill, replace(decode, queued_tokens=decode.queued_tokens + more), TARGETS):
        assert is_decode_local(prefill, decode, TARGETS)
    if is_decode_local(prefill, decode, TARGETS):
        assert is_decode_local(replace(prefill, queued_tokens=prefill.queued_tokens + more), decode, TARGETS)


@pytest.mark.parametrize("base_s", [0.0, AIM * TARGETS.tpot_s, 0.97 * TARGETS.tpot_s, TARGETS.tpot_s, 1.0])
def test_prompts_are_placed_where_their_tokens_were_measured_to_cost_nothing(base_s: float) -> None:
    prefill = replace(KEEPER, token_s=0.0, more_token_s=0.0, piece_token_s=0.0, base_s=base_s, rows=4)
    assert choose_placement(prefill, replace(DECODE, token_s=0.0, base_s=base_s), TARGETS) in Placement
