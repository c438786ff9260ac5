"""Hand-overs between workers of P and D ranks over real sockets, with the engine's KV pools at every rank.

What lands is compared with the KV that a single rank would hold, byte for byte.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from baton_engine.memory.kv_pool import KvPool
from baton_kv_transfer.ranks.tensor_parallel import heads_of, rank_geometries
from baton_testing.ranks.linked_pools import Moved, linked
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry

DTYPES = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32}
BLOCKS = 40
REQUESTS = ((37, 0), (33, 16), (48, 16), (16, 16))
"""Tokens, and how many of them the decode worker has."""


@dataclass(frozen=True, slots=True)
class RankCell:
    prefill: int
    decode: int
    kv_heads: int
    element_bytes: int = 2

    def __str__(self) -> str:
        return f"P{self.prefill} D{self.decode}, {self.kv_heads} heads of {self.element_bytes} bytes"


RANKS, HEADS = (1, 2, 4, 8), (1, 2, 8, 32)
CELLS = [RankCell(*numbers) for numbers in product(RANKS, RANKS, HEADS, DTYPES)]


def pools_of(geometry: KvGeometry, ranks: int, seed: int) -> list[KvPool]:
    """Pools of random bytes."""
    dtype, generator = DTYPES[geometry.element_bytes], torch.Generator().manual_seed(seed)
    pools = [KvPool(shape, BLOCKS, dtype, torch.device("cpu")) for shape in rank_geometries(geometry, ranks)]
    for pool in pools:
        as_bytes = pool.tensor.view(torch.uint8)
        as_bytes.copy_(torch.randint(0, 256, as_bytes.shape, dtype=torch.uint8, generator=generator))
    return pools


def tokens_of(pool: KvPool, blocks: tuple[int, ...], start: int, end: int) -> Tensor:
    """Bytes of tokens [start, end), `[token, layer, K or V, head, …]`."""
    table = pool.tensor.view(torch.uint8)[list(blocks)]
    return table.permute(0, 4, 1, 2, 3, 5).flatten(0, 1)[start:end]


async def run_cell(cell: RankCell, seed: int, keys: KeyDirectory) -> None:
    """Raises AssertionError where a rank's KV is not what a single rank's would be."""
    rng = random.Random(f"{seed} {cell}")
    geometry = KvGeometry(4, cell.kv_heads, 8, cell.element_bytes, 8)
    source, target = (replace(geometry, block_tokens=rng.choice((4, 8, 16))) for _ in range(2))
    (whole,) = pools_of(source, 1, seed)
    sources, sinks = pools_of(source, cell.prefill, seed + 1), pools_of(target, cell.decode, seed + 2)
    for rank, pool in enumerate(sources):
        heads = heads_of(cell.kv_heads, cell.prefill, rank)
        pool.tensor.view(torch.uint8).copy_(whole.tensor.view(torch.uint8)[:, :, :, heads.start : heads.stop])
    async with linked(keys, (source, sources), (target, sinks)) as link:
        for tokens, cached in REQUESTS:
            blocks = tuple(rng.sample(range(BLOCKS), -(-tokens // source.block_tokens)))
            places = tuple(rng.sample(range(BLOCKS), -(-tokens // target.block_tokens)))
            await link.hand_over(rng.randbytes(16), Moved(tokens, cached, blocks, places))
            computed = tokens_of(whole, blocks, cached, tokens)
            for rank, pool in enumerate(sinks):
                heads = heads_of(cell.kv_heads, cell.decode, rank)
                mine = computed[:, :, :, heads.start : heads.stop]
                assert torch.equal(tokens_of(pool, places, cached, tokens), mine), f"rank {rank} of {cell}"
