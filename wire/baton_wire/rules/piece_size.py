"""Prompt tokens that a step may carry next to decode rows so that it takes no longer than a target. Pure.

    seconds = base_s + token_s · prompt tokens + (fixed_s if there are prompt tokens)

The engine sizes the pieces of its steps by it; the gateway predicts by it when a prompt would be done.

All coefficients are learned from the steps themselves. `base_s` is what the rows cost without prompts. It follows the
batch, which changes little from step to step: each step corrects it by a share of what was predicted wrongly.
`token_s` is a property of the machine. `fixed_s` is what a piece costs whatever its size: its first tokens make a
mixture of experts read nearly all of them, which takes as long as hundreds of further tokens. Both learn from the
extra time of a step over the one before it, for its extra tokens and for having a piece at all: steps with equal
pieces cannot tell a long piece from slow rows (normalised least mean squares; Haykin, Adaptive Filter Theory). The
first guess is the lesser of two pieces': one step may be odd. Where prompts were computed alone before, their seconds
per token are the first guess of `token_s`, and bound it; what a piece took beyond that is the guess of `fixed_s`.
"""

from __future__ import annotations

from math import ceil
from typing import Final

LEAST_TOKENS: Final = 64
"""The smallest piece, also until costs are known: on a GPU it costs little more than none. Next to rows that leave no
room for it, it waits for steps that make up for it."""
MOST_SKIPPED: Final = 7
"""Steps without a piece after which a prompt advances whatever the target is."""
MOST_SAVED: Final = 0.3
"""Time that steps before saved under `AIM`, and that a piece may use, at most: a share of the target."""
TILE_ROWS: Final = 64
"""Matrix products work in tiles of this many rows: decode rows and the piece fill whole ones."""
AIM: Final = 0.95
"""Share of the target that a step is planned for: lengths of steps scatter."""
WEIGHT: Final = 0.3
"""Weight of a new step in the learned values."""
SCALE_TOKENS: Final = 128
"""A piece that differs by this much from the one before it corrects `token_s` well."""
ALONE_TOKENS: Final = 256
"""A step of this many prompt tokens and no rows shows what a token costs."""
ENOUGH_S: Final = 0.02
"""A step of prompts alone that lasts this long has enough of them: in a shorter one the fixed part (2 to 4 ms) weighs
much. In a longer one first tokens wait for prompts that came later."""
BOUND: Final = 2.0
"""A token next to rows costs 1/`BOUND` to `BOUND` times what it costs in a step of prompts alone."""
ODD: Final = 0.5
"""Largest error of one step that is believed, as a share of the prediction: some steps wait for the host or a
hand-over."""


def piece_tokens(rows: int, base_s: float, token_s: float, target_s: float, most_tokens: int) -> int:
    """Prompt tokens in a step with `rows` decode rows: as many as the target leaves room for, by whole tiles.

    >>> piece_tokens(rows=32, base_s=0.010, token_s=2e-5, target_s=0.030, most_tokens=8192)
    864
    >>> piece_tokens(rows=32, base_s=0.040, token_s=2e-5, target_s=0.030, most_tokens=8192)
    64
    """
    left_s = max(0.0, AIM * target_s - base_s)
    if left_s >= token_s * most_tokens:
        return most_tokens
    whole = (rows + int(left_s / token_s)) // TILE_ROWS * TILE_ROWS - rows
    return max(min(LEAST_TOKENS, most_tokens), min(whole, most_tokens))


def piece_share(base_s: float, piece_s: float, target_s: float) -> float:
    """The share of steps with a piece, where the rows take `base_s` and the piece adds `piece_s`: one that lengthens
    its step over the target waits until the steps before it have made up for it, `MOST_SKIPPED` at most.

    >>> piece_share(base_s=0.010, piece_s=0.002, target_s=0.015)
    1.0
    >>> round(piece_share(base_s=0.010, piece_s=0.008, target_s=0.015), 3)  # each step without one saves 4.25 ms
    0.531
    """
    room_s = AIM * target_s - base_s
    if piece_s <= max(0.0, room_s):  # also one that was measured as nothing
        return 1.0
    least = 1.0 / (1 + MOST_SKIPPED)
    return least if piece_s - room_s > MOST_SAVED * target_s else max(least, room_s / piece_s)


