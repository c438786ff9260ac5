"""Pieces of prompts that leave steps within a target, on devices whose costs the engine has to find out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_plan import SlotTokens, StepResult
from baton_testing.engine.toy_engine import spec
from baton_wire.rules.piece_size import LEAST_TOKENS, MOST_SKIPPED, TILE_ROWS, PieceSize

MOST = 8_192


def observe(pieces: PieceSize, rows: int, tokens: int, base_s: float, token_s: float) -> None:
    pieces.observe(rows, tokens, base_s + token_s * tokens)


def test_a_step_in_which_nothing_decodes_is_not_bounded() -> None:
    pieces = PieceSize(MOST, 0.01)
    assert pieces.tokens(0) == MOST
    pieces.observe(0, 8_192, 0.2)
    assert pieces.tokens(0) == MOST


def test_until_costs_are_known_pieces_are_small() -> None:
    pieces = PieceSize(MOST, 0.01)
    assert pieces.tokens(3) == LEAST_TOKENS
    observe(pieces, 3, 0, 0.004, 2e-5)
    assert pieces.tokens(3) == LEAST_TOKENS


def test_a_piece_fills_what_the_target_leaves_and_whole_tiles() -> None:
    pieces = PieceSize(MOST, 0.012)
    observe(pieces, 64, 0, 0.006, 2e-5)
    observe(pieces, 64, 64, 0.006, 2e-5)
    observe(pieces, 64, 64, 0.006, 2e-5)
    assert pieces.tokens(64) == 256  # 0.95 · 12 ms leave 5.4 ms: 270 tokens
    assert (70 + pieces.tokens(70)) % TILE_ROWS == 0


def test_the_first_piece_is_tried_twice() -> None:
    """Its step took four times as long for another reason: the outlier does not change the cost of tokens."""
    pieces = PieceSize(MOST, 0.012)
    observe(pieces, 64, 0, 0.006, 2e-5)
    pieces.observe(64, 64, 0.03)
    assert pieces.tokens(64) == LEAST_TOKENS
    observe(pieces, 64, 64, 0.006, 2e-5)
    assert pieces.token_s == pytest.approx(2e-5)
    assert pieces.tokens(64) == 256


def test_a_target_that_rows_alone_miss_leaves_prompts_the_least_piece_now_and_then() -> None:
    pieces = PieceSize(MOST, 0.005)
    observe(pieces, 64, 0, 0.006, 2e-5)
    observe(pieces, 64, 64, 0.006, 2e-5)
    observe(pieces, 64, 64, 0.006, 2e-5)
    planned = []
    for _ in range(4 * (MOST_SKIPPED + 1)):
        planned.append(pieces.tokens(64))
        observe(pieces, 64, planned[-1], 0.006, 2e-5)
    assert planned == 4 * [*MOST_SKIPPED * [0], LEAST_TOKENS]


@pytest.mark.parametrize("rows_s", [0.0088, 0.0091, 0.0094])
def test_the_least_piece_waits_for_steps_that_make_up_for_it(rows_s: float) -> None:
    """Next to ten contexts 64 tokens take 2.1 ms. A piece in each step made all ten answers miss 10 ms."""
    pieces = PieceSize(MOST, 0.01)
    token_s = 33e-6
    for tokens in (0, 64, 64):
        observe(pieces, 10, tokens, rows_s, token_s)
    steps, computed = [], 0
    for _ in range(400):
        tokens = pieces.tokens(10)
        observe(pieces, 10, tokens, rows_s, token_s)
        steps.append(rows_s + token_s * tokens)
        computed += tokens
    assert sum(steps[100:]) / 300 <= 0.01
    assert computed >= 400 * LEAST_TOKENS / (MOST_SKIPPED + 1)


def test_time_between_steps_counts_against_the_target() -> None:
    """The device takes 6 ms, but a host needs 2 ms between two steps: clients wait 8 ms for a token."""
    pieces, tokens = PieceSize(MOST, 0.012), 0
    for number in range(300):
        tokens = pieces.tokens(64) if number > 2 else 64 * min(1, number)
        seconds = 0.006 + 2e-5 * tokens
        pieces.observe(64, tokens, seconds, seconds + 0.002)
    assert 0.008 + 2e-5 * tokens <= 0.012
    assert tokens >= 2 * LEAST_TOKENS


@pytest.mark.parametrize("knows_prompts", [False, True])
def test_first_tokens_that_are_dear_keep_pieces_from_steps_without_room(knows_prompts: bool) -> None:
    """Next to 16 rows of a mixture of experts a piece costs 8 ms and 24 µs a token. Rows take 9 ms, and 15 are allowed:
    no piece fits, and answers stay within the target by those that wait for steps that make up for them."""
    pieces, fixed_s, token_s = PieceSize(MOST, 0.015), 0.008, 24e-6
    if knows_prompts:
        pieces.observe(0, 5_000, 5_000 * token_s + 0.019)
    steps, tokens = [], 0
    for number in range(400):
        tokens = pieces.tokens(16) if number else 0
        steps.append(0.009 + token_s * tokens + (fixed_s if tokens else 0.0))
        pieces.observe(16, tokens, steps[-1])
    assert sum(steps[20:]) / len(steps[20:]) <= 0.015
    assert pieces.expected_s(16, LEAST_TOKENS) == pytest.approx(0.009 + fixed_s + LEAST_TOKENS * token_s, rel=0.1)


def test_dear_first_tokens_are_told_from_dear_tokens_by_pieces_of_some_sizes() -> None:
    pieces, fixed_s, token_s = PieceSize(MOST, 0.03), 0.008, 24e-6
    pieces.observe(0, 5_000, 5_000 * token_s + 0.019)
    for number in range(300):
        tokens = (0, 64, 0, 192, 320)[number % 5]
        pieces.observe(16, tokens, 0.010 + token_s * tokens + (fixed_s if tokens else 0.0))
    assert pieces.token_s == pytest.approx(token_s, rel=0.3)
    assert pieces.fixed_s == pytest.approx(fixed_s, rel=0.2)
    assert pieces.tokens(16) >= 320, "10.5 ms are left, of which the first tokens take 8"


def test_one_odd_step_does_not_make_tokens_free() -> None:
    pieces = PieceSize(MOST, 0.012)
    observe(pieces, 64, 0, 0.006, 2e-5)
    observe(pieces, 64, 64, 0.006, 2e-5)
    observe(pieces, 64, 64, 0.006, 2e-5)
    pieces.observe(64, 256, 0.001)
    assert pieces.tokens(64) < MOST


def test_one_odd_first_step_is_forgotten() -> None:
    """The first piece met a step that took 50 ms for another reason."""
    pieces = PieceSize(MOST, 0.012)
    observe(pieces, 64, 0, 0.006, 2e-5)
    pieces.observe(64, 64, 0.05)
    for step in range(200):
        observe(pieces, 64, pieces.tokens(64) if step % 2 else 0, 0.006, 2e-5)
    assert pieces.tokens(64) >= 192


def test_prompts_alone_tell_what_a_token_costs_before_any_row_was_there() -> None:
    pieces = PieceSize(MOST, 0.012)
    pieces.observe(0, 2_000, 0.044)
    assert pieces.token_s == pytest.approx(2.2e-5)
    observe(pieces, 2, 64, 0.006, 2e-5)
    assert pieces.base_s == pytest.approx(0.006, rel=0.05)
    assert pieces.tokens(2) > 2 * LEAST_TOKENS, "without waiting for a step of rows alone"


def test_equal_pieces_leave_a_change_to_the_rows() -> None:
    """A worker all of whose steps carry pieces: its rows end, and the steps tell so."""
    pieces = PieceSize(MOST, 0.009)
    observe(pieces, 64, 0, 0.01, 2e-5)
    for number in range(400):
        base_s = 0.01 - 0.005 * number / 400
        observe(pieces, 64, LEAST_TOKENS, base_s, 2e-5)
    assert pieces.base_s == pytest.approx(0.005, rel=0.02)
    assert pieces.token_s == pytest.approx(2e-5, rel=0.1)


def test_the_shortest_steps_of_rows_are_remembered() -> None:
    pieces = PieceSize(MOST)
    assert pieces.least_s is None
    for rows, seconds in ((64, 0.009), (1, 0.005), (1, 0.005), (1, 0.005), (64, 0.009)):
        pieces.observe(rows, 0, seconds)
    pieces.observe(1, 64, 0.001)
    assert pieces.least_s is not None
    assert 0.005 <= pieces.least_s < 0.007


WORLDS = [
    *product((0.002, 0.004, 0.008, 0.016), (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4), (0.01, 0.015, 0.025, 0.05)),
    (0.0026, 1.9e-4, 0.029),  # a token of 0.07 of the rows' time: the first guess was four times too short
    (0.0023, 1.5e-4, 0.0228),
]


@pytest.mark.parametrize("growth", [0.999, 0.9995, 1.0, 1.0005, 1.001])
def test_steps_keep_the_target_while_costs_drift(growth: float) -> None:
    """After a few steps, none is longer than the target, unless the rows and the least piece are."""
    for world in WORLDS:
        base_s, token_s, target_s = world
        pieces = PieceSize(MOST, target_s)
        observe(pieces, 32, 0, base_s, token_s)
        for number in range(300):
            tokens = pieces.tokens(32)
            observe(pieces, 32, tokens, base_s, token_s)
            most_s = max(target_s, base_s + token_s * (LEAST_TOKENS + TILE_ROWS)) * 1.001
            assert number <= 5 or base_s + token_s * tokens <= most_s, (world, number)
            base_s *= growth
        left = 0.85 * target_s - base_s
        if left / token_s > 4 * TILE_ROWS:
            assert pieces.tokens(32) >= min(MOST, left / token_s - TILE_ROWS), f"room is used: {world}"


def test_a_prompt_alone_that_takes_long_enough_is_enough() -> None:
    pieces = PieceSize(MOST, 0.01)
    assert pieces.enough_tokens(0) == MOST, "nothing was seen"
    pieces.observe(0, 1_000, 0.0)
    assert pieces.enough_tokens(0) == MOST, "a clock that did not move tells nothing"
    pieces = PieceSize(MOST, 0.01)
    pieces.observe(0, 1_000, 0.025)
    assert pieces.enough_tokens(0) == 800
    assert pieces.enough_tokens(3) == MOST, "next to rows the target is the bound"


def test_prompts_that_wait_go_one_behind_the_other_in_steps_of_enough() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=2_000, block_tokens=16, max_slots=16, max_context_tokens=4_096))
    for number, tokens in enumerate((2_000, 300, 600, 900, 100, 100)):
        scheduler.submit(replace(spec(number, tokens), hold=True), 0.0)
    steps = []
    while (plan := scheduler.plan(0.0)) is not None:
        lengths = [len(chunk.tokens) for chunk in plan.prefill]
        drawing = tuple(SlotTokens(slot, (7,)) for chunk in plan.prefill for slot in chunk.sample)
        scheduler.apply(StepResult(plan.step, drawing, 25e-6 * sum(lengths)), 0.0)
        steps.append(lengths)
        if len(steps) == 1:
            for number, tokens in enumerate((2_000, 300, 600, 900, 100, 100), 10):
                scheduler.submit(replace(spec(number, tokens), hold=True), 0.0)
    assert steps[0] == [2_000, 300, 600, 900, 100, 100], "what a token takes is not known yet"
    assert [step for step in steps[1:] if step] == [[2_000], [300, 600], [900], [100, 100]]


def longest_step(config: EngineConfig, tpot_s: float | None = None) -> tuple[float, int]:
    """Seconds of the longest step in which rows decoded, while long prompts arrive; and answers that were complete.

    A step takes 5 ms, 0.02 ms for each row and for each prompt token."""
    scheduler = Scheduler(config)
    now, longest, finished = 0.0, 0.0, 0
    arrivals = {step: replace(spec(step, 3_000, max_tokens=20), tpot_s=tpot_s) for step in range(40, 400, 60)}
    scheduler.submit(replace(spec(1, 20, max_tokens=1_200), tpot_s=tpot_s), now)
    for step in range(2_000):
        if step in arrivals:
            scheduler.submit(arrivals[step], now)
        plan = scheduler.plan(now)
        if plan is None:
            break
        tokens = sum(len(chunk.tokens) for chunk in plan.prefill)
        seconds = 0.005 + 2e-5 * (len(plan.decode) + tokens)
        drawing = [*plan.decode, *(slot for chunk in plan.prefill for slot in chunk.sample)]
        scheduler.apply(StepResult(plan.step, tuple(SlotTokens(slot, (7,)) for slot in drawing), seconds), now)
        now += seconds
        if plan.decode:
            longest = max(longest, seconds)
        finished += sum(isinstance(event, Drawn) and event.finish is not None for event in scheduler.events())
        scheduler.check()
    return longest, finished


@pytest.mark.parametrize("chunk_tokens", [None, 8_192])
def test_running_sequences_keep_their_target_while_long_prompts_arrive(chunk_tokens: int | None) -> None:
    config = EngineConfig(
        num_blocks=2_000, block_tokens=16, max_slots=16, max_context_tokens=4_096, chunk_tokens=chunk_tokens
    )
    without, answered = longest_step(config)
    assert without > 0.06, "a whole prompt stands between two tokens"
    longest, also_answered = longest_step(config, 0.015)
    assert longest <= 0.015
    assert answered == also_answered == 7
