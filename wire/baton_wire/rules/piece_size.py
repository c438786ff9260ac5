"""How many prompt tokens a step may carry beside decode rows so that it takes no longer than a target. Pure.

    seconds = base_s + token_s · prompt tokens

The engine sizes the pieces of its steps by it; whoever routes predicts by it when a prompt would be done.

Both coefficients are learned from the steps themselves. `base_s` is what the rows cost without prompts. It follows the
batch, which changes little from step to step. Steps without prompts tell it alone. Steps with prompts correct both, by
their share of what was predicted (normalised least mean squares; Haykin, Adaptive Filter Theory).
"""

from __future__ import annotations

from typing import Final

LEAST_TOKENS: Final = 64
"""A prompt goes on by so many tokens a step whatever the target is, and until costs are known: on a GPU they cost
little more than none."""
TILE_ROWS: Final = 64
"""Products go by tiles of so many rows: decode rows and the piece fill whole ones."""
AIM: Final = 0.95
"""Of the target, what a step is planned for: lengths of steps scatter."""
WEIGHT: Final = 0.3
"""Of a new step in what was learned."""
SCALE_TOKENS: Final = 256
"""A piece of so many tokens corrects both coefficients alike."""


def piece_tokens(rows: int, base_s: float, token_s: float, target_s: float, most_tokens: int) -> int:
    """What a step of so many decode rows carries of prompts: as much as the target leaves, by whole tiles."""
    left_s = max(0.0, AIM * target_s - base_s)
    if left_s >= token_s * most_tokens:
        return most_tokens
    whole = (rows + int(left_s / token_s)) // TILE_ROWS * TILE_ROWS - rows
    return max(min(LEAST_TOKENS, most_tokens), min(whole, most_tokens))


class PieceSize:
    """Of one engine. Times are seconds."""

    def __init__(self, most_tokens: int, target_s: float | None = None) -> None:
        """`most_tokens`: of a step in which nothing decodes, and of any while there is no target."""
        self.target_s = target_s
        """What requests said last; all of a deployment say the same."""
        self._most_tokens = most_tokens
        self._base_s: float | None = None
        self._token_s: float | None = None

    def observe(self, rows: int, prompt_tokens: int, seconds: float) -> None:
        """A step with so many decode rows and prompt tokens took that long. Prompts alone say nothing of the rows."""
        if rows == 0:
            return
        if self._base_s is None:
            # With prompts in it a step is too long a guess; then pieces stay small until it is corrected.
            self._base_s = seconds
        elif prompt_tokens == 0:
            self._base_s += WEIGHT * (seconds - self._base_s)
        elif self._token_s is not None:
            self._correct(prompt_tokens, seconds)
        elif seconds > self._base_s:
            self._token_s = (seconds - self._base_s) / prompt_tokens

    @property
    def base_s(self) -> float | None:
        """A step of the rows alone; None: none was seen."""
        return self._base_s

    @property
    def token_s(self) -> float | None:
        """What a prompt token adds; None: no rows were seen with and without prompts."""
        return self._token_s

    def expected_s(self, rows: int, prompt_tokens: int) -> float | None:
        """How long such a step takes; None: nothing tells."""
        if rows == 0 or self._base_s is None:
            return None
        if prompt_tokens == 0:
            return self._base_s
        return None if self._token_s is None else self._base_s + self._token_s * prompt_tokens

    def tokens(self, rows: int) -> int:
        """Of prompts, in a step with so many decode rows."""
        if rows == 0 or self.target_s is None:
            return self._most_tokens
        if self._base_s is None or self._token_s is None:
            return min(LEAST_TOKENS, self._most_tokens)
        return piece_tokens(rows, self._base_s, self._token_s, self.target_s, self._most_tokens)

    def _correct(self, prompt_tokens: int, seconds: float) -> None:
        assert self._base_s is not None
        assert self._token_s is not None
        size = prompt_tokens / SCALE_TOKENS
        step = WEIGHT * (seconds - self._base_s - self._token_s * prompt_tokens) / (1 + size * size)
        self._base_s = max(0.0, self._base_s + step)
        # One odd step must not make tokens free: at most half of what they cost goes at a time.
        self._token_s = max(self._token_s / 2, self._token_s + step * size / SCALE_TOKENS)
