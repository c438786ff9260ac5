"""A decode worker's reservations: room for KV that another worker computes."""

from __future__ import annotations

import pytest

from baton_engine.memory.blocks import BlockOwner
from baton_engine.scheduling.events import Drawn, SchedulerEvent
from baton_testing.engine.runners import copy_kv
from baton_testing.engine.toy_engine import config, engine, key, spec
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Finish, Reason


def kinds(events: list[SchedulerEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


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
    firsts = [event for event in running.log if isinstance(event, Drawn) and event.first_index == 0]
    reported = {event.key: event.cached_tokens for event in firsts}
    assert reported == {request.key: None, again.key: 16}, "only the worker that computed a prompt reports them"


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


def test_a_cancel_after_the_landing_gives_everything_back_without_a_release() -> None:
    running = engine()
    request = spec(1, 10)
    running.scheduler.reserve(request, 0.0)
    running.take_events()
    running.land(request, running.reserved()[-1])
    running.scheduler.cancel(key(1), None, 0.0)
    running.run()
    stats = running.scheduler.stats()
    assert (stats.blocks_in_use, stats.blocks_free + stats.blocks_cached) == (0, 64)
    assert not running.scheduler.knows(key(1))


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
