"""Prompts with a common beginning that arrive together: it is computed once."""

from __future__ import annotations

import pytest

from baton_engine.scheduling.events import SequenceSpec
from baton_engine.scheduling.step_plan import StepPlan
from baton_testing.engine.toy_engine import Engine, config, engine, key, spec

LONG = config(num_blocks=1_024, max_context_tokens=2_048, max_step_tokens=1_024, max_slots=16)


def submit(running: Engine, *requests: SequenceSpec) -> None:
    for request in requests:
        running.scheduler.submit(request, running.now)
    running.take_events()


def chunks(plan: StepPlan) -> list[int]:
    """Lengths of the step's prefill chunks."""
    return [len(chunk.tokens) for chunk in plan.prefill]


@pytest.mark.parametrize("ready", [True, False])
def test_a_prompt_waits_while_another_computes_its_beginning_and_computes_the_rest_alone(ready: bool) -> None:
    running, head = engine(LONG, is_ready=lambda: ready), list(range(400))
    requests = [spec(number, [*head, *range(number * 50, number * 50 + 40)]) for number in (1, 2, 3)]
    submit(running, *requests, spec(4, 100))
    running.run()
    assert [chunks(plan) for plan in running.plans() if plan.prefill] == [[440, 100], [40, 40]]
    for request in requests:
        running.assert_exact(request)


def test_a_prompt_does_not_wait_for_a_short_beginning_nor_for_one_of_another_salt() -> None:
    running, head = engine(LONG, is_ready=lambda: False), list(range(400))
    submit(running, spec(1, [*head, 1]), spec(2, [*head[:200], 2]), spec(3, [*head, 3], salt="other"))
    running.turn()
    (first,) = [chunks(plan) for plan in running.plans() if plan.prefill]
    assert first == [401, 201, 401]


def test_a_prompt_waits_only_until_the_common_part_of_a_long_one_is_computed() -> None:
    running, head = engine(LONG, is_ready=lambda: False), list(range(400))
    long, short = spec(1, [*head, *range(1_000, 1_997), *range(500)]), spec(2, [*head, 2])
    submit(running, long, short)
    running.run()
    steps = [chunks(plan) for plan in running.plans() if plan.prefill]
    assert [len(step) for step in steps] == [1, 1, 2, 1, 1], "it need not wait for the whole prompt"
    assert sum(map(sum, steps)) == len(long.tokens) + len(short.tokens) - 256, "fewer than 256 tokens are not awaited"
    running.assert_exact(long)
    running.assert_exact(short)


def test_a_prompt_goes_on_when_the_one_it_waited_for_is_cancelled() -> None:
    running, head = engine(LONG, is_ready=lambda: False), list(range(400))
    other = spec(2, [*head, 2])
    submit(running, spec(1, [*head, 1]), other)
    running.turn()
    running.scheduler.cancel(key(1), None, 0.0)
    running.run()
    running.assert_exact(other)
