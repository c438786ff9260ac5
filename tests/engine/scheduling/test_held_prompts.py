"""A prefill worker's prompts: computed, reported, held until the hand-over releases them."""

from __future__ import annotations

import pytest

from baton_engine.scheduling.events import Computed, Computing, Drawn, Failed, Prefilled, SchedulerEvent
from baton_testing.engine.toy_engine import Engine, config, engine, key, spec
from baton_wire.messages.values import Finish, Reason


def held(running: Engine, *numbers: int, tokens: int = 10) -> None:
    for number in numbers:
        running.scheduler.submit(spec(number, tokens, hold=True), running.now)


def kinds(events: list[SchedulerEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.mark.parametrize("ready", [True, False])
def test_a_held_prompt_reports_each_chunk_then_its_tokens_then_that_it_is_complete(ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    request = spec(1, 50, choices=(0, 1), hold=True)
    running.scheduler.submit(request, 0.0)
    running.run()
    names = kinds([event for event in running.log if not isinstance(event, Computing)])
    assert names == ["Computed", "Computed", "Drawn", "Drawn", "Prefilled"]
    begun = [event for event in running.log if isinstance(event, Computing)]
    assert [(event.step, event.tokens) for event in begun] == [(1, 32), (2, 50)]
    assert [event.blocks for event in begun] == [event.blocks for event in running.computed()]
    assert [event.tokens for event in running.computed()] == [32, 50]
    assert all(len(event.blocks) == 13 for event in running.computed())
    (prefilled,) = running.prefilled()
    assert [(first.choice, first.token, first.finish) for first in prefilled.first_tokens] == [
        (choice, running.expected(request, choice)[0], None) for choice in (0, 1)
    ]


def test_a_held_prompt_gives_back_its_slots_and_keeps_its_blocks_until_the_release() -> None:
    running = engine()
    held(running, 1)
    running.run()
    stats = running.scheduler.stats()
    assert (stats.running, stats.blocks_in_use) == (0, 3)
    running.now = 1e12  # a complete prompt belongs to its hand-over, which has its own deadline
    running.run()
    assert running.scheduler.stats().blocks_in_use == 3
    running.scheduler.release(key(1), 0.0)
    running.scheduler.check()
    assert running.scheduler.stats().blocks_in_use == 0


def test_a_cached_prefix_is_reported_before_the_first_chunk() -> None:
    running = engine()
    running.scheduler.submit(spec(1, range(17), max_tokens=1), 0.0)
    running.run()
    running.scheduler.submit(spec(2, range(17), hold=True), 0.0)
    assert running.scheduler.plan(0.0) is not None
    event, begun = running.scheduler.events()
    assert isinstance(event, Computed)
    assert (event.tokens, len(event.blocks)) == (16, 5)
    assert begun == Computing(key(2), running.stepper.steps + 1, 17, event.blocks)


@pytest.mark.parametrize(("max_tokens", "finish"), [(1, Finish.LENGTH), (8, None)])
def test_a_first_token_that_is_the_last_says_so(max_tokens: int, finish: Finish | None) -> None:
    running = engine()
    running.scheduler.submit(spec(1, 5, hold=True, max_tokens=max_tokens), 0.0)
    running.run()
    (prefilled,) = running.prefilled()
    assert prefilled.first_tokens[0].finish is finish
    assert running.finishes.get((key(1), 0)) is finish


def test_a_first_token_that_stops_says_so() -> None:
    running = engine()
    stop = running.expected(spec(1, 5))[0]
    running.scheduler.submit(spec(1, 5, hold=True, stop=(stop,)), 0.0)
    running.run()
    assert running.prefilled()[0].first_tokens[0].finish is Finish.STOP


def test_a_migrated_prompt_draws_its_next_token() -> None:
    running = engine()
    request = spec(1, 9, forced=(4, 5), hold=True)
    running.scheduler.submit(request, 0.0)
    running.run()
    (drawn,) = [event for event in running.log if isinstance(event, Drawn)]
    assert (drawn.first_index, drawn.ids[0]) == (2, running.expected(request)[2])


def test_ungranted_kv_is_bounded_and_a_grant_makes_room() -> None:
    running = engine(config(max_held_share=0.25))  # 16 of 64 blocks
    held(running, 1, 2, 3, 4, tokens=30)  # 8 blocks each
    running.run()
    assert [event.key for event in running.prefilled()] == [key(1), key(2)]
    running.scheduler.granted(key(4), 0.0)  # room was granted already: it may pass the others
    running.run()
    assert [event.key for event in running.prefilled()][2:] == [key(4)]
    running.scheduler.granted(key(1), 0.0)
    running.run()
    assert [event.key for event in running.prefilled()][3:] == [key(3)]


def test_one_prompt_may_be_held_whatever_the_share() -> None:
    running = engine(config(max_held_share=0.0))
    held(running, 1, 2)
    running.run()
    assert [event.key for event in running.prefilled()] == [key(1)]
    running.scheduler.release(key(1), 0.0)
    running.run()
    assert [event.key for event in running.prefilled()] == [key(1), key(2)]


def test_a_granted_prompt_of_the_longest_context_always_finds_room_beside_ungranted_ones() -> None:
    """Else it waits for the memory of a held prompt, and that one for landing bytes which the granted one has."""
    running = engine(config(num_blocks=20, max_context_tokens=48, max_held_share=0.5))  # 12 blocks a context
    held(running, 1, 2, tokens=20)  # 5 blocks each: both would be within half of the pool and leave 10
    held(running, 3, tokens=46)
    running.scheduler.granted(key(3), 0.0)
    running.run()
    assert [event.key for event in running.prefilled()] == [key(1), key(3)]


def test_a_pool_of_one_context_computes_nothing_before_its_grant() -> None:
    running = engine(config(num_blocks=16, max_context_tokens=64))
    held(running, 1, tokens=20)
    running.run()
    assert running.prefilled() == []
    running.scheduler.granted(key(1), 0.0)
    running.run()
    assert [event.key for event in running.prefilled()] == [key(1)]


def test_prompts_wait_while_held_ones_fill_the_pool() -> None:
    running = engine(config(num_blocks=16, max_held_share=1.0))
    held(running, 1, 2, 3, tokens=20)
    for number in (1, 2, 3):
        running.scheduler.granted(key(number), 0.0)
    running.run()
    held(running, 4, tokens=20)
    running.scheduler.granted(key(4), 0.0)
    running.run()
    assert len(running.prefilled()) == 3
    running.scheduler.release(key(2), 0.0)
    running.run()
    assert [event.key for event in running.prefilled()] == [key(1), key(2), key(3), key(4)]


@pytest.mark.parametrize("ready", [True, False])
def test_a_cancelled_prompt_keeps_announced_blocks_until_the_release(ready: bool) -> None:
    running = engine(config(max_step_tokens=8), is_ready=lambda: ready)
    held(running, 1, tokens=60)
    while not running.computed():
        running.turn()
    running.scheduler.cancel(key(1), None, 0.0)
    running.run()
    assert [kind for kind in kinds(running.log) if kind != "Computing"] == ["Computed"]
    assert running.scheduler.stats().blocks_in_use == 15  # a transfer may be reading them
    running.scheduler.release(key(1), 0.0)
    running.run()
    assert running.scheduler.stats().blocks_in_use == 0
    assert running.stepper.idle


def test_a_cancelled_prompt_of_which_nothing_was_announced_is_gone_at_once() -> None:
    running = engine()
    held(running, 1, 2)
    running.scheduler.cancel(key(1), None, 0.0)
    assert not running.scheduler.knows(key(1))


def test_a_deadline_while_chunks_are_announced_stops_and_keeps_the_blocks() -> None:
    running = engine(config(max_step_tokens=8), is_ready=lambda: False)
    running.scheduler.submit(spec(1, 60, hold=True, deadline_s=5.0), 0.0)
    while not running.computed():
        running.turn()
    running.now = 5.0
    running.run()
    assert [event.reason for event in running.failures()] == [Reason.DEADLINE]
    assert not running.prefilled()
    assert running.scheduler.stats().blocks_in_use == 15
    running.scheduler.release(key(1), 5.0)
    assert running.scheduler.stats().blocks_in_use == 0


def test_one_cancelled_choice_is_left_out_of_the_first_tokens() -> None:
    running = engine(is_ready=lambda: False)
    running.scheduler.submit(spec(1, 60, hold=True, choices=(0, 1, 2)), 0.0)
    running.turn()
    running.scheduler.cancel(key(1), 0, 0.0)
    running.run()
    (prefilled,) = running.prefilled()
    assert [first.choice for first in prefilled.first_tokens] == [1, 2]


def test_a_cancel_after_the_completion_leaves_the_end_to_the_release() -> None:
    running = engine()
    held(running, 1)
    running.run()
    running.scheduler.cancel(key(1), None, 0.0)
    running.scheduler.cancel(key(1), 0, 0.0)
    assert running.scheduler.stats().blocks_in_use == 3
    running.scheduler.release(key(1), 0.0)
    assert running.scheduler.stats().blocks_in_use == 0


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("ready", [True, False])
def test_a_release_at_any_moment_frees_everything(turns: int, ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    held(running, 1, tokens=60)
    for _ in range(turns):
        running.turn()
    running.scheduler.release(key(1), 0.0)
    running.run()
    stats = running.scheduler.stats()
    assert (stats.blocks_in_use, stats.running) == (0, 0)


def test_events_name_their_types() -> None:
    running = engine()
    held(running, 1)
    running.run()
    assert [type(event) for event in running.log] == [Computing, Computed, Drawn, Prefilled]
    assert not any(isinstance(event, Failed) for event in running.log)