class PieceSize:
    """The piece size of one engine. Times are seconds."""

    def __init__(self, most_tokens: int, target_s: float | None = None) -> None:
        """`most_tokens`: limit of a step in which nothing decodes, and of every step while there is no target."""
        self.target_s = target_s
        """The target of the latest request; all requests of a deployment have the same."""
        self._most_tokens = most_tokens
        self._base_s: float | None = None
        self._rows_s: float | None = None
        """From steps without prompts alone."""
        self._least_s: float | None = None
        self._token_s: float | None = None
        self._fixed_s = 0.0
        self._first_piece: tuple[float, int] | None = None
        """Seconds and tokens of the first piece next to rows. The second shows whether that step was odd."""
        self._alone_s: float | None = None
        """Seconds per token of steps of prompts alone."""
        self._between_s = 0.0
        """Time between two steps in which the device waited for the host, on average."""
        self._saved_s = 0.0
        """Time that recent steps took less than the target; negative: more."""
        self._skipped = 0
        """Steps without a piece since the last one with a piece."""
        self._last: tuple[int, float] | None = None
        """Prompt tokens and seconds of the latest step with rows."""

    def observe(self, rows: int, prompt_tokens: int, seconds: float, period_s: float | None = None) -> None:
        """Note that a step with these decode rows and prompt tokens took the device `seconds`. `period_s`: time from
        the end of the step before to its end, if that one was followed at once: what clients wait for a token."""
        if rows == 0:
            if prompt_tokens >= ALONE_TOKENS:
                self._alone_s = _moved(self._alone_s, seconds / prompt_tokens)
            return
        self._note_period(seconds, seconds if period_s is None else period_s)
        if prompt_tokens == 0:
            self._rows_s = _moved(self._rows_s, seconds)
            self._least_s = self._rows_s if self._least_s is None else min(self._least_s, self._rows_s)
        if self._base_s is None:
            # With prompts in it a step is too long a guess; then pieces stay small until it is corrected.
            self._base_s = max(seconds / 2, seconds - prompt_tokens * (self._alone_s or 0.0))
        elif prompt_tokens and self._token_s is None:
            if seconds > self._base_s:
                piece = seconds - self._base_s, prompt_tokens
                if self._first_piece is None:
                    self._first_piece = piece
                else:
                    self._begin(*min(piece, self._first_piece, key=lambda piece: piece[0] / piece[1]))
        else:
            self._correct(prompt_tokens, seconds)
        self._last = prompt_tokens, seconds

    @property
    def base_s(self) -> float | None:
        """Seconds of a step of the rows alone; None: none was seen."""
        return self._base_s

    @property
    def least_s(self) -> float | None:
        """The least that `base_s` was: a step of few rows. None: no step without prompts was seen."""
        return self._least_s

    @property
    def token_s(self) -> float | None:
        """Seconds that a prompt token adds; None: neither rows with and without prompts were seen, nor prompts
        alone."""
        return self._alone_s if self._token_s is None else self._token_s

    @property
    def fixed_s(self) -> float | None:
        """Seconds that a piece adds besides its tokens; None: fewer than two pieces next to rows were seen."""
        return None if self._token_s is None else self._fixed_s

    def expected_s(self, rows: int, prompt_tokens: int) -> float | None:
        """Predicted seconds of such a step; None: unknown."""
        if rows == 0 or self._base_s is None:
            return None
        if prompt_tokens == 0:
            return self._base_s
        return None if self.token_s is None else self._base_s + self._fixed_s + self.token_s * prompt_tokens

    def tokens(self, rows: int) -> int:
        """Prompt tokens that a step with these decode rows may carry."""
        if rows == 0 or self.target_s is None:
            return self._most_tokens
        if self._base_s is None or self.token_s is None:
            return min(LEAST_TOKENS, self._most_tokens)
        base_s = self._base_s + self._between_s + self._fixed_s
        piece = piece_tokens(rows, base_s, self.token_s, self.target_s, self._most_tokens)
        over_s = base_s + piece * self.token_s - AIM * self.target_s
        if over_s > max(0.0, self._saved_s) and self._skipped < MOST_SKIPPED:
            self._skipped += 1
            return 0
        self._skipped = 0
        return piece

    def _note_period(self, seconds: float, period_s: float) -> None:
        if self.target_s is not None:
            between_s = max(0.0, min(self.target_s, period_s - seconds))
            self._between_s += WEIGHT * (between_s - self._between_s)
            most_s = MOST_SAVED * self.target_s
            self._saved_s = max(-most_s, min(most_s, self._saved_s + AIM * self.target_s - period_s))

    def enough_tokens(self, rows: int) -> int:
        """Prompt tokens with which a step with these decode rows is full: no further prompt begins in it."""
        if rows or not self._alone_s:  # nothing was seen, or tokens that take no time
            return self._most_tokens
        return ceil(ENOUGH_S / self._alone_s)

    def _bounded(self, token_s: float) -> float:
        if self._alone_s is None:
            return token_s
        return min(BOUND * self._alone_s, max(self._alone_s / BOUND, token_s))

    def _begin(self, piece_s: float, tokens: int) -> None:
        """The first guess, of a piece that added `piece_s`: what its tokens do not cost alone is its fixed part."""
        token_s = piece_s / tokens
        self._token_s = token_s if self._alone_s is None else min(self._alone_s, self._bounded(token_s))
        self._fixed_s = max(0.0, piece_s - self._token_s * tokens)

    def _correct(self, prompt_tokens: int, seconds: float) -> None:
        assert self._base_s is not None
        expected_s = self._base_s + (self.token_s or 0.0) * prompt_tokens + (self._fixed_s if prompt_tokens else 0.0)
        wrong_s = WEIGHT * max(-ODD * expected_s, min(ODD * expected_s, seconds - expected_s))
        self._base_s = max(0.0, self._base_s + wrong_s)
        if self._token_s is not None and self._last is not None:
            more = prompt_tokens - self._last[0]
            begun = (prompt_tokens > 0) - (self._last[0] > 0)
            wrong_s = seconds - self._last[1] - self._token_s * more - self._fixed_s * begun
            wrong_s = WEIGHT * max(-ODD * expected_s, min(ODD * expected_s, wrong_s))
            wrong_s /= SCALE_TOKENS**2 * (1 + abs(begun)) + more**2
            # One odd step must not make tokens free: at most half of what they cost goes at a time.
            self._token_s = self._bounded(max(self._token_s / 2, self._token_s + wrong_s * more))
            self._fixed_s = max(self._fixed_s / 2, self._fixed_s + wrong_s * begun * SCALE_TOKENS**2)


def _moved(before_s: float | None, seconds: float) -> float:
    return seconds if before_s is None else before_s + WEIGHT * (seconds - before_s)
