"""Free blocks as maximal runs of neighbours, so that a sequence gets contiguous blocks where possible.

Neighbouring blocks make long extents for transfers and cheap gathers on the CPU. Runs sit in buckets by the power of
two of their length; every operation costs a few dictionary steps, whatever the pool's size.
"""

from __future__ import annotations

from collections.abc import Iterable


class FreeRuns:
    """The free blocks among 0 … num_blocks - 1; all are free at first."""

    def __init__(self, num_blocks: int) -> None:
        self._length: dict[int, int] = {}  # first block of a run → its length
        self._first: dict[int, int] = {}  # block after a run → its first block
        self._buckets: list[dict[int, None]] = [{} for _ in range(num_blocks.bit_length())]
        self.count = 0
        self._insert(0, num_blocks)

    def blocks(self) -> set[int]:
        """All free blocks, for checks."""
        return {block for first, length in self._length.items() for block in range(first, first + length)}

    def add(self, blocks: Iterable[int]) -> None:
        """Make `blocks` free. Neighbours are joined to runs, also with the runs on both sides."""
        first = length = 0
        for block in sorted(blocks):
            if length and block == first + length:
                length += 1
                continue
            if length:
                self._join(first, length)
            first, length = block, 1
        if length:
            self._join(first, length)

    def take(self, count: int, near: int | None = None) -> list[int]:
        """Take `count` free blocks: from `near` on, else from a small run that surely fits, else from several runs.

        The caller has checked that enough are free.
        """
        if near is not None and self._length.get(near, 0) >= count:
            return self._cut(near, count)
        for bucket in self._buckets[(count - 1).bit_length() :]:
            if bucket:
                return self._cut(next(iter(bucket)), count)
        blocks: list[int] = []
        for bucket in reversed(self._buckets):
            while bucket and len(blocks) < count:
                first = next(iter(bucket))
                blocks += self._cut(first, min(self._length[first], count - len(blocks)))
        return blocks

    def _cut(self, first: int, count: int) -> list[int]:
        length = self._remove(first)
        if length > count:
            self._insert(first + count, length - count)
        return list(range(first, first + count))

    def _join(self, first: int, length: int) -> None:
        if first + length in self._length:
            length += self._remove(first + length)
        if first in self._first:
            before = self._first[first]
            length, first = length + self._remove(before), before
        self._insert(first, length)

    def _insert(self, first: int, length: int) -> None:
        self._length[first] = length
        self._first[first + length] = first
        self._buckets[length.bit_length() - 1][first] = None
        self.count += length

    def _remove(self, first: int) -> int:
        length = self._length.pop(first)
        del self._first[first + length]
        del self._buckets[length.bit_length() - 1][first]
        self.count -= length
        return length
