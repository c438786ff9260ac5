"""The shapes of steps with prompts that are captured as graphs, and the choice of one for a step. Pure.

A graph has fixed numbers of rows: R rows in all, of which the first D are decode rows or padding, and CHUNKS chunks.
A step's own decode rows come first and its chunks right after them, so that only the end of the R rows is padding.
D is coarse: decode attention of padding rows ends at once. R is fine: every row goes through every product.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CHUNKS: Final = 16
"""Most chunks of prompts in a captured step."""

LARGEST_ROWS: Final = 1_024
"""Most rows of a captured step on a worker that decodes; larger steps run eagerly."""

ROWS: Final = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 576, 640, 768, LARGEST_ROWS)
"""Products go by tiles of 64 or 128 rows, so that finer steps would gain little."""

PROMPT_ROWS: Final = (
    *sorted((*ROWS, 896)),
    *(1_088, 1_152, 1_216, 1_280, 1_408, 1_536, 1_664, 1_792, 2_048, 2_304, 2_560, 2_816, 3_072, 3_584, 4_096),
)
"""Rows of steps on a worker that only computes prompts. Next to the threads of a busy hand-over, launching one eager
step took 20 to 45 ms, which is as long as computing 2,000 rows."""

DECODE_ROWS: Final = (4, 16, 64, 256)
"""Few rows are split over more programs each; from 64 on a row is one."""

PART_BYTES: Final = 32 << 20
"""KV that a step of a prefill worker computes between two reports: as much as a hand-over sends at once."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The numbers of rows of one captured graph."""

    rows: int
    decode_rows: int
    """The most rows that decode, the first ones of `rows`."""

    @property
    def draws(self) -> int:
        """Rows that may draw: every decode row, and the last of each chunk."""
        return self.decode_rows + CHUNKS


class StepShapes:
    """The shapes captured for one worker.

    >>> shapes = StepShapes(8, decodes=True)
    >>> shapes.least(3, [20, 7])  # 3 decode rows and two chunks: 30 rows, padded to 32
    StepShape(rows=32, decode_rows=4)
    >>> shapes.least(3, [2_000]) is None  # runs eagerly
    True
    """

    def __init__(self, max_slots: int, *, decodes: bool, hands_over: bool = False) -> None:
        """`decodes`: the worker has decode rows. `hands_over`: a worker with decode rows computes prompts for other
        workers too; a worker without does so anyway.
        """
        even = max_slots + max_slots % 2  # numbers of a step stay aligned
        most = (*(rows for rows in DECODE_ROWS if rows < even), even) if decodes else ()
        most = (0, *most) if hands_over or not decodes else most
        self._by_decode_rows = [(rows, _shapes(before, rows)) for before, rows in zip((0, *most), most, strict=False)]

    @property
    def all(self) -> tuple[StepShape, ...]:
        return tuple(shape for _, shapes in self._by_decode_rows for shape in shapes)

    def least(self, decode_rows: int, counts: Sequence[int]) -> StepShape | None:
        """The smallest shape that holds this many decode rows and chunks of these lengths; None: the step runs
        eagerly."""
        at = bisect_left(self._by_decode_rows, decode_rows, key=lambda entry: entry[0])
        if at == len(self._by_decode_rows) or len(counts) > CHUNKS:
            return None
        shapes = self._by_decode_rows[at][1]
        place = bisect_left(shapes, decode_rows + sum(counts), key=lambda shape: shape.rows)
        return shapes[place] if place < len(shapes) else None


def _shapes(before: int, most: int) -> tuple[StepShape, ...]:
    """Shapes with up to `most` decode rows, for steps that have more than `before`."""
    return tuple(StepShape(rows, min(rows, most)) for rows in (ROWS if most else PROMPT_ROWS) if rows > before)


def part_ends(rows: int, layers: int, layer_token_bytes: int) -> tuple[int, ...]:
    """Numbers of layers after which a step's graph is cut, so that each part writes about PART_BYTES. The last is
    `layers`, the graph's own end.

    A graph is one launch: progress inside it cannot be reported.
    """
    parts = min(layers, max(1, -(-rows * layers * layer_token_bytes // PART_BYTES)))
    return tuple(-(-layers * part // parts) for part in range(1, parts + 1))
