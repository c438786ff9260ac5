"""KV pools of bytes that a toy runner reads and writes: one 64-bit number per token, a quarter of it in K and V of each
of two layers.

So what the toy engine computes travels through the production landing, coverage and checksum code as real bytes.
"""

from __future__ import annotations

from baton_testing.engine.runners import ToyRunner
from baton_testing.kv_transfer.builders import FakePool
from baton_wire.kv_shape import KvGeometry

QUARTERS = 4


def geometry(block_tokens: int) -> KvGeometry:
    return KvGeometry(layers=2, kv_heads=1, head_dim=1, element_bytes=2, block_tokens=block_tokens)


class KvWords(dict[tuple[int, int], int]):
    """A runner's storage, (block, slot) → number, that lives in a pool's bytes. What was never written reads as 0."""

    def __init__(self, pool: FakePool) -> None:
        super().__init__()
        self._words = pool.memory.cast("H")
        self._slots = pool.geometry.block_tokens

    def _places(self, place: tuple[int, int]) -> range:
        start = place[0] * QUARTERS * self._slots + place[1]
        return range(start, start + QUARTERS * self._slots, self._slots)

    def __getitem__(self, place: tuple[int, int]) -> int:
        return sum(self._words[at] << 16 * quarter for quarter, at in enumerate(self._places(place)))

    def __setitem__(self, place: tuple[int, int], value: int) -> None:
        for quarter, at in enumerate(self._places(place)):
            self._words[at] = value >> 16 * quarter & 0xFFFF

    def set_first_layer(self, place: tuple[int, int], value: int) -> None:
        for quarter, at in enumerate(self._places(place)[:2]):
            self._words[at] = value >> 16 * quarter & 0xFFFF

    def get(self, place: tuple[int, int], default: int | None = None) -> int | None:  # type: ignore[override]
        return self[place] or default

    def pop(self, place: tuple[int, int], default: int | None = None) -> int | None:  # type: ignore[override]
        value = self.get(place, default)
        self[place] = 0
        return value


def attach(runner: ToyRunner, pool: FakePool) -> KvWords:
    runner.storage = words = KvWords(pool)
    return words
