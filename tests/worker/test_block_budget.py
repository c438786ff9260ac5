"""Blocks and landing bytes follow from the model and the memory, or the worker says what is missing."""

from __future__ import annotations

import pytest

from baton_wire.kv_shape import KvGeometry
from baton_worker.building.block_budget import CPU_DEFAULT_BYTES, decide, kv_budget
from baton_worker.errors import ConfigError

GEOMETRY = KvGeometry(layers=4, kv_heads=2, head_dim=32, element_bytes=4, block_tokens=16)
BLOCK = 4 * 2 * 2 * 32 * 4 * 16


def test_a_prefill_worker_spends_its_whole_budget_on_blocks() -> None:
    capacity = decide(GEOMETRY, 64, 10 * BLOCK + 5, None, lands=False)
    assert (capacity.blocks, capacity.landing_bytes) == (10, 0)


def test_a_decode_worker_keeps_room_for_landing() -> None:
    capacity = decide(GEOMETRY, 64, 40 * BLOCK, None, lands=True)
    assert capacity.landing_bytes >= 4 * BLOCK
    assert capacity.blocks * BLOCK + capacity.landing_bytes <= 40 * BLOCK


def test_an_asked_landing_region_does_not_eat_the_blocks() -> None:
    capacity = decide(GEOMETRY, 64, 10 * BLOCK, 6 * BLOCK, lands=True)
    assert (capacity.blocks, capacity.landing_bytes) == (10, 6 * BLOCK)


@pytest.mark.parametrize(
    ("budget", "landing", "lands", "names"),
    [
        (3 * BLOCK, None, False, "--kv-cache-bytes"),
        (7 * BLOCK, None, True, "--kv-cache-bytes"),
        (40 * BLOCK, 3 * BLOCK, True, "--landing-bytes"),
    ],
)
def test_too_little_memory_names_the_flag_and_the_need(
    budget: int, landing: int | None, lands: bool, names: str
) -> None:
    with pytest.raises(ConfigError, match=names):
        decide(GEOMETRY, 64, budget, landing, lands=lands)


def test_a_budget_beyond_the_free_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="free on cpu"):
        kv_budget(1_000, 999, "cpu")
    assert kv_budget(1_000, 1_000, "cpu") == 1_000


def test_the_default_budget_leaves_memory_to_the_others() -> None:
    assert kv_budget(None, 1 << 40, "cpu") == CPU_DEFAULT_BYTES
    assert kv_budget(None, 1_000, "cpu") == 250
    assert kv_budget(None, 1_000, "cuda") == 900
