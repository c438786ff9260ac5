"""Which rows of a step draw a token: only they need the last layer's output, the head and a row of logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baton_engine.scheduling.step_plan import StepPlan

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrawingRows:
    """The S rows of a step with prefill chunks that draw. Rows are counted as in `StepRows`: chunks, then decode."""

    slots: tuple[int, ...]
    """Slots that draw; several may share one chunk's last row (n > 1)."""
    rows: Ints
    """[S] row of the step."""
    tables: Ints
    """[S] slot whose blocks hold the row's context."""
    logits_rows: Ints
    """[len(slots)] which of the S rows each drawing slot reads."""

    @staticmethod
    def of(plan: StepPlan) -> DrawingRows:
        slots: list[int] = []
        rows: list[int] = []
        tables: list[int] = []
        logits_rows: list[int] = []
        end = 0
        for chunk in plan.prefill:
            end += len(chunk.tokens)
            if chunk.sample:
                slots += chunk.sample
                logits_rows += [len(rows)] * len(chunk.sample)
                rows.append(end - 1)
                tables.append(chunk.slot)
        slots += plan.decode
        logits_rows += range(len(rows), len(rows) + len(plan.decode))
        rows += range(end, end + len(plan.decode))
        tables += plan.decode
        return DrawingRows(tuple(slots), _ints(rows), _ints(tables), _ints(logits_rows))


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)
