"""KV pools of bytes that a toy runner reads and writes: one 64-bit number per token, K its low half, V its high half.

So what the toy engine computes travels through the production landing, coverage and checksum code as real bytes.
"""

from __future__ import annotations

from baton_kv_transfer.layout import KvGeometry
from baton_testing.kv_transfer import FakePool
from baton_testing.runners import ToyRunner


def geometry(block_tokens: int) -> KvGeometry:
    return KvGeometry(layers=1, kv_heads=1, head_dim=1, element_bytes=4, block_tokens=block_tokens)


class KvWords(dict[tuple[int, int], int]):
    """A runner's storage, (block, slot) → number, that lives in a pool's bytes. What was never written reads as 0."""

    def __init__(self, pool: FakePool) -> None:
        super().__init__()
        self._words = pool.memory.cast("I")
        self._slots = pool.geometry.block_tokens

    def __getitem__(self, place: tuple[int, int]) -> int:
        at = place[0] * 2 * self._slots + place[1]
        return self._words[at] | self._words[at + self._slots] << 32

    def __setitem__(self, place: tuple[int, int], value: int) -> None:
        at = place[0] * 2 * self._slots + place[1]
        self._words[at] = value & 0xFFFFFFFF
        self._words[at + self._slots] = value >> 32

    def get(self, place: tuple[int, int], default: int | None = None) -> int | None:  # type: ignore[override]
        return self[place] or default

    def pop(self, place: tuple[int, int], default: int | None = None) -> int | None:  # type: ignore[override]
        value = self.get(place, default)
        self[place] = 0
        return value


def attach(runner: ToyRunner, pool: FakePool) -> None:
    runner.storage = KvWords(pool)
