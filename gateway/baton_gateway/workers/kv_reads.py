"""The cost of reading KV in decode steps, learned from the steps that a worker reported. Plain bookkeeping.

    seconds = fixed_s + kv_token_s · KV tokens that the rows read

By least squares over steps without prompts, older ones decayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_wire.messages.measures import StepTiming

FADING: Final = 0.99
"""The weight of a step relative to the next one."""
SPREAD: Final = 0.001
"""The least variance of the steps' KV tokens, relative to their squared mean, from which a slope can be estimated."""
LEAST_STEPS: Final = 8.0
"""Decayed number of steps before which nothing is estimated."""


@dataclass(slots=True)
class KvReads:
    """One worker's decode steps, as decayed sums.

    >>> reads = KvReads()
    >>> for kv_tokens in range(100_000, 120_000, 1_000):
    ...     reads.observe(StepTiming(0, 0, 0, 8, kv_tokens, 0.004 + 30e-9 * kv_tokens))
    >>> round(1e9 * reads.kv_token_s, 3), round(1e3 * reads.fixed_s, 3)
    (30.0, 4.0)
    """

    _steps: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0
    _slope: float | None = None
    """The latest estimate: it is kept while all steps are alike."""

    def observe(self, timing: StepTiming) -> None:
        """Take one reported step; those with prompts or without rows are left out."""
        if timing.prefill_tokens or not timing.decode_rows:
            return
        tokens, seconds = float(timing.kv_tokens), timing.seconds
        self._steps = FADING * self._steps + 1.0
        self._tokens = FADING * self._tokens + tokens
        self._seconds = FADING * self._seconds + seconds
        self._squares = FADING * self._squares + tokens * tokens
        self._products = FADING * self._products + tokens * seconds
        spread = self._steps * self._squares - self._tokens**2
        if self._steps >= LEAST_STEPS and spread > SPREAD * self._tokens**2:
            slope = (self._steps * self._products - self._tokens * self._seconds) / spread
            most = self._seconds / max(1.0, self._tokens)  # a step without its fixed part
            self._slope = min(most, max(0.0, slope))

    @property
    def kv_token_s(self) -> float | None:
        """Seconds that a step takes for each KV token that it reads; None: unknown."""
        return self._slope

    @property
    def fixed_s(self) -> float | None:
        """Seconds of a step that reads no KV; None: unknown."""
        return None if self._slope is None else max(0.0, (self._seconds - self._slope * self._tokens) / self._steps)
