"""What a scheduler keeps of a prompt, announces of it and counts."""

from __future__ import annotations

from baton_testing.engine.toy_engine import config, engine, spec


def test_a_fresh_scheduler_has_counted_no_prompt_tokens() -> None:
    running = engine()
    assert running.scheduler.stats().prompt_tokens == 0
    running.scheduler.submit(spec(1, 10), 0.0)
    running.run()
    assert running.scheduler.stats().prompt_tokens == 10


def test_each_cached_block_of_a_prompt_is_announced_after_the_block_before_it() -> None:
    """A wrong parent would show as a place where contexts part, and readers would look for the rest elsewhere."""
    running = engine(config(block_tokens=512, num_blocks=16, max_context_tokens=8_192, max_step_tokens=8_192))
    running.scheduler.submit(spec(1, 512 * 7 + 1, max_tokens=1), 0.0)
    running.run()
    changes = running.scheduler.pool.places.take(512)
    assert sorted(blocks for _, blocks in changes.added) == [1, 2, 4, 7], "the sparse lengths and the end"


def test_blocks_out_of_a_window_are_given_back_while_the_prompt_still_runs() -> None:
    running = engine(config(windows=(None, 4)))
    running.scheduler.submit(spec(1, 32, max_tokens=20), 0.0)
    for _ in range(6):
        running.turn()
    assert running.scheduler.stats().running == 1
    stats = running.scheduler.stats()
    assert stats.blocks_in_use <= 13, "nine or ten of the group with all layers, two or three of the one with a window"
