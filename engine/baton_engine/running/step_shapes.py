"""Which steps with prompts are captured as graphs, and which of them serves a step. Pure.

A graph has fixed numbers of rows: R rows in all, of which the first D are decode rows or padding, and CHUNKS chunks.
A step's own decode rows come first, its chunks behind them at once, so that only the end of the R rows is padding.
D is coarse: decode attention of rows that are padding ends at once. R is fine: every row goes through every product.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CHUNKS: Final = 16
"""Pieces of prompts in a captured step, at most."""

LARGEST_ROWS: Final = 1_024
"""Steps of a worker that decodes; with more rows they run eagerly."""

ROWS: Final = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 576, 640, 768, LARGEST_ROWS)
"""Products go by tiles of 64 or 128 rows, so that finer steps would gain little."""

PROMPT_ROWS: Final = (
    *sorted((*ROWS, 896)),
    *(1_088, 1_152, 1_216, 1_280, 1_408, 1_536, 1_664, 1_792, 2_048, 2_304, 2_560, 2_816, 3_072, 3_584, 4_096),
)
"""Of a worker that computes prompts alone: beside the threads of a busy hand-over, launches of one eager step took 20
to 45 ms, as long as 2,000 rows are computed."""

DECODE_ROWS: Final = (4, 16, 64, 256)
"""Few rows are split over more programs each; from 64 on a row is one."""

PART_BYTES: Final = 32 << 20
"""KV that a step of a prefill worker computes before it tells of it: as much as a hand-over sends at once."""


@dataclass(frozen=True, slots=True)
class StepShape:
    rows: int
    decode_rows: int
    """Of the rows, the most that decode."""

    @property
    def draws(self) -> int:
        """Rows that may draw: every decode row, and the last of each chunk."""
        return self.decode_rows + CHUNKS


class StepShapes:
    """The shapes captured for one worker."""

    def __init__(self, max_slots: int, *, decodes: bool, hands_over: bool = False) -> None:
        """`decodes`: whether the worker has decode rows at all. `hands_over`: whether one that has computes prompts
        for others, too; one that has none does so anyway.
        """
        even = max_slots + max_slots % 2  # numbers of a step stay aligned
        most = (*(rows for rows in DECODE_ROWS if rows < even), even) if decodes else ()
        most = (0, *most) if hands_over or not decodes else most
        self._by_decode_rows = [(rows, _shapes(before, rows)) for before, rows in zip((0, *most), most, strict=False)]

    @property
    def all(self) -> tuple[StepShape, ...]:
        return tuple(shape for _, shapes in self._by_decode_rows for shape in shapes)

    def least(self, decode_rows: int, counts: Sequence[int]) -> StepShape | None:
        """The smallest that holds so many decode rows and chunks of these lengths. None: the step runs eagerly."""
        at = bisect_left(self._by_decode_rows, decode_rows, key=lambda entry: entry[0])
        if at == len(self._by_decode_rows) or len(counts) > CHUNKS:
            return None
        shapes = self._by_decode_rows[at][1]
        place = bisect_left(shapes, decode_rows + sum(counts), key=lambda shape: shape.rows)
        return shapes[place] if place < len(shapes) else None


def _shapes(before: int, most: int) -> tuple[StepShape, ...]:
    """With up to `most` decode rows, for steps that have more than `before`."""
    return tuple(StepShape(rows, min(rows, most)) for rows in (ROWS if most else PROMPT_ROWS) if rows > before)


def part_ends(rows: int, layers: int, layer_token_bytes: int) -> tuple[int, ...]:
    """Behind how many layers a step's graph is cut so that each part writes about PART_BYTES; the last is `layers`, the
    graph's own end.

    A graph is one launch, and what happens within it cannot be told of.
    """
    parts = min(layers, max(1, -(-rows * layers * layer_token_bytes // PART_BYTES)))
    return tuple(-(-layers * part // parts) for part in range(1, parts + 1))
