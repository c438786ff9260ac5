"""How sequences end: stop ids act when they are known, lengths are known ahead."""

from __future__ import annotations

import pytest

from baton_engine.scheduling.events import Drawn
from baton_engine.scheduling.step_plan import SlotTokens, StepPlan, StepResult
from baton_testing.engine.toy_engine import Engine, config, engine, key, spec
from baton_wire.messages.values import Finish


def rows(plans: list[StepPlan]) -> int:
    return sum(len(plan.decode) for plan in plans)


def run_one(running: Engine, **changes: object) -> list[int]:
    request = spec(1, 6, **changes)  # type: ignore[arg-type]
    running.scheduler.submit(request, 0.0)
    running.run()
    running.assert_exact(request)
    return running.result(request)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 10])
def test_no_row_is_planned_beyond_the_length(ready: bool, max_tokens: int) -> None:
    running = engine(is_ready=lambda: ready)
    assert len(run_one(running, max_tokens=max_tokens)) == max_tokens
    assert running.finishes[key(1), 0] is Finish.LENGTH
    assert rows(running.plans()) == max_tokens - 1
    assert running.plans()[-1].closes == (0,)


@pytest.mark.parametrize("ready", [True, False])
def test_the_context_limit_ends_by_length(ready: bool) -> None:
    running = engine(config(max_context_tokens=16), is_ready=lambda: ready)
    assert len(run_one(running, max_tokens=100)) == 10
    assert running.finishes[key(1), 0] is Finish.LENGTH


@pytest.mark.parametrize(("ready", "surplus"), [(True, 0), (False, 1)])
def test_a_stop_id_costs_one_surplus_row_when_planned_ahead(ready: bool, surplus: int) -> None:
    running = engine(is_ready=lambda: ready)
    whole = running.expected(spec(1, 6, max_tokens=20))
    stop = whole[4]
    assert run_one(running, max_tokens=20, stop=(stop,)) == whole[: whole.index(stop) + 1]
    assert running.finishes[key(1), 0] is Finish.STOP
    assert rows(running.plans()) == whole.index(stop) + surplus


def test_one_step_ahead_can_be_switched_off() -> None:
    running = engine(config(one_step_ahead=False), is_ready=lambda: False)
    stop = running.expected(spec(1, 6, max_tokens=20))[4]
    outputs = run_one(running, max_tokens=20, stop=(stop,))
    assert rows(running.plans()) == len(outputs) - 1


@pytest.mark.parametrize("min_tokens", range(1, 8))
def test_stop_ids_do_not_end_before_min_tokens(min_tokens: int) -> None:
    running = engine()
    stop = running.expected(spec(1, 6, max_tokens=20))[:6]
    assert len(run_one(running, max_tokens=20, stop=stop, min_tokens=min_tokens)) > min_tokens


def test_a_runner_that_draws_a_stop_id_too_early_does_not_end_the_sequence() -> None:
    scheduler = engine().scheduler
    scheduler.submit(spec(1, 6, max_tokens=9, min_tokens=2, stop=(5,)), 0.0)
    finishes = []
    for _ in range(3):
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.apply(StepResult(plan.step, (SlotTokens(0, (5,)),), 0.0), 0.0)
        finishes += [event.finish for event in scheduler.events() if isinstance(event, Drawn)]
    assert finishes == [None, None, Finish.STOP]


def test_results_must_come_in_order_and_for_planned_rows() -> None:
    scheduler = engine().scheduler
    with pytest.raises(RuntimeError, match="result of step 1, expected None"):
        scheduler.apply(StepResult(1, (), 0.0), 0.0)
    scheduler.submit(spec(1, 6), 0.0)
    scheduler.plan(0.0)
    with pytest.raises(RuntimeError, match="result of step 2, expected 1"):
        scheduler.apply(StepResult(2, (), 0.0), 0.0)
    with pytest.raises(RuntimeError, match="tokens for slot 3, which had no row"):
        scheduler.apply(StepResult(1, (SlotTokens(3, (5,)),), 0.0), 0.0)


def test_a_stop_id_as_the_last_token_is_a_stop() -> None:
    running = engine()
    whole = running.expected(spec(1, 6, max_tokens=3))
    run_one(running, max_tokens=3, stop=(whole[2],))
    assert running.finishes[key(1), 0] is Finish.STOP


def test_forced_tokens_count_towards_the_length() -> None:
    running = engine()
    assert len(run_one(running, forced=(1, 2, 3), max_tokens=5)) == 5
    assert len(running.outputs[key(1), 0]) == 2


@pytest.mark.parametrize("ready", [True, False])
def test_a_slot_is_reused_only_after_its_closing_step_was_collected(ready: bool) -> None:
    running = engine(config(max_slots=2), is_ready=lambda: ready)
    requests = [spec(number, 5, max_tokens=7, stop=range(0, 50, 3)) for number in range(1, 30)]
    for request in requests:
        running.scheduler.submit(request, 0.0)
    running.run()  # the toy runner refuses a slot that is open or whose closing step is not collected
    for request in requests:
        running.assert_exact(request)


@pytest.mark.parametrize("ready", [True, False])
def test_every_opened_slot_is_closed(ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    for number in range(1, 20):
        running.scheduler.submit(spec(number, 5, choices=(0, 1), stop=range(0, 50, 4)), 0.0)
    running.run()
    opens = sum(len(plan.opens) for plan in running.plans())
    closes = sum(len(plan.closes) for plan in running.plans())
    assert opens == closes == 38
