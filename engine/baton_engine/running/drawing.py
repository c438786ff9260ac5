"""The rows of a step that have logits to draw tokens from: only they need the last layer's output and the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baton_engine.scheduling.step_plan import PrefillChunk

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrawingRows:
    """The S rows that have logits, of a step with prefill chunks. Rows are counted as in `StepRows`: decode, then
    chunks."""

    slots: tuple[int, ...]
    """Slots that draw; several may share one chunk's last row (n > 1)."""
    rows: Ints
    """[S] row of the step."""
    tables: Ints
    """[S] slot whose blocks hold the row's context."""
    logits_rows: Ints
    """[len(slots)] which of the S rows each drawing slot reads."""
    later: tuple[tuple[int, int], ...] = ()
    """Slots whose draw comes in a later step, each with its row among the S."""

    @property
    def is_in_order(self) -> bool:
        """True when each slot draws from a row of its own, in order."""
        return not self.later and len(self.slots) == len(self.rows)

    @staticmethod
    def of(chunks: Sequence[PrefillChunk], decode: Sequence[int]) -> DrawingRows:
        """`decode`: the slots of the decode rows, in their order."""
        slots, tables = list(decode), list(decode)
        rows, logits_rows = list(range(len(decode))), list(range(len(decode)))
        later: list[tuple[int, int]] = []
        end = len(decode)
        for chunk in chunks:
            end += len(chunk.tokens)
            if chunk.keeps:
                later.append((chunk.slot, len(rows)))
            if chunk.sample or chunk.keeps:
                slots += chunk.sample
                logits_rows += [len(rows)] * len(chunk.sample)
                rows.append(end - 1)
                tables.append(chunk.slot)
        return DrawingRows(tuple(slots), _ints(rows), _ints(tables), _ints(logits_rows), tuple(later))


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
