"""Drivers of workers of several ranks over real sockets: every decode rank gets its heads, whole and unchanged."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from baton_testing.kv_transfer.builders import FAST, eventually, first_tokens, key_directory
from baton_testing.kv_transfer.transfer_pair import Pair, Request, pairs
from baton_wire.kv_shape import KvGeometry

RANKS, HEADS, ELEMENTS = (1, 2, 4, 8), (1, 2, 8, 32), (1, 2, 4)
CELLS = list(product(RANKS, RANKS, HEADS))
ALWAYS = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
"""One KV head that two prefill ranks hold, and whose decode worker has one rank, ends vLLM's decode engine."""


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return pairs(key_directory(tmp_path / "keys"))


def chosen(seed: int, count: int) -> list[tuple[int, int, int]]:
    """Some cells by seed."""
    others = [cell for cell in CELLS if cell not in ALWAYS]
    return ALWAYS + random.Random(seed).sample(others, count - len(ALWAYS))


@pytest.mark.parametrize("cell", chosen(seed=56, count=12), ids=lambda cell: "P{} D{} heads {}".format(*cell))
async def test_every_decode_rank_gets_its_heads(pair: Pair, cell: tuple[int, int, int]) -> None:
    prefill, decode, heads = cell
    rng = random.Random(str(cell))
    geometry = KvGeometry(layers=4, kv_heads=heads, head_dim=8, element_bytes=rng.choice(ELEMENTS), block_tokens=8)
    source, target = (replace(geometry, block_tokens=rng.choice((4, 8, 16))) for _ in range(2))
    config = replace(FAST, group_bytes=256)
    options = ({"geometry": source, "ranks": prefill}, {"geometry": target, "ranks": decode})
    async with pair({**options[0], "config": config}, {**options[1], "config": config}) as (p, d):
        for tokens, cached in ((37, 0), (33, 16), (16, 16)):
            request = Request(p, d, tokens=tokens, cached=cached)
            steps = [request.expect, request.open, request.compute_all, request.draw]
            rng.shuffle(steps)
            for step in steps:
                step()
            await request.landed()
        assert [tokens for _, tokens in d.record.landed] == [first_tokens(0)] * 3
        await eventually(lambda: d.transfer.stats().handovers.ended == {"landed": 3})
        await eventually(lambda: p.transfer.stats().handovers.ended == {"done": 3})
        landing = d.transfer.stats().handovers.landing
        assert landing.free_bytes == landing.total_bytes
        assert p.record.reports == []
