"""What routing takes a worker's load to be: its last report, what was sent since, and what has been computed since."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from baton_gateway.workers.linked_workers import LinkedWorker
from baton_wire.messages.gateway_link import WorkerState
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import Address, Role

SECONDS_A_TOKEN = 0.001
TIMING = StepTiming(
    step=1, prefill_tokens=1000, prefill_pairs=5e5, decode_rows=0, kv_tokens=0, seconds=1000 * SECONDS_A_TOKEN
)


def linked(now: list[float]) -> LinkedWorker:
    hello: dict[str, Any] = dict.fromkeys(
        ("epoch", "served_name", "fingerprint", "max_context_tokens", "max_choices", "max_sequences")
    )
    hello |= {"role": Role.PREFILL, "pair_port": None, "block_tokens": 16, "blocks_total": 100, "keeps_answers": False}
    address = Address("127.0.0.1", 1)
    return LinkedWorker(
        cast(Any, SimpleNamespace(**hello)), address, cast(Any, None), lambda message: True, lambda: now[0]
    )


def state(waiting: int, computing: int, timings: tuple[StepTiming, ...] = (TIMING,)) -> WorkerState:
    return WorkerState(False, 1, 1, waiting, 90, 0, 5, 0.1, timings=timings, computing_tokens=computing)


def test_a_prompt_that_is_computed_is_load_until_it_should_be_done() -> None:
    now = [10.0]
    worker = linked(now)
    worker.reported(state(waiting=300, computing=2000))
    assert worker.view().load_tokens == 2300
    worker.sent(50)
    now[0] += 1.5
    assert worker.view().load_tokens == 300 + 500 + 50
    now[0] += 5.0
    assert worker.view().load_tokens == 200 + 50, "a step that nobody has told of yet took the first of what waits"


def test_only_prompts_that_it_computes_are_in_a_decode_workers_line() -> None:
    worker = linked([10.0])
    worker.sent(500, is_computed=False)
    worker.sent(70)
    assert (worker.view().load_tokens, worker.view().prompt_tokens) == (570, 70)


def test_steps_with_rows_tell_what_a_piece_of_a_prompt_costs() -> None:
    worker = linked([10.0])
    assert (worker.view().rows_s, worker.view().piece_token_s) == (None, None)
    steps = [(0, 0.006), (100, 0.008), (100, 0.008)]
    timings = tuple(
        StepTiming(number, tokens, 0.0, 40, 50_000, seconds) for number, (tokens, seconds) in enumerate(steps)
    )
    worker.reported(state(0, 0, timings))
    assert worker.view().rows_s == 0.006
    assert worker.view().piece_token_s == pytest.approx(2e-5)
    assert worker.view().token_s is None, "of steps without rows"


def test_a_run_counts_as_many_sequences_as_it_has_choices_before_the_worker_tells() -> None:
    worker = linked([10.0])
    worker.sent(50, 16)
    assert worker.view().load_sequences == 16


def test_what_one_more_token_adds_is_told_apart_from_the_fixed_part_of_steps() -> None:
    worker = linked([10.0])
    assert worker.more_token_s is None
    fixed_s, more_s = 0.05, 0.001

    def report(*tokens: int) -> None:
        timings = tuple(replace(TIMING, prefill_tokens=each, seconds=fixed_s + more_s * each) for each in tokens)
        worker.reported(state(0, 0, timings))

    report(16, 16)
    assert worker.more_token_s == worker.token_s, "steps alike: nobody knows"
    report(512, 16, 1024)
    assert worker.more_token_s == pytest.approx(more_s)
    assert worker.token_s is not None
    assert worker.token_s > more_s


def test_another_report_in_the_middle_of_a_step_does_not_begin_it_anew() -> None:
    now = [10.0]
    worker = linked(now)
    worker.reported(state(waiting=0, computing=0))
    worker.reported(state(waiting=0, computing=2000))
    now[0] += 1.5
    worker.reported(state(waiting=300, computing=2000))
    assert worker.view().load_tokens == 300 + 500
    worker.reported(state(waiting=0, computing=2300))  # the next step is launched ahead
    assert worker.view().load_tokens == 800
    worker.reported(replace(state(waiting=0, computing=300), steps=6))
    assert worker.view().load_tokens == 300


def test_it_is_load_in_full_while_no_step_has_told_how_fast_it_is() -> None:
    now = [10.0]
    worker = linked(now)
    worker.reported(state(waiting=0, computing=2000, timings=()))
    now[0] += 60.0
    assert worker.view().load_tokens == 2000


def test_a_worker_is_what_its_latest_flip_made_it_in_whatever_order_its_states_come() -> None:
    """Found by the simulation, seed 861: a state that came once more over the next link undid a flip."""
    worker = linked([0.0])
    assert worker.role is Role.PREFILL
    for flip, role, is_now in ((2, Role.DECODE, Role.DECODE), (1, Role.PREFILL, Role.DECODE), (3, Role.PREFILL, None)):
        worker.reported(replace(state(waiting=0, computing=0), role=role, flip=flip))
        assert worker.role is (is_now or Role.PREFILL)
    assert worker.flip_told == 3


def test_as_many_prompt_tokens_come_as_were_computed_of_late_or_were_sent() -> None:
    worker = linked([10.0])
    assert worker.coming_tokens_s == 0
    worker.reported(state(0, 0))
    worker.reported(state(0, 500, timings=()))
    assert worker.coming_tokens_s == pytest.approx(0.5 / SECONDS_A_TOKEN), "in one of two reports it computed"
    for _ in range(100):
        worker.reported(state(0, 500, timings=()))
    assert worker.coming_tokens_s == pytest.approx(1 / SECONDS_A_TOKEN, rel=0.02)
    for _ in range(200):
        worker.sent(300)
        worker.reported(state(0, 500, timings=()))
    assert worker.coming_tokens_s == pytest.approx(3_000, rel=0.02), "it cannot keep up with what is sent"


def test_a_worker_that_begins_to_decode_is_not_taken_to_have_less_to_compute_at_once() -> None:
    """Pieces beside rows are slow: what it computes by them says little of what comes."""
    worker = linked([10.0])
    for _ in range(100):
        worker.reported(state(0, 500))
    piece = StepTiming(step=2, prefill_tokens=64, prefill_pairs=0.0, decode_rows=1, kv_tokens=500, seconds=0.64)
    worker.reported(state(0, 64, timings=(piece,)))
    assert worker.coming_tokens_s == pytest.approx(1 / SECONDS_A_TOKEN, rel=0.06)
