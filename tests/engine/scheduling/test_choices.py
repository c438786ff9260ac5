"""Several choices of one request: one prefill, then forks with copy-on-write."""

from __future__ import annotations

import pytest

from baton_testing.engine.toy_engine import config, engine, key, spec


@pytest.mark.parametrize("tokens", [1, 3, 4, 7, 8, 33])
@pytest.mark.parametrize("ready", [True, False])
def test_choices_are_computed_from_one_prefill(tokens: int, ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    request = spec(1, tokens, choices=(0, 1, 2), max_tokens=11)
    running.scheduler.submit(request, 0.0)
    running.run()
    running.assert_exact(request)
    assert sum(len(chunk.tokens) for plan in running.plans() for chunk in plan.prefill) == tokens
    assert len({tuple(running.result(request, choice)) for choice in (0, 1, 2)}) == 3


def test_slots_of_all_choices_are_taken_at_once() -> None:
    running = engine(config(max_slots=4))
    running.scheduler.submit(spec(1, 5, choices=(0, 1, 2)), 0.0)
    running.scheduler.submit(spec(2, 5, choices=(0, 1)), 0.0)
    running.turn()
    assert [opened.choice for opened in running.plans()[0].opens] == [0, 1, 2]
    running.run()
    assert len(running.finishes) == 5


def test_full_blocks_are_shared_and_the_last_one_is_copied_for_all_but_one() -> None:
    running = engine()
    running.scheduler.submit(spec(1, 10, choices=(0, 1, 2), max_tokens=3), 0.0)
    running.turn()
    assert running.scheduler.stats().blocks_in_use == 3
    running.turn()
    plan = running.plans()[1]
    assert len(plan.copies) == 2
    assert len({copy.source for copy in plan.copies}) == 1
    assert running.scheduler.stats().blocks_in_use == 5


def test_nothing_is_copied_when_the_prompt_ends_with_a_block() -> None:
    running = engine()
    request = spec(1, 8, choices=(0, 1), max_tokens=6)
    running.scheduler.submit(request, 0.0)
    running.run()
    assert not any(plan.copies for plan in running.plans())
    running.assert_exact(request)


def test_choices_that_end_with_their_first_token_are_never_forked() -> None:
    running = engine(is_ready=lambda: False)
    request = spec(1, 6, choices=(0, 1), max_tokens=1)
    running.scheduler.submit(request, 0.0)
    running.run()
    running.assert_exact(request)
    assert [len(plan.closes) for plan in running.plans()] == [2]
    assert not any(plan.copies or plan.decode for plan in running.plans())


@pytest.mark.parametrize("ready", [True, False])
def test_a_choice_that_stops_at_its_first_token_leaves_the_others_alone(ready: bool) -> None:
    plain = spec(1, 6, choices=(0, 1, 2), max_tokens=9)
    for choice in plain.choices:
        running = engine(is_ready=lambda: ready)
        stop = running.expected(plain, choice)[0]
        request = spec(1, 6, choices=(0, 1, 2), max_tokens=9, stop=(stop,))
        running.scheduler.submit(request, 0.0)
        running.run()
        running.assert_exact(request)
        assert len(running.result(request, choice)) == 1


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize("turns", range(9))
@pytest.mark.parametrize("ready", [True, False])
def test_one_choice_can_be_cancelled_at_any_moment(choice: int, turns: int, ready: bool) -> None:
    running = engine(config(max_step_tokens=8), is_ready=lambda: ready)
    request = spec(1, 38, choices=(0, 1, 2), max_tokens=5)
    running.scheduler.submit(request, 0.0)
    for _ in range(turns):
        running.turn()
    running.scheduler.cancel(key(1), choice, 0.0)
    running.run()
    for other in {0, 1, 2} - {choice}:
        assert running.result(request, other) == running.expected(request, other)
    assert running.scheduler.stats().blocks_free + running.scheduler.stats().blocks_cached == 64
    assert running.scheduler.stats().running == 0


def test_cancelling_every_choice_ends_the_request() -> None:
    running = engine()
    running.scheduler.submit(spec(1, 38, choices=(3, 5)), 0.0)
    running.turn()
    running.scheduler.cancel(key(1), 5, 0.0)
    running.scheduler.cancel(key(1), 3, 0.0)
    assert not running.scheduler.knows(key(1))
    running.run()
    assert running.stepper.idle


def test_choices_that_do_not_fit_together_run_one_after_another() -> None:
    running = engine(config(num_blocks=16))
    request = spec(1, 30, choices=(0, 1, 2, 3), max_tokens=30)
    running.scheduler.submit(request, 0.0)
    running.run()
    running.assert_exact(request)
    assert running.scheduler.stats().preemptions > 0
