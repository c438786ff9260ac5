"""Costs of pieces of prompts at a worker, and how long its steps with rows take, by its reports. Plain bookkeeping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from baton_wire.messages.measures import StepTiming
from baton_wire.rules.piece_size import PieceSize
from baton_wire.rules.prompt_placement import MOST_TOKENS

FORGOTTEN_S: Final = 60.0
"""Costs of pieces this long ago count no longer. A cost that was high for another reason would keep all prompts
away, and no later piece could correct it."""
RECENT_S: Final = 2.0
"""In the recent steps, one this long ago counts 1/e of a new one."""


@dataclass(slots=True)
class PieceCosts:
    """One worker's steps with decode rows."""

    size: PieceSize = field(default_factory=lambda: PieceSize(MOST_TOKENS))
    """Estimates what rows and pieces cost."""
    _piece_s: float = -math.inf
    """When the latest piece next to rows was reported."""
    _steps: float = 0.0
    _seconds: float = 0.0
    """Number and seconds of steps with rows until the latest report, decayed."""
    _reported_s: float = -math.inf

    def observe(self, timings: Sequence[StepTiming], now: float) -> None:
        """Take the steps of a report."""
        weight = self._weight(now)
        self._steps, self._seconds, self._reported_s = weight * self._steps, weight * self._seconds, now
        for timing in timings:
            self.size.observe(timing.decode_rows, timing.prefill_tokens, timing.seconds)
            if timing.decode_rows:
                self._steps += 1.0
                self._seconds += timing.seconds
                if timing.prefill_tokens:
                    self._piece_s = now

    def token_s(self, now: float, *, forgets: bool) -> float | None:
        """Seconds that a prompt token adds to a step with rows; None: fewer than two pieces were seen, or none lately.
        `forgets`: there is another way to learn that pieces are dear than to try one."""
        is_forgotten = forgets and now - self._piece_s > FORGOTTEN_S
        return None if is_forgotten or self.size.fixed_s is None else self.size.token_s

    @property
    def fixed_s(self) -> float:
        """Seconds that a piece adds to such a step besides; 0 while `token_s` is unknown."""
        return self.size.fixed_s or 0.0

    def recent_step_s(self, now: float) -> float | None:
        """Mean seconds of recent steps with rows; None: there were none. A worker without work reports nothing."""
        return self._seconds / self._steps if self._weight(now) * self._steps >= 1.0 else None

    def _weight(self, now: float) -> float:
        """The weight of steps until the latest report."""
        return math.exp(-max(0.0, now - self._reported_s) / RECENT_S)
