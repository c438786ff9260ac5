"""The KV pool as the transfer sees it: bytes to send from, blocks to scatter into."""

from __future__ import annotations

from collections.abc import Sequence

from baton_engine.kv_pool import KvPool
from baton_kv_transfer.layout import PoolPart


class PoolMemory:
    """`KvSource` and `KvSink` of `baton_kv_transfer.handover` over a KvPool on any device."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool
        self._region = pool.region() if pool.tensor.device.type == "cpu" else None

    def region(self) -> memoryview | None:
        """The pool's bytes where the host can read them; on a GPU the transfer packs into a staging buffer instead."""
        return self._region

    def checksums(
        self, blocks: Sequence[int], unit_tokens: int, first_unit: int, end_unit: int, part: PoolPart | None = None, /
    ) -> bytes:
        return self._pool.checksums(blocks, unit_tokens, first_unit, end_unit, part)

    def pack(
        self,
        blocks: Sequence[int],
        unit_tokens: int,
        first_unit: int,
        end_unit: int,
        out: memoryview,
        part: PoolPart | None = None,
        /,
    ) -> None:
        self._pool.pack(blocks, unit_tokens, first_unit, end_unit, out, part)

    def scatter(
        self,
        stream: memoryview,
        blocks: Sequence[int],
        unit_tokens: int,
        first_unit: int,
        end_unit: int,
        part: PoolPart | None = None,
        /,
    ) -> bytes:
        return self._pool.scatter(stream, blocks, unit_tokens, first_unit, end_unit, part)
