"""Both ends of a hand-over: held prompts on a prefill worker, reservations on a decode worker."""

from __future__ import annotations

import pytest

from baton_engine.blocks import BlockOwner
from baton_engine.events import Computed, Drawn, Failed, Prefilled, SchedulerEvent
from baton_kv_transfer.wire.pair_link import FirstToken
from baton_kv_transfer.wire.values import Finish, Reason
from baton_testing.runners import copy_kv
from baton_testing.toy_engine import Engine, config, engine, key, spec


def held(running: Engine, *numbers: int, tokens: int = 10) -> None:
    for number in numbers:
        running.scheduler.submit(spec(number, tokens, hold=True), running.now)


def kinds(events: list[SchedulerEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


# The prefill worker's end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [True, False])
def test_a_held_prompt_reports_each_chunk_then_its_tokens_then_that_it_is_complete(ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    request = spec(1, 50, choices=(0, 1), hold=True)
    running.scheduler.submit(request, 0.0)
    running.run()
    assert kinds(running.log) == ["Computed", "Computed", "Drawn", "Drawn", "Prefilled"]
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
    (event,) = running.scheduler.events()
    assert isinstance(event, Computed)
    assert (event.tokens, len(event.blocks)) == (16, 5)


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
    running.scheduler.granted(key(4), 0.0)  # its room is there already: it may pass the others
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


def test_prompts_wait_while_held_ones_fill_the_pool() -> None:
    running = engine(config(num_blocks=16, max_held_share=1.0))
    held(running, 1, 2, 3, tokens=20)
    running.run()
    held(running, 4, tokens=20)
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
    assert kinds(running.log) == ["Computed"]
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


# The decode worker's end ----------------------------------------------------------------------------------------------


def test_room_for_all_tokens_is_reserved_at_once() -> None:
    running = engine()
    running.scheduler.reserve(spec(1, 10), 0.0)
    running.take_events()
    (reserved,) = running.reserved()
    assert (reserved.cached_tokens, len(reserved.blocks)) == (0, 3)
    assert running.scheduler.stats().blocks_reserved == 3
    assert not running.turn()


@pytest.mark.parametrize(("tokens", "cached"), [(19, 16), (20, 16), (16, 16), (15, 12), (3, 0)])
def test_a_reservation_counts_whole_cached_blocks_even_for_its_last_token(tokens: int, cached: int) -> None:
    running = engine()
    running.scheduler.submit(spec(1, range(16), max_tokens=1), 0.0)
    running.run()
    request = spec(2, range(tokens), max_tokens=5)
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    (reserved,) = running.reserved()
    assert reserved.cached_tokens == cached
    running.land(request, reserved)
    running.run()
    running.assert_exact(request)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 8, 40])
def test_a_landed_request_repeats_its_first_token_and_goes_on(ready: bool, tokens: int) -> None:
    running = engine(is_ready=lambda: ready)
    request = spec(1, tokens, max_tokens=12)
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    running.land(request, running.reserved()[0])
    assert running.outputs[key(1), 0] == running.expected(request)[:1]
    running.run()
    running.assert_exact(request)
    assert not any(plan.prefill for plan in running.plans())


@pytest.mark.parametrize("tokens", [6, 8])
@pytest.mark.parametrize("ready", [True, False])
def test_choices_fork_from_one_landed_prompt(tokens: int, ready: bool) -> None:
    running = engine(is_ready=lambda: ready)
    request = spec(1, tokens, choices=(0, 1, 2), max_tokens=9)
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    running.land(request, running.reserved()[0])
    running.run()
    running.assert_exact(request)


def test_choices_that_ended_on_the_prefill_worker_are_repeated_but_not_continued() -> None:
    running = engine()
    plain = spec(1, 6, choices=(0, 1), max_tokens=9)
    request = spec(1, 6, choices=(0, 1), max_tokens=9, stop=(running.expected(plain, 0)[0],))
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    running.land(request, running.reserved()[0])
    assert running.finishes == {(key(1), 0): Finish.STOP}
    running.run()
    running.assert_exact(request)


def test_a_context_limit_that_only_this_worker_has_ends_by_length() -> None:
    running = engine(config(max_context_tokens=9))
    request = spec(1, 8, max_tokens=9)
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    running.scheduler.landed(key(1), (FirstToken(0, running.expected(request)[0]),), 0.0)
    running.take_events()
    assert running.finishes == {(key(1), 0): Finish.LENGTH}
    assert not running.scheduler.knows(key(1))


def test_a_missing_first_token_fails_the_request() -> None:
    running = engine()
    running.scheduler.reserve(spec(1, 6, choices=(0, 1)), 0.0)
    running.scheduler.landed(key(1), (FirstToken(0, 1),), 0.0)
    running.take_events()
    assert [(event.reason, event.detail) for event in running.failures()] == [
        (Reason.BAD_REQUEST, "first_tokens: none for choices [1]")
    ]
    assert running.scheduler.stats().blocks_free == 64


def test_landed_kv_is_hit_by_later_requests() -> None:
    running = engine()
    request = spec(1, range(18), max_tokens=2)
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    running.land(request, running.reserved()[0])
    again = spec(2, range(18), max_tokens=4)
    running.scheduler.submit(again, 0.0)
    running.run()
    running.assert_exact(again)
    assert running.scheduler.stats().cached_prompt_tokens == 16


def test_reserved_blocks_are_not_hit_before_they_landed() -> None:
    running = engine()
    running.scheduler.reserve(spec(1, range(18)), 0.0)
    again = spec(2, range(18), max_tokens=4)
    running.scheduler.submit(again, 0.0)
    running.run()
    running.assert_exact(again)
    assert running.scheduler.stats().cached_prompt_tokens == 0


def test_reservations_wait_in_order_and_are_never_granted_in_part() -> None:
    running = engine(config(num_blocks=16))
    for number, tokens in ((1, 40), (2, 30), (3, 4)):
        running.scheduler.reserve(spec(number, tokens), 0.0)
    running.take_events()
    assert [event.key for event in running.reserved()] == [key(1)]
    assert [(event.key, event.position) for event in running.queued()] == [(key(2), 0), (key(3), 1)]
    assert not running.scheduler.pool.table(BlockOwner(key(2), 0))
    running.scheduler.release(key(1), 0.0)
    running.run()
    assert [event.key for event in running.reserved()] == [key(1), key(2), key(3)]


def test_a_waiting_reservation_hears_when_its_position_has_halved() -> None:
    running = engine(config(num_blocks=16))
    for number in range(1, 8):
        running.scheduler.reserve(spec(number, 60), 0.0)
    running.take_events()
    running.log.clear()
    for number in range(1, 7):
        running.scheduler.release(key(number), 0.0)
        running.run()
    assert [event.position for event in running.queued() if event.key == key(7)] == [2, 1, 0]


def test_a_younger_reservation_does_not_take_the_blocks_an_older_prompt_waits_for() -> None:
    running = engine(config(num_blocks=16))
    running.scheduler.reserve(spec(1, 20), 0.0)
    running.scheduler.submit(spec(2, 60, max_tokens=2), 0.0)
    running.run()
    running.scheduler.reserve(spec(3, 4), 0.0)
    running.run()
    assert [event.key for event in running.reserved()] == [key(1)]
    running.scheduler.release(key(1), 0.0)
    running.run()
    assert [event.key for event in running.reserved()] == [key(1), key(3)]
    assert (key(2), 0) in running.finishes


def test_a_younger_prompt_does_not_take_the_blocks_an_older_reservation_waits_for() -> None:
    running = engine(config(num_blocks=16))
    running.scheduler.reserve(spec(1, 20), 0.0)
    running.scheduler.reserve(spec(2, 60), 0.0)
    running.scheduler.submit(spec(3, 4, max_tokens=2), 0.0)
    running.run()
    assert not running.finishes
    running.scheduler.release(key(1), 0.0)
    running.run()
    running.scheduler.release(key(2), 0.0)
    running.run()
    assert [event.key for event in running.reserved()] == [key(1), key(2)]
    assert (key(3), 0) in running.finishes


def test_a_full_queue_refuses_reservations() -> None:
    running = engine(config(num_blocks=16, max_waiting=1))
    for number in (1, 2, 3):
        running.scheduler.reserve(spec(number, 60), 0.0)
    running.take_events()
    assert [(event.key, event.reason) for event in running.failures()] == [(key(3), Reason.NO_CAPACITY)]


def test_a_cancelled_reservation_keeps_its_blocks_until_the_transfer_is_over() -> None:
    for end in ("release", "landed"):
        running = engine()
        request = spec(1, 10)
        running.scheduler.reserve(request, 0.0)
        running.scheduler.cancel(key(1), None, 0.0)
        assert running.scheduler.stats().blocks_reserved == 3  # a scatter may be writing them
        if end == "release":
            running.scheduler.release(key(1), 0.0)
        else:
            running.scheduler.landed(key(1), (FirstToken(0, 1),), 0.0)
        running.take_events()
        assert kinds(running.log) == ["Reserved"]
        assert running.scheduler.stats().blocks_free == 64


def test_a_queued_reservation_is_cancelled_at_once() -> None:
    running = engine(config(num_blocks=16))
    running.scheduler.reserve(spec(1, 60), 0.0)
    running.scheduler.reserve(spec(2, 60), 0.0)
    running.scheduler.cancel(key(2), None, 0.0)
    assert not running.scheduler.knows(key(2))


def test_deadlines_of_reservations() -> None:
    running = engine(config(num_blocks=16))
    running.scheduler.reserve(spec(1, 60, deadline_s=5.0), 0.0)
    running.scheduler.reserve(spec(2, 60, deadline_s=4.0), 0.0)
    running.now = 6.0
    running.run()
    assert [(event.key, event.reason) for event in running.failures()] == [
        (key(2), Reason.DEADLINE),
        (key(1), Reason.DEADLINE),
    ]
    assert running.scheduler.stats().blocks_reserved == 15  # until the transfer says that nothing is written any more
    running.scheduler.release(key(1), 6.0)
    assert running.scheduler.stats().blocks_free == 16


def test_a_cancelled_choice_of_a_reservation_is_not_continued() -> None:
    running = engine()
    request = spec(1, 6, choices=(0, 1), max_tokens=5)
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    running.scheduler.cancel(key(1), 0, 0.0)
    running.land(request, running.reserved()[0])
    running.run()
    assert (key(1), 0) not in running.outputs
    assert running.result(request, 1) == running.expected(request, 1)


@pytest.mark.parametrize("tokens", [1, 8, 41])
@pytest.mark.parametrize("block_tokens", [2, 4, 8])
def test_from_one_worker_to_the_other_with_unequal_blocks(tokens: int, block_tokens: int) -> None:
    prefill, decode = engine(), engine(config(block_tokens=block_tokens), is_ready=lambda: False)
    request = spec(1, tokens, choices=(0, 1), max_tokens=10)
    prefill.scheduler.submit(spec(1, tokens, choices=(0, 1), max_tokens=10, hold=True), 0.0)
    decode.scheduler.reserve(request, 0.0)
    prefill.run()
    decode.run()
    (prefilled,), (reserved,) = prefill.prefilled(), decode.reserved()
    copy_kv(prefill.runner, prefill.computed()[-1].blocks, decode.runner, reserved.blocks, range(tokens))
    decode.scheduler.landed(key(1), prefilled.first_tokens, 0.0)
    prefill.scheduler.release(key(1), 0.0)
    decode.run()
    decode.assert_exact(request)


def test_events_name_their_types() -> None:
    running = engine()
    held(running, 1)
    running.run()
    assert [type(event) for event in running.log] == [Computed, Drawn, Prefilled]
    assert not any(isinstance(event, Failed) for event in running.log)
