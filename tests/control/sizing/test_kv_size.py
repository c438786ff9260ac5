"""KV bytes as sizing counts them, compared with the blocks that an engine keeps."""

from __future__ import annotations

from statistics import fmean

import pytest

from baton_control.sizing.inputs.kv_size import BLOCK_TOKENS, KvSize
from baton_wire.kv_shape import first_seen


@pytest.mark.parametrize("window", [1, 24, 128, 512, 4096])
def test_a_window_keeps_on_average_what_the_engines_blocks_do(window: int) -> None:
    start = 10 * (window + BLOCK_TOKENS)
    blocks = [
        -(-tokens // BLOCK_TOKENS) - first_seen(tokens, window) // BLOCK_TOKENS
        for tokens in range(start, start + 20 * BLOCK_TOKENS)
    ]
    counted = KvSize(0.0, ((window, 1.0),)).of(start)
    assert counted == pytest.approx(fmean(blocks) * BLOCK_TOKENS, abs=1e-9)


def test_a_sequence_within_its_window_keeps_what_it_has() -> None:
    size = KvSize(3.0, ((128, 2.0), (512, 1.0)))
    assert size.of(100) == 100 * (3.0 + 2.0 + 1.0)
    assert size.of(0) == 0.0
