"""A worker's load as routing counts it: its last report, what was sent since, and what has been computed since."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    hello |= {"encoding": None}
    address = Address("127.0.0.1", 1)
    return LinkedWorker(
        cast(Any, SimpleNamespace(**hello)), address, cast(Any, None), lambda message: True, lambda: now[0]
    )


def state(waiting: int, computing: int, timings: tuple[StepTiming, ...] = (TIMING,)) -> WorkerState:
    return WorkerState(False, 1, 1, waiting, 90, 0, 5, 0.1, timings=timings, computing_tokens=computing)


def test_a_prompt_that_is_computed_is_load_until_it_should_be_done() -> None:
    now = [10.0]
    worker = linked(now)
    worker.record_report(state(waiting=300, computing=2000))
    assert worker.view().load_tokens == 2300
    worker.record_sent(50)
    now[0] += 1.5
    assert worker.view().load_tokens == 300 + 500 + 50
    now[0] += 5.0
    assert worker.view().load_tokens == 200 + 50, "a step that is not reported yet took the first waiting prompts"


def test_only_prompts_that_it_computes_are_in_a_decode_workers_line() -> None:
    worker = linked([10.0])
    worker.record_sent(500, is_computed=False)
    worker.record_sent(70)
    assert (worker.view().load_tokens, worker.view().prompt_tokens) == (570, 70)


def test_steps_with_rows_tell_what_a_piece_of_a_prompt_costs() -> None:
    worker = linked([10.0])
    assert (worker.view().rows_s, worker.view().piece_token_s) == (None, None)
    steps = [(0, 0.006), (100, 0.008), (100, 0.008)]
    timings = tuple(
        StepTiming(number, tokens, 0.0, 40, 50_000, seconds) for number, (tokens, seconds) in enumerate(steps)
    )
    worker.record_report(state(0, 0, timings))
    assert worker.view().rows_s == 0.006
    assert worker.view().piece_token_s == pytest.approx(2e-5)
    assert worker.view().token_s is None, "of steps without rows"


def test_a_run_counts_as_many_sequences_as_it_has_choices_before_the_worker_tells() -> None:
    worker = linked([10.0])
    worker.record_sent(50, 16)
    assert worker.view().load_sequences == 16


def test_what_one_more_token_adds_is_told_apart_from_the_fixed_part_of_steps() -> None:
    worker = linked([10.0])
    assert worker.more_token_s is None
    fixed_s, more_s = 0.05, 0.001

    def report(*tokens: int) -> None:
        timings = tuple(replace(TIMING, prefill_tokens=count, seconds=fixed_s + more_s * count) for count in tokens)
        worker.record_report(state(0, 0, timings))

    report(16, 16)
    assert worker.more_token_s == worker.token_s, "steps alike: unknown"
    report(512, 16, 1024)
    assert worker.more_token_s == pytest.approx(more_s)
    assert worker.token_s is not None
    assert worker.token_s > more_s


def test_another_report_in_the_middle_of_a_step_does_not_begin_it_anew() -> None:
    now = [10.0]
    worker = linked(now)
    worker.record_report(state(waiting=0, computing=0))
    worker.record_report(state(waiting=0, computing=2000))
    now[0] += 1.5
    worker.record_report(state(waiting=300, computing=2000))
    assert worker.view().load_tokens == 300 + 500
    worker.record_report(state(waiting=0, computing=2300))  # the next step is launched ahead
    assert worker.view().load_tokens == 800
    worker.record_report(replace(state(waiting=0, computing=300), steps=6))
    assert worker.view().load_tokens == 300


def test_it_is_load_in_full_while_no_step_has_told_how_fast_it_is() -> None:
    now = [10.0]
    worker = linked(now)
    worker.record_report(state(waiting=0, computing=2000, timings=()))
    now[0] += 60.0
    assert worker.view().load_tokens == 2000


def test_a_worker_is_what_its_latest_flip_made_it_in_whatever_order_its_states_come() -> None:
    """Found by the simulation, seed 861: a state that came once more over the next link undid a flip."""
    worker = linked([0.0])
    assert worker.role is Role.PREFILL
    for flip, role, is_now in ((2, Role.DECODE, Role.DECODE), (1, Role.PREFILL, Role.DECODE), (3, Role.PREFILL, None)):
        worker.record_report(replace(state(waiting=0, computing=0), role=role, flip=flip))
        assert worker.role is (is_now or Role.PREFILL)
    assert worker.reported_flip == 3


def test_as_many_prompt_tokens_come_as_were_computed_of_late_or_were_sent() -> None:
    now = [10.0]
    worker = linked(now)
    assert worker.coming_tokens_s == 0

    def report(computing: int, sent: int = 0) -> None:
        now[0] += 0.1
        worker.record_sent(sent)
        worker.record_report(state(0, computing, timings=() if worker.token_s else (TIMING,)))

    report(500)
    report(0)
    report(500)
    assert worker.coming_tokens_s == pytest.approx(1 / 3 / SECONDS_A_TOKEN, rel=0.05), "between one pair of three"
    for _ in range(100):
        report(500)
    assert worker.coming_tokens_s == pytest.approx(1 / SECONDS_A_TOKEN, rel=0.02)
    for _ in range(200):
        report(500, sent=300)
    assert worker.coming_tokens_s == pytest.approx(3_000, rel=0.02), "it cannot keep up with what is sent"


def test_a_worker_that_begins_to_decode_is_not_taken_to_have_less_to_compute_at_once() -> None:
    """Pieces in steps with rows are slow: their tokens say little about arrivals."""
    now = [10.0]
    worker = linked(now)
    for _ in range(100):
        now[0] += 0.1
        worker.record_report(state(0, 500))
    piece = StepTiming(step=2, prefill_tokens=64, prefill_pairs=0.0, decode_rows=1, kv_tokens=500, seconds=0.64)
    now[0] += 0.1
    worker.record_report(state(0, 64, timings=(piece,)))
    assert worker.coming_tokens_s == pytest.approx(1 / SECONDS_A_TOKEN, rel=0.06)


def test_what_came_in_a_burst_comes_no_more_once_the_worker_is_silent() -> None:
    """A worker without work says nothing, for hours."""
    now = [10.0]
    worker = linked(now)
    for _ in range(50):
        now[0] += 0.1
        worker.record_sent(2_000)
        worker.record_report(state(0, 500))
    assert worker.coming_tokens_s == pytest.approx(20_000, rel=0.02)
    worker.record_report(state(0, 0))
    now[0] += 10.0
    assert worker.coming_tokens_s < 200
    worker.record_sent(2_000)
    worker.record_report(state(0, 500))
    assert worker.coming_tokens_s < 1_300, "one prompt after ten seconds is no burst"


@given(st.lists(st.sampled_from([0.1, 0.1, 0.15, 0.3, 1.0]), min_size=1, max_size=9), st.integers(1, 60_000))
def test_rates_are_by_time_however_often_a_worker_reports(gaps: list[float], tokens_s: int) -> None:
    now, sent_s = [10.0], 10.0
    worker = linked(now)
    worker.record_report(state(0, 0))
    for gap in itertools.cycle(gaps):
        now[0] += gap
        worker.record_sent(round(tokens_s * (now[0] - sent_s)))
        sent_s = now[0]
        worker.record_report(state(0, 0))
        if now[0] > 40.0:
            break
    assert worker.coming_tokens_s == pytest.approx(tokens_s, rel=0.05, abs=10.0)
    rates = []
    for _ in range(5):
        rates.append(worker.coming_tokens_s)
        now[0] += 0.7
    assert rates == sorted(rates, reverse=True)
    assert min(rates) >= 0.0


MOMENTS = st.one_of(
    st.tuples(st.just("time"), st.floats(0, 3)),
    st.tuples(st.just("sent"), st.integers(1, 40_000), st.booleans()),
    st.tuples(
        st.just("report"),
        *(st.integers(0, 5), st.integers(0, 50_000), st.integers(0, 8_192), st.integers(0, 4)),
        st.lists(
            st.tuples(st.integers(0, 8_192), st.integers(0, 256), st.floats(1e-6, 5)).filter(lambda t: t[0] or t[1]),
            max_size=4,
        ),
    ),
)


@given(st.lists(MOMENTS, max_size=40))
def test_whatever_a_worker_reports_its_load_is_neither_negative_nor_more_than_there_is(moments: list[Any]) -> None:
    now, reported, sent, prompts = [10.0], 0, 0, 0
    worker = linked(now)
    for moment in moments:
        match moment:
            case "time", seconds:
                now[0] += seconds
            case "sent", tokens, is_computed:
                worker.record_sent(tokens, is_computed=is_computed)
                sent, prompts = sent + tokens, prompts + tokens * is_computed
            case "report", running, waiting, computing, blocks, steps:
                timings = tuple(
                    StepTiming(number, tokens, 0.0, rows, 0, seconds)
                    for number, (tokens, rows, seconds) in enumerate(steps)
                )
                worker.record_report(
                    WorkerState(
                        False,
                        running,
                        1,
                        waiting,
                        blocks,
                        0,
                        len(steps),
                        0.1,
                        timings=timings,
                        computing_tokens=computing,
                    )
                )
                reported, sent, prompts = waiting + computing, 0, 0
        view = worker.view()
        assert prompts <= view.prompt_tokens <= prompts + reported
        assert view.load_tokens - view.prompt_tokens == sent - prompts
        assert view.blocks_free is None or view.blocks_free >= 0
        assert 0 <= view.coming_tokens_s < float("inf")
        assert view.token_s is None or view.token_s > 0
        assert view.token_s is None or (view.more_token_s is not None and 0 < view.more_token_s <= view.token_s)
        assert (view.rows_s is None) == (view.least_rows_s is None) or view.least_rows_s is None
        assert view.rows >= 0


def test_a_worker_whose_step_takes_far_longer_than_its_steps_do_is_stuck_until_it_moves() -> None:
    now = [10.0]
    worker = linked(now)
    worker.record_report(state(waiting=0, computing=1_000))
    assert not worker.view().is_stuck
    now[0] += 4.9
    assert not worker.view().is_stuck, "a busy machine may take a few times as long"
    now[0] += 0.2
    assert worker.view().is_stuck
    worker.record_report(replace(state(waiting=0, computing=1_000), steps=6))
    assert not worker.view().is_stuck
    fresh = linked(now)
    fresh.record_report(state(waiting=0, computing=1_000, timings=()))
    now[0] += 100.0
    assert not fresh.view().is_stuck, "how long its steps take is not known"


def test_what_a_worker_did_lately_outlives_a_quiet_second_and_fades_within_minutes() -> None:
    now = [10.0]
    worker = linked(now)
    worker.record_report(state(waiting=0, computing=0))
    worker.record_sent(6_000)
    now[0] += 1.0
    worker.record_report(state(waiting=0, computing=0))
    first = worker.view().lately_tokens_s
    assert first == pytest.approx(100.0)
    now[0] += 1.0
    worker.record_report(state(waiting=0, computing=0))
    assert worker.view().lately_tokens_s > 0.95 * first
    now[0] += 600.0
    worker.record_report(state(waiting=0, computing=0))
    assert worker.view().lately_tokens_s < 0.01 * first


def test_held_kv_of_the_last_seconds_outlasts_the_trough_of_a_wave() -> None:
    now = [0.0]
    worker = linked(now)
    total, block_tokens = worker.hello.blocks_total, worker.hello.block_tokens

    def report(used_blocks: int, reports: int) -> None:
        for _ in range(reports):
            now[0] += 0.1
            worker.record_report(replace(state(0, 0), blocks_free=total - used_blocks))

    report(20, 80)
    assert worker.view().usual_held_tokens == pytest.approx(20 * block_tokens, rel=0.1)
    report(0, 4)
    assert worker.view().held_tokens == 0
    assert worker.view().usual_held_tokens > 15 * block_tokens
    report(0, 100)
    assert worker.view().usual_held_tokens < block_tokens
