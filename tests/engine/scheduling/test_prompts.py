"""Prompts that are computed here: batching, budget, admission, refusals, deadlines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_engine.scheduling.events import Computed, Drawn, Failed, SequenceSpec
from baton_engine.scheduling.step_plan import StepPlan
from baton_testing.engine.toy_engine import Engine, config, engine, key, spec
from baton_wire.messages.values import Reason


def submit(running: Engine, *requests: SequenceSpec) -> None:
    for request in requests:
        running.scheduler.submit(request, running.now)
    running.take_events()


def chunks(plan: StepPlan) -> list[int]:
    """Lengths of the step's prefill chunks."""
    return [len(chunk.tokens) for chunk in plan.prefill]


def reasons(running: Engine) -> list[tuple[int, Reason]]:
    return [(int.from_bytes(failed.key.request, "big"), failed.reason) for failed in running.failures()]


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 31, 32, 33, 40, 63])
@pytest.mark.parametrize("ready", [True, False])
def test_a_prompt_of_any_length_gives_the_tokens_of_a_run_alone(tokens: int, ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    request = spec(1, tokens, max_tokens=20)
    submit(running, request)
    running.run()
    running.assert_exact(request)


def test_prompts_share_a_step_and_new_ones_join_running_rows() -> None:
    running = engine()
    submit(running, spec(1, 10), spec(2, 12))
    running.turn()
    submit(running, spec(3, 5))
    running.turn()
    first, second = running.plans()
    assert (chunks(first), first.decode) == ([10, 12], ())
    assert (chunks(second), len(second.decode)) == ([5], 2)


def test_a_prompt_that_does_not_fit_into_the_rest_of_the_budget_waits_to_be_whole() -> None:
    running = engine()
    submit(running, spec(1, 20), spec(2, 20), spec(3, 5))
    running.turn()
    running.turn()
    assert [chunks(plan) for plan in running.plans()] == [[20], [20, 5]]


def test_a_prompt_beyond_the_budget_is_cut_and_leaves_room_for_others() -> None:
    running = engine(config(chunk_tokens=8))
    requests = [spec(1, 50), spec(2, 20), spec(3, 4)]
    submit(running, *requests)
    running.run()
    assert [chunks(plan) for plan in running.plans() if plan.prefill] == [[8, 20, 4], [32], [10]]
    for request in requests:
        running.assert_exact(request)


def test_a_long_prompt_alone_uses_the_whole_budget() -> None:
    running = engine(config(chunk_tokens=8))
    submit(running, spec(1, 60))
    running.run()
    assert [chunks(plan) for plan in running.plans() if plan.prefill] == [[32], [28]]


@pytest.mark.parametrize("step_tokens", range(1, 13))
def test_chunk_borders_do_not_change_the_output(step_tokens: int) -> None:
    running = engine(config(max_step_tokens=step_tokens))
    request = spec(1, 11)
    submit(running, request)
    running.run()
    running.assert_exact(request)


def test_steady_decoding_sends_the_same_tuple_of_slots() -> None:
    running = engine(config(block_tokens=32, num_blocks=8))
    submit(running, spec(1, 4, max_tokens=20), spec(2, 4, max_tokens=20))
    for _ in range(6):
        running.turn()
    steady = running.plans()[2:]
    assert all(plan.decode is steady[0].decode for plan in steady)
    assert all(not (plan.opens or plan.blocks or plan.closes) for plan in steady)


def test_a_prompt_starts_only_when_all_its_blocks_are_there() -> None:
    running = engine(config(num_blocks=16))
    submit(running, spec(1, 40, max_tokens=4), spec(2, 30, max_tokens=4))
    running.turn()
    assert [len(plan.opens) for plan in running.plans()] == [1]
    running.run()
    assert len(running.finishes) == 2
    assert running.scheduler.stats().preemptions == 0


def test_new_prompts_leave_a_watermark_for_running_rows() -> None:
    running = engine(config(num_blocks=20, watermark_share=0.2))
    submit(running, spec(1, 16, max_tokens=8), spec(2, 50, max_tokens=2))
    running.turn()
    running.turn()
    assert len(running.plans()[1].opens) == 0  # 16 blocks are free, 13 are needed, 4 have to stay
    running.run()
    assert len(running.finishes) == 2


def test_order_of_arrival_holds_when_blocks_are_short() -> None:
    running = engine(config(num_blocks=16))
    submit(running, spec(1, 30, max_tokens=9), spec(2, 50, max_tokens=2), spec(3, 4, max_tokens=2))
    running.run()
    assert [len(opened.prompt) for plan in running.plans() for opened in plan.opens] == [30, 50, 4]


@pytest.mark.parametrize("cached_blocks", range(6))
def test_a_prefix_hit_of_any_length_changes_nothing_but_the_work(cached_blocks: int) -> None:
    running = engine()
    tokens = list(range(21))
    submit(running, spec(1, [*tokens[: cached_blocks * 4], 45], max_tokens=1))
    running.run()
    request = spec(2, tokens, max_tokens=6)
    submit(running, request)
    running.run()
    running.assert_exact(request)
    computed = sum(sum(chunks(plan)) for plan in running.plans()[1:])
    assert computed == 21 - cached_blocks * 4


def test_at_least_one_token_is_computed_however_much_is_cached() -> None:
    running = engine()
    first, again = spec(1, range(16), max_tokens=1), spec(2, range(16), max_tokens=4)
    submit(running, first)
    running.run()
    submit(running, again)
    running.run()
    assert chunks(running.plans()[1]) == [4]
    running.assert_exact(again)


def test_the_first_token_tells_what_the_cache_had_of_the_prompt() -> None:
    running = engine()
    for number in (1, 2):
        submit(running, spec(number, range(21), choices=(0, 1), max_tokens=3))
        running.run()
    reported = [
        (event.key, event.first_index, event.cached_tokens) for event in running.log if isinstance(event, Drawn)
    ]
    assert reported == [
        (key(number), index, cached if index == 0 else None)
        for number, cached in ((1, 0), (2, 20))
        for index in (0, 1, 2)
        for _ in (0, 1)
    ]


def test_generated_tokens_are_hit_by_the_next_turn_of_a_conversation() -> None:
    running = engine()
    first = spec(1, range(10), max_tokens=10)
    submit(running, first)
    running.run()
    follow = spec(2, [*range(10), *running.result(first), 1, 2], max_tokens=4)
    submit(running, follow)
    running.run()
    running.assert_exact(follow)
    assert running.scheduler.stats().cached_prompt_tokens == 16


def test_kv_is_not_hit_before_it_is_computed() -> None:
    running = engine(is_ready=lambda: False)
    requests = [spec(1, range(30), max_tokens=3), spec(2, range(30), max_tokens=3)]
    submit(running, requests[0])
    assert running.scheduler.plan(0.0) is not None  # launched, not collected
    submit(running, requests[1])
    plan = running.scheduler.plan(0.0)
    assert plan is not None
    assert [(chunk.start, len(chunk.tokens)) for chunk in plan.prefill] == [(0, 30)]


def test_salts_do_not_share() -> None:
    running = engine()
    for number, salt in ((1, "a"), (2, "b"), (3, "a")):
        submit(running, spec(number, range(20), salt=salt, max_tokens=2))
        running.run()
    assert [sum(chunks(plan)) for plan in running.plans() if plan.prefill] == [20, 20, 4]


def test_without_the_prefix_cache_everything_is_computed() -> None:
    running = engine(config(prefix_cache=False))
    for number in (1, 2):
        submit(running, spec(number, range(20), max_tokens=2))
        running.run()
    assert [sum(chunks(plan)) for plan in running.plans() if plan.prefill] == [20, 20]
    assert running.scheduler.stats().blocks_free == 64


def test_forced_tokens_are_outputs() -> None:
    running = engine()
    request = spec(1, 7, forced=(3, 1, 4), max_tokens=9)
    submit(running, request)
    running.run()
    running.assert_exact(request)
    (opened,) = running.plans()[0].opens
    assert (opened.prompt, opened.outputs) == (request.tokens[:7], (3, 1, 4))
    assert running.first_index[key(1), 0] == 3


def test_a_migrated_request_continues_as_if_it_had_never_moved() -> None:
    undisturbed, moved = engine(), engine()
    request = spec(1, 9, max_tokens=14)
    submit(undisturbed, request)
    undisturbed.run()
    whole = undisturbed.result(request)
    for delivered in range(1, 14):
        again = spec(1, 9, forced=whole[:delivered], max_tokens=14, attempt=delivered + 1)
        submit(moved, again)
        moved.run()
        assert moved.result(again) == whole


@pytest.mark.parametrize(
    ("request_", "reason", "detail"),
    [
        (spec(1, ()), Reason.BAD_REQUEST, "tokens: empty"),
        (spec(1, 5, choices=()), Reason.BAD_REQUEST, "choices"),
        (spec(1, 5, choices=(0, 0)), Reason.BAD_REQUEST, "choices"),
        (spec(1, 5, forced=(1, 2), max_tokens=2), Reason.BAD_REQUEST, "max_tokens: 2"),
        (SequenceSpec(key(1), (1, 2), 0, (0,), spec(1, 1).sampling, "", 9.0), Reason.BAD_REQUEST, "prompt_tokens: 0"),
        (SequenceSpec(key(1), (1, 2), 3, (0,), spec(1, 1).sampling, "", 9.0), Reason.BAD_REQUEST, "prompt_tokens: 3"),
        (spec(1, 64), Reason.TOO_LONG, "tokens: 64 leave no room in a context of 64"),
        (spec(1, 5, choices=range(9)), Reason.BAD_REQUEST, "at most 8"),
        (spec(1, 5, deadline_s=0.0), Reason.DEADLINE, ""),
    ],
)
def test_what_can_never_be_served_fails_at_once(request_: SequenceSpec, reason: Reason, detail: str) -> None:
    for verb in ("submit", "reserve"):
        running = engine()
        getattr(running.scheduler, verb)(request_, 0.0)
        (failed,) = running.scheduler.events()
        assert isinstance(failed, Failed)
        assert failed.reason is reason
        assert detail in failed.detail
        assert not running.turn()


def test_a_full_queue_refuses() -> None:
    running = engine(config(max_waiting=2))
    submit(running, spec(1, 5), spec(2, 5), spec(3, 5))
    assert reasons(running) == [(3, Reason.NO_CAPACITY)]
    running.run()
    assert len(running.finishes) == 2


def test_a_known_key_is_refused_and_the_first_request_goes_on() -> None:
    running = engine()
    request = spec(1, 5)
    submit(running, request, spec(1, 9))
    running.scheduler.reserve(spec(1, 9), 0.0)
    running.run()
    assert reasons(running) == [(1, Reason.BAD_REQUEST)] * 2
    running.assert_exact(request)


def test_a_drained_scheduler_finishes_and_refuses() -> None:
    running = engine()
    request = spec(1, 5)
    submit(running, request)
    running.scheduler.drain()
    submit(running, spec(2, 5))
    running.run()
    assert reasons(running) == [(2, Reason.DRAINING)]
    running.assert_exact(request)
    assert running.scheduler.stats().is_draining


def test_deadlines_end_waiting_and_running_requests() -> None:
    running = engine(config(max_slots=1))
    submit(running, spec(1, 5, max_tokens=50, deadline_s=10.0), spec(2, 5, deadline_s=5.0), spec(3, 5))
    running.turn()
    running.now = 5.0
    running.turn()
    assert reasons(running) == [(2, Reason.DEADLINE)]
    running.now = 10.0
    running.run()
    assert reasons(running) == [(2, Reason.DEADLINE), (1, Reason.DEADLINE)]
    assert (key(3), 0) in running.finishes


def test_a_deadline_of_an_earlier_attempt_does_not_hit_a_later_request() -> None:
    running = engine()
    submit(running, spec(1, 5, max_tokens=2, deadline_s=5.0))
    running.run()
    running.finishes.clear()
    running.outputs.clear()
    running.first_index.clear()
    again = spec(1, 5, max_tokens=2)
    submit(running, again)
    running.now = 6.0
    running.run()
    assert not running.failures()


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("ready", [True, False])
def test_a_cancel_at_any_moment_frees_everything(turns: int, ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    submit(running, spec(1, 50, max_tokens=5), spec(2, 6, max_tokens=5))
    for _ in range(turns):
        running.turn()
    before = len(running.log)
    running.scheduler.cancel(key(1), None, running.now)
    running.run()
    assert not any(event.key == key(1) for event in running.log[before:])
    running.assert_exact(spec(2, 6, max_tokens=5))
    stats = running.scheduler.stats()
    assert stats.blocks_free + stats.blocks_cached == 64
    assert running.stepper.idle


def test_unknown_keys_are_ignored() -> None:
    running = engine()
    running.scheduler.release(key(9), 0.0)
    running.scheduler.cancel(key(9), None, 0.0)
    running.scheduler.cancel(key(9), 3, 0.0)
    running.scheduler.landed(key(9), (), 0.0)
    running.scheduler.granted(key(9), 0.0)
    assert running.scheduler.events() == []
    assert not running.turn()


def test_a_prompt_that_is_not_held_reports_no_progress() -> None:
    running = engine()
    submit(running, spec(1, 40))
    running.run()
    assert not [event for event in running.log if isinstance(event, Computed)]


def test_two_thousand_cancels_at_once_are_survived() -> None:
    running = engine(config(max_waiting=3_000))
    submit(running, *(spec(number, 6, max_tokens=50) for number in range(1, 2_001)))
    running.turn()
    running.turn()
    for number in range(1, 2_001):
        running.scheduler.cancel(key(number), None, 0.0)
    running.run()
    stats = running.scheduler.stats()
    assert (stats.running, stats.waiting, stats.waiting_tokens) == (0, 0, 0)
    assert stats.blocks_free + stats.blocks_cached == 64


@pytest.mark.parametrize("hold", [False, True])
def test_a_prompt_whose_draw_has_to_wait_is_computed_and_told_of_meanwhile(hold: bool) -> None:
    """Its logits are kept; the draw is a chunk without tokens. Running rows go on."""
    late = {2}
    running = engine(may_draw=lambda sampling: sampling.seed not in late)
    first, waiting = spec(1, 5, max_tokens=20), spec(2, 9, max_tokens=1 if hold else 6, hold=hold)
    submit(running, first, waiting)
    for _ in range(4):
        running.turn()
    chunk = running.plans()[0].prefill[1]
    assert chunk == replace(chunk, tokens=waiting.tokens, sample=(), keeps=True)
    assert not any(plan.prefill for plan in running.plans()[1:])
    assert [event.tokens for event in running.computed()] == ([9] if hold else [])
    assert (waiting.key, 0) not in running.outputs
    late.clear()
    running.turn()
    assert running.plans()[-1].prefill == (replace(chunk, start=9, tokens=(), sample=(chunk.slot,), keeps=False),)
    running.run()
    running.assert_exact(first)
    running.assert_exact(waiting)
    assert len(running.prefilled()) == hold
    assert [event.tokens for event in running.computed()] == ([9] if hold else [])
