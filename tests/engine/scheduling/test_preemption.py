"""Too little memory for all: the youngest gives way, everything still ends as if it had run alone."""

from __future__ import annotations

import pytest

from baton_engine.memory.blocks import BlockOwner
from baton_engine.scheduling.events import Drawn
from baton_testing.engine.toy_engine import Engine, config, engine, key, spec


def tiny(num_blocks: int = 16, ready: bool = True, max_slots: int = 8, watermark_share: float = 0.01) -> Engine:
    return engine(config(num_blocks, max_slots=max_slots, watermark_share=watermark_share), is_ready=lambda: ready)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("block_tokens", [1, 3, 4])
def test_a_pool_of_one_longest_sequence_drains_any_queue(ready: bool, block_tokens: int) -> None:
    running = engine(config(num_blocks=-(-64 // block_tokens), block_tokens=block_tokens), is_ready=lambda: ready)
    requests = [spec(number, 10 + number, max_tokens=60) for number in range(1, 8)]
    for request in requests:
        running.scheduler.submit(request, 0.0)
    running.run()
    assert running.scheduler.stats().preemptions > 0
    for request in requests:
        running.assert_exact(request)


def test_the_youngest_gives_way_and_the_oldest_never_does() -> None:
    running = tiny()
    for number in (1, 2, 3):
        running.scheduler.submit(spec(number, 12, max_tokens=40), 0.0)
    while running.scheduler.stats().preemptions == 0:
        running.turn()
    holders = {owner.key for owner in running.scheduler.pool.owners()}
    assert holders == {key(1), key(2)}
    running.run()
    reopened = [opened.prompt for plan in running.plans() for opened in plan.opens]
    assert reopened.count(spec(1, 12).tokens) == 1


def test_what_was_generated_is_the_beginning_of_the_return() -> None:
    running = tiny()
    requests = [spec(number, 12, max_tokens=40) for number in (1, 2)]
    for request in requests:
        running.scheduler.submit(request, 0.0)
    running.run()
    returned = [opened for plan in running.plans() for opened in plan.opens if opened.outputs]
    assert returned
    for opened in returned:
        assert list(opened.outputs) == running.result(requests[1])[: len(opened.outputs)]


def test_nothing_new_starts_while_someone_waits_to_return() -> None:
    running = tiny()
    for number in (1, 2):
        running.scheduler.submit(spec(number, 12, max_tokens=40), 0.0)
    while running.scheduler.stats().preemptions == 0:
        running.turn()
    running.scheduler.submit(spec(3, 1, max_tokens=2), 0.0)
    running.scheduler.reserve(spec(4, 1, max_tokens=2), 0.0)
    while (key(1), 0) not in running.finishes:
        assert not running.scheduler.pool.table(BlockOwner(key(3), 0))
        assert not running.scheduler.pool.table(BlockOwner(key(4), 0))
        running.turn()
    running.run()
    assert (key(3), 0) in running.finishes
    assert [reserved.key for reserved in running.reserved()] == [key(4)]


def test_a_return_hits_what_was_cached_of_it() -> None:
    running = tiny(num_blocks=24)
    for number in (1, 2, 3):
        running.scheduler.submit(spec(number, 16, max_tokens=40), 0.0)
    running.run()
    assert running.scheduler.stats().preemptions > 0
    assert running.scheduler.stats().cached_prompt_tokens > 0
    reported = {event.cached_tokens for event in running.log if isinstance(event, Drawn) and event.first_index == 0}
    assert reported == {0}, "what it finds of itself is no hit of the prompt"


def test_rows_wait_for_fenced_blocks_instead_of_preempting_more() -> None:
    running = tiny(ready=False)
    for number in (1, 2, 3, 4):
        running.scheduler.submit(spec(number, 14, max_tokens=40), 0.0)
    running.run()
    # Four sequences of 14 fill the pool; three of them need a block in the same step: one victim has enough for all.
    assert running.scheduler.stats().preemptions <= 6
    assert len(running.finishes) == 4


def test_a_reservation_that_holds_the_pool_only_stalls_the_row() -> None:
    running = tiny()
    request = spec(1, 20, max_tokens=30)
    running.scheduler.submit(request, 0.0)
    running.turn()
    running.scheduler.reserve(spec(2, 36, max_tokens=2), 0.0)
    assert len(running.reserved()) == 0
    running.take_events()
    assert len(running.reserved()) == 1
    running.run()
    assert (key(1), 0) not in running.finishes
    assert running.scheduler.has_work
    running.scheduler.release(key(2), 0.0)
    running.run()
    running.assert_exact(request)
    assert running.scheduler.stats().preemptions == 0


def test_a_landed_request_that_waits_for_slots_gives_its_blocks_to_older_rows() -> None:
    running = tiny(max_slots=1, watermark_share=0.0)
    old, young = spec(1, 8, max_tokens=56), spec(2, 20, max_tokens=8)
    running.scheduler.submit(old, 0.0)
    running.turn()
    running.scheduler.reserve(young, 0.0)
    running.take_events()
    (reserved,) = running.reserved()
    running.land(young, reserved)
    running.run()
    running.assert_exact(old)
    running.assert_exact(young)
    assert running.scheduler.stats().preemptions == 1


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_preempted_request_can_be_cancelled(turns: int) -> None:
    running = tiny(ready=False)
    for number in (1, 2, 3):
        running.scheduler.submit(spec(number, 12, max_tokens=40, choices=(0, 1)), 0.0)
    for _ in range(turns):
        running.turn()
    running.scheduler.cancel(key(3), None, 0.0)
    running.scheduler.cancel(key(2), 1, 0.0)
    running.run()
    running.assert_exact(spec(1, 12, max_tokens=40, choices=(0, 1)))
    assert running.result(spec(2, 12)) == running.expected(spec(2, 12, max_tokens=40))


def test_rows_wait_for_the_blocks_of_an_ending_row_instead_of_preempting() -> None:
    running = tiny(ready=False)
    # 8 + 3 + 3 of 16 blocks: the first ends with its second token, while the others need their fourth block.
    for number, tokens, max_tokens in ((1, 32, 2), (2, 12, 18), (3, 12, 18)):
        running.scheduler.submit(spec(number, tokens, max_tokens=max_tokens), 0.0)
    running.run()
    assert running.scheduler.stats().preemptions == 0
    assert len(running.finishes) == 3
