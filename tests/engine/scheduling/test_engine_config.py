"""Limits are checked once, with the field, the value and what is allowed."""

from __future__ import annotations

import pytest

from baton_testing.engine.toy_engine import config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 0}, "num_blocks: 0 is not allowed"),
        ({"block_tokens": 0}, "block_tokens: 0 is not allowed"),
        ({"max_slots": 0}, "max_slots: 0 is not allowed"),
        ({"max_step_tokens": 0}, "max_step_tokens: 0 is not allowed"),
        ({"max_waiting": 0}, "max_waiting: 0 is not allowed"),
        ({"max_context_tokens": 1}, "max_context_tokens: 1 is not allowed"),
        ({"chunk_tokens": 33}, "chunk_tokens: 33 is not allowed, 1 to max_step_tokens 32"),
        ({"chunk_tokens": 0}, "chunk_tokens: 0 is not allowed"),
        ({"watermark_share": 1.5}, "watermark_share: 1.5 is not allowed"),
        ({"max_held_share": -0.1}, "max_held_share: -0.1 is not allowed"),
        ({"num_blocks": 15}, "num_blocks: 15 blocks of 4 tokens hold 60 tokens, fewer than one sequence"),
    ],
)
def test_a_bad_limit_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)  # type: ignore[arg-type]


def test_blocks_are_rounded_up() -> None:
    assert [config().blocks_for(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]
