"""Where a prompt is computed and its answer decoded, by what that does to first tokens and to the time between tokens.

Pure; the gateway decides by it, and the twin predicts by it. The first token is predicted at both places: behind what
is queued at the prefill worker, and in the pieces that the decode worker's steps have room for (`piece_size`). It goes
where it comes sooner. The sequences that decode there wait no longer than their target for it: pieces see to that.
Where rows alone use the target up, even the least piece would break it for all of them, and the prompt stays away.
Then a prefill worker that may decode keeps the answer, too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil
from typing import Final

from baton_wire.rules.piece_size import piece_tokens

SOONER: Final = 0.8
"""The first token must come in this part of the time: predictions are no better than that."""
FULL: Final = 0.9
"""Of the target between tokens: a step of rows alone that takes so much of it leaves no room for more."""
MOST_TOKENS: Final = 8_192
"""Of prompts in a step, as far as whoever routes knows."""


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class PrefillSide:
    """What a prompt meets at a prefill worker."""

    token_s: float | None
    """Seconds per prompt token, as its steps took; None: not seen."""
    more_token_s: float | None
    """Seconds that one more token adds to a step; None: not seen."""
    queued_tokens: int
    """Prompt tokens before this one."""
    missing_tokens: int
    """Tokens of the prompt that it would have to compute."""
    may_keep: bool = False
    """Whether it can decode what it prefilled."""
    rows: int = 0
    """Sequences that decode there."""
    base_s: float | None = None
    """A step of these alone; None: not seen."""
    piece_token_s: float | None = None
    """What a prompt token adds to it; None: not seen, taken to be `more_token_s`."""


@dataclass(frozen=True, slots=True)
class DecodeSide:
    """The same at a decode worker."""

    rows: int
    """Sequences that decode there."""
    base_s: float | None
    """A step of these alone; None: not seen."""
    token_s: float | None
    """What a prompt token adds to it; None: not seen, taken to be as at the prefill worker."""
    queued_tokens: int
    missing_tokens: int


class Placement(enum.Enum):
    HANDED_OVER = enum.auto()
    """Computed at the prefill worker, decoded at the decode worker."""
    HERE = enum.auto()
    """Both at the decode worker."""
    KEPT = enum.auto()
    """Both at the prefill worker."""


def placement(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> Placement:
    """Where a request's prompt is computed and its answer decoded."""
    if is_computed_here(there, here, targets):
        return Placement.HERE
    return Placement.KEPT if is_kept(there, here, targets) else Placement.HANDED_OVER


def is_kept(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> bool:
    """Whether the prefill worker decodes the answer, too: the decode worker's rows use the target up, and the prefill
    worker's use less of it. Rows slow prompts down there, so that it keeps nothing before. Unknown costs keep nothing.
    """
    if not there.may_keep or here.rows == 0 or here.base_s is None or here.base_s < FULL * targets.tpot_s:
        return False
    if there.rows == 0:
        return True
    return there.base_s is not None and there.base_s < min(FULL * targets.tpot_s, here.base_s)


def is_computed_here(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> bool:
    """Unknown costs leave the prompt to the prefill worker."""
    there_s, here_s = first_there_s(there, targets), first_here_s(here, there, targets)
    return there_s is not None and here_s is not None and here_s < SOONER * there_s


def first_there_s(there: PrefillSide, targets: LatencyTargets) -> float | None:
    """Seconds until the first token at the prefill worker; None: unknown."""
    if there.token_s is None or there.more_token_s is None:
        return None
    alone_s = there.queued_tokens * there.more_token_s + there.missing_tokens * there.token_s
    if there.rows == 0 or there.base_s is None:
        return alone_s
    token_s, tokens = there.piece_token_s or there.more_token_s, there.queued_tokens + there.missing_tokens
    piece = piece_tokens(there.rows, there.base_s, token_s, targets.tpot_s, MOST_TOKENS)
    return ceil(tokens / piece) * there.base_s + tokens * token_s


def first_here_s(here: DecodeSide, there: PrefillSide, targets: LatencyTargets) -> float | None:
    """The same at the decode worker; None: unknown, or the target between tokens leaves no room."""
    tokens, token_s = here.queued_tokens + here.missing_tokens, here.token_s or there.more_token_s
    if token_s is None:
        return None
    if here.rows == 0 or here.base_s is None:
        return tokens * max(token_s, there.token_s or 0.0)
    piece = piece_tokens(here.rows, here.base_s, token_s, targets.tpot_s, MOST_TOKENS)
    if here.base_s + piece * token_s > targets.tpot_s:
        return None
    return ceil(tokens / piece) * here.base_s + tokens * token_s
