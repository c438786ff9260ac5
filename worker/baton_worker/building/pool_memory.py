"""The KV pool as the transfer sees it: bytes to send from, blocks to scatter into."""

from __future__ import annotations

from collections.abc import Sequence

from baton_engine.memory.kv_pool import KvPool
from baton_wire.kv_shape import PoolPart
from baton_worker.building.gpu_memory import SideStream

WARM_UNITS = (0, 1, 2)
"""First units: kernels are compiled for 1 and for multiples of 16 apart."""


class PoolMemory:
    """`KvSource` and `KvSink` of `baton_kv_transfer.handover` over a KvPool on any device."""

    def __init__(self, pool: KvPool, with_checksums: bool = True) -> None:
        """`with_checksums`: whether anybody looks at those of what is scattered."""
        self.pool = pool
        self._with_checksums = with_checksums
        self.aside = SideStream(pool.tensor.device)
        self._region = pool.region() if pool.tensor.device.type == "cpu" else None

    def warm_up(self) -> None:
        """Run once what a hand-over in whole blocks runs, so that nothing is compiled later.

        Block 0 gets the bytes that it has; nobody may use it meanwhile.
        """
        geometry = self.pool.geometry
        block = memoryview(bytearray(geometry.block_bytes))
        for first in WARM_UNITS:
            units = (geometry.block_tokens, first, first + 1)
            table = [0] * (first + 1)
            self.pack(table, *units, block)
            self.checksums(table, *units)
            self.scatter(block, table, *units)

    def region(self) -> memoryview | None:
        """The pool's bytes where the host can read them; on a GPU the transfer packs into a staging buffer instead."""
        return self._region

    def checksums(
        self, blocks: Sequence[int], unit_tokens: int, first_unit: int, end_unit: int, part: PoolPart | None = None, /
    ) -> bytes:
        with self.aside.entered():
            return self.pool.checksums(blocks, unit_tokens, first_unit, end_unit, part)

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
        with self.aside.entered():
            self.pool.pack(blocks, unit_tokens, first_unit, end_unit, out, part)

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
        with self.aside.entered():
            return self.pool.scatter(stream, blocks, unit_tokens, first_unit, end_unit, part, self._with_checksums)
