"""A stack of experts' weights in MXFP4, packed as a GPU streams them (`mxfp4_weight` packs and dequantises it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

BLOCK: Final = 32
"""Columns that share a scale."""
LINE_COLUMNS: Final = 128
BLOCKS_A_LINE: Final = LINE_COLUMNS // BLOCK


@dataclass(frozen=True, slots=True)
class Mxfp4Stack:
    """Packed weights [experts, features, columns]."""

    values: Tensor
    """uint8 [E, lines, N, 64]: a tile's part of a line is in one piece, which memory reads faster."""
    scales: Tensor
    """uint8 [E, lines, N, 4]: exponents + 127, those of a line side by side."""
    columns: int

    def __post_init__(self) -> None:
        lines = -(-self.columns // LINE_COLUMNS)
        assert (self.values.shape[1], self.values.shape[3]) == (lines, LINE_COLUMNS // 2)
        assert self.scales.shape == (*self.values.shape[:3], BLOCKS_A_LINE)
