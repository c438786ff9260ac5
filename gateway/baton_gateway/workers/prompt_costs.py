"""The cost of computing prompts, learned from the steps that a worker reported. Plain bookkeeping.

    seconds = fixed_s + token_s · prompt tokens + pair_s · (token, attended position) pairs

By least squares over steps of prompts alone, older ones decayed. A token at the end of a long context attends to all of
it: with 30,000 cached tokens before it, it takes an H200 more than twice as long as one at the beginning of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from baton_wire.messages.measures import StepTiming
from baton_wire.rules.step_times import attended_pairs

FADING: Final = 0.97
"""The weight of a step relative to the next one."""
SPREAD: Final = 0.01
"""The least variance of the steps' tokens and pairs, relative to their squared means, from which slopes can be
estimated; also the least part of it that tokens and pairs do not have in common."""
LEAST_STEPS: Final = 6.0
"""Decayed number of steps before which nothing is estimated."""


class PromptCost(NamedTuple):
    """Estimated seconds of prompts."""

    token_s: float
    """Seconds of a token, without attention."""
    pair_s: float
    """Seconds of a pair of a token and a position that it attends to."""
    usual_pairs: float
    """Pairs of a token, on average over recent prompts."""
    fixed_s: float
    """Seconds of a step of prompts besides. Of a mixture of experts most is reading the experts."""

    @property
    def usual_token_s(self) -> float:
        """Seconds of a token of recent prompts, attention included."""
        return self.token_s + self.pair_s * self.usual_pairs

    def mean_token_s(self, tokens: int, cached_tokens: int) -> float:
        """Seconds of each of a prompt's `tokens` after those that are cached, attention included.

        >>> cost = PromptCost(token_s=22e-6, pair_s=1e-9, usual_pairs=0.0, fixed_s=0.004)
        >>> round(1e6 * cost.mean_token_s(1_000, 30_000), 3)
        52.5
        """
        return self.token_s + self.pair_s * attended_pairs(tokens, cached_tokens) / max(1, tokens)


@dataclass(slots=True)
class PromptCosts:
    """One worker's steps of prompts alone, as decayed sums."""

    _steps: float = 0.0
    _tokens: float = 0.0
    _pairs: float = 0.0
    _seconds: float = 0.0
    _tokens_squared: float = 0.0
    _pairs_squared: float = 0.0
    _tokens_pairs: float = 0.0
    _tokens_seconds: float = 0.0
    _pairs_seconds: float = 0.0
    _slopes: tuple[float, float] | None = None
    """The latest estimate: it is kept while all steps are alike."""

    def observe(self, timing: StepTiming) -> None:
        """Take one reported step; those with rows or without prompts are left out."""
        if timing.decode_rows or not timing.prefill_tokens:
            return
        tokens, pairs, seconds = float(timing.prefill_tokens), timing.prefill_pairs, timing.seconds
        self._steps = FADING * self._steps + 1.0
        self._tokens = FADING * self._tokens + tokens
        self._pairs = FADING * self._pairs + pairs
        self._seconds = FADING * self._seconds + seconds
        self._tokens_squared = FADING * self._tokens_squared + tokens * tokens
        self._pairs_squared = FADING * self._pairs_squared + pairs * pairs
        self._tokens_pairs = FADING * self._tokens_pairs + tokens * pairs
        self._tokens_seconds = FADING * self._tokens_seconds + tokens * seconds
        self._pairs_seconds = FADING * self._pairs_seconds + pairs * seconds
        self._slopes = self._fit() or self._slopes

    def _fit(self) -> tuple[float, float] | None:
        """Seconds of a token and of a pair; None: the steps are too few or too much alike."""
        steps, tokens, pairs = self._steps, self._tokens, self._pairs
        tokens_spread = steps * self._tokens_squared - tokens * tokens
        pairs_spread = steps * self._pairs_squared - pairs * pairs
        if steps < LEAST_STEPS or tokens_spread <= SPREAD * tokens * tokens or pairs_spread <= SPREAD * pairs * pairs:
            return None
        common = steps * self._tokens_pairs - tokens * pairs
        apart = tokens_spread * pairs_spread - common * common
        if apart <= SPREAD * tokens_spread * pairs_spread:
            return None
        by_tokens = steps * self._tokens_seconds - tokens * self._seconds
        by_pairs = steps * self._pairs_seconds - pairs * self._seconds
        token_s = (by_tokens * pairs_spread - by_pairs * common) / apart
        pair_s = (by_pairs * tokens_spread - by_tokens * common) / apart
        if pair_s < 0.0:
            token_s, pair_s = by_tokens / tokens_spread, 0.0
        token_s = min(token_s, self._seconds / tokens)  # a step without its fixed part bounds both
        return (token_s, min(pair_s, self._seconds / pairs)) if token_s > 0.0 else None

    @property
    def cost(self) -> PromptCost | None:
        """The estimate; None: unknown."""
        if self._slopes is None or not self._tokens:
            return None
        token_s, pair_s = self._slopes
        fixed_s = max(0.0, self._seconds - token_s * self._tokens - pair_s * self._pairs) / self._steps
        return PromptCost(token_s, pair_s, self._pairs / self._tokens, fixed_s)
