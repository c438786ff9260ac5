"""Where a prompt is computed and its answer decoded, by what that does to first tokens and to the time between tokens.

Pure; the gateway decides by it, and the twin predicts by it. The first token is predicted at both places: behind what
is queued at the prefill worker, and in the pieces that the decode worker's steps have room for (`piece_size`). It goes
where it comes sooner. The sequences that decode there wait no longer than their target for it: pieces see to that.
Where rows alone use the target up, even the least piece would break it for all of them, and the prompt stays away.
Then a prefill worker that may decode keeps the answer, too, as long as both can still compute the prompts that come.
With more rows than the decode worker alone can serve, both workers do both.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil
from typing import Final

from baton_wire.rules.piece_size import AIM, BOUND, piece_tokens

SOONER: Final = 0.8
"""The first token must come in this part of the time: predictions are no better than that."""
FULL: Final = 0.8
"""Of the target between tokens: where steps take so much of it on average, answers are better kept elsewhere. And of
what workers can compute of prompts: where more comes, lines grow with each error of an estimate."""
SHORTER: Final = 0.9
"""Steps elsewhere must be this part as long: a prefill worker without rows computes prompts faster."""
EARLY: Final = 0.3
"""Of the TTFT target: a first token that comes by then need not come sooner elsewhere."""
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
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that come to it to be computed."""
    has_slot: bool = False
    """Whether it can hold one more answer at all, be it better off elsewhere or not."""


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
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that come to it to be computed."""
    least_s: float | None = None
    """The shortest step of rows that was seen of it: what few rows cost."""
    has_slot: bool = True
    """Whether one more sequence could begin at once."""


class Placement(enum.Enum):
    HANDED_OVER = enum.auto()
    """Computed at the prefill worker, decoded at the decode worker."""
    HERE = enum.auto()
    """Both at the decode worker."""
    KEPT = enum.auto()
    """Both at the prefill worker."""


def placement(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> Placement:
    """Where a request's prompt is computed and its answer decoded."""
    if there.has_slot and not here.has_slot:  # elsewhere it would wait behind its first token, for whole answers to end
        return Placement.KEPT
    there_s = first_there_s(there, targets)
    if is_shared(there, here, targets):
        there_step_s, here_step_s = _mean_steps(there, here, targets)
        return Placement.HERE if here_step_s < there_step_s else Placement.KEPT
    keeps = is_kept(there, here, targets)
    if keeps and there_s is not None and there_s <= EARLY * targets.ttft_s:
        return Placement.KEPT
    if is_computed_here(there, here, targets):
        return Placement.HERE
    return Placement.KEPT if keeps else Placement.HANDED_OVER


def is_shared(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> bool:
    """Whether both workers had better do both: all rows together are too many for the decode worker alone, and with
    half of them and half of all prompts each would keep the target. While one computes all prompts, what the other has
    left is too little for the least piece, and the first has too little for all of them.
    """
    costs = _step_costs(there, here)
    if costs is None or here.least_s is None:
        return False
    there_rows_s, here_rows_s, there_token_s, here_token_s = costs
    if there_rows_s + here_rows_s - here.least_s <= AIM * targets.tpot_s:
        return False
    token_s, tokens_s = (there_token_s + here_token_s) / 2, (there.coming_tokens_s + here.coming_tokens_s) / 2
    return mean_step_s((there_rows_s + here_rows_s) / 2, token_s, tokens_s) <= targets.tpot_s


def is_kept(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> bool:
    """Whether the prefill worker decodes the answer, too: the decode worker's steps are long on average, and those of
    the prefill worker would be shorter, with the prompts that come and those that are there. Both still have to compute
    all of these in time. Unknown costs keep none.
    """
    there_s, here_s = _mean_steps(there, here, targets)
    if not (here_s > FULL * targets.tpot_s and there_s < SHORTER * here_s):
        return False
    return prompts_share(there, here, targets) <= FULL


def prompts_share(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> float:
    """What comes and what is in line, of all prompt tokens that both can compute beside rows; infinite: unknown.

    Without rows a prefill worker's steps hold prompts alone. With the first answer that it keeps they become as short
    as the target wants, and each has the rows in it. What the decode worker's rows leave no room for comes there, too.
    """
    costs = _step_costs(there, here)
    if costs is None:
        return float("inf")
    there_rows_s, here_rows_s, there_token_s, here_token_s = costs
    queued = there.queued_tokens + here.queued_tokens
    tokens_s = there.coming_tokens_s + here.coming_tokens_s + queued / targets.ttft_s
    step_s = AIM * targets.tpot_s
    room = _room_tokens_s(there_rows_s, there_token_s, step_s) + _room_tokens_s(here_rows_s, here_token_s, step_s)
    return tokens_s / room if room else float("inf")


def _room_tokens_s(rows_s: float, token_s: float, step_s: float) -> float:
    """Prompt tokens a second in steps of `step_s` whose rows take `rows_s`."""
    if rows_s >= step_s:
        return 0.0
    return (1.0 - rows_s / step_s) / token_s if token_s else float("inf")


def _step_costs(there: PrefillSide, here: DecodeSide) -> tuple[float, float, float, float] | None:
    """Seconds of a step of the rows, there and here, and of a prompt token beside them; None: unknown, or nothing may
    be kept. Without rows a prefill worker is taken to need what the decode worker's shortest steps took.
    """
    here_token_s, there_token_s = _piece_token_s(here.token_s, there), _piece_token_s(there.piece_token_s, there)
    base_s = here.least_s if there.rows == 0 else there.base_s
    if not there.may_keep or here.rows == 0 or here.base_s is None or base_s is None:
        return None
    if here_token_s is None or there_token_s is None:
        return None
    return base_s, here.base_s, there_token_s, here_token_s


def _mean_steps(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> tuple[float, float]:
    """Of each worker, with the prompts that come to it and those in line; both infinite where costs are unknown."""
    costs = _step_costs(there, here)
    if costs is None:
        return float("inf"), float("inf")
    there_rows_s, here_rows_s, there_token_s, here_token_s = costs
    here_tokens_s = here.coming_tokens_s + here.queued_tokens / targets.ttft_s
    there_tokens_s = there.coming_tokens_s + there.queued_tokens / targets.ttft_s
    return (
        mean_step_s(there_rows_s, there_token_s, there_tokens_s),
        mean_step_s(here_rows_s, here_token_s, here_tokens_s),
    )


def mean_step_s(base_s: float, token_s: float, tokens_s: float) -> float:
    """How long steps are on average whose rows alone take `base_s`, with so many prompt tokens a second."""
    left = 1.0 - token_s * tokens_s
    return base_s / left if left > 0 else float("inf")


def is_computed_here(there: PrefillSide, here: DecodeSide, targets: LatencyTargets) -> bool:
    """Unknown costs leave the prompt to the prefill worker."""
    there_s, here_s = first_there_s(there, targets), first_here_s(here, there, targets)
    return there_s is not None and here_s is not None and here_s < SOONER * there_s


def first_there_s(there: PrefillSide, targets: LatencyTargets) -> float | None:
    """Seconds until the first token at the prefill worker; None: unknown."""
    if there.token_s is None or there.more_token_s is None:
        return None
    if there.rows == 0 or there.base_s is None:
        return there.queued_tokens * there.more_token_s + there.missing_tokens * there.token_s
    return prompts_s(there, there.queued_tokens + there.missing_tokens, targets.tpot_s)


def prompts_s(there: PrefillSide, tokens: int, tpot_s: float) -> float | None:
    """Seconds that a prefill worker computes so many prompt tokens, in pieces if it has rows; None: unknown."""
    token_s = _piece_token_s(there.piece_token_s, there)
    if there.rows == 0 or there.base_s is None or token_s is None:
        return None if there.token_s is None else tokens * there.token_s
    piece = piece_tokens(there.rows, there.base_s, token_s, tpot_s, MOST_TOKENS)
    return ceil(tokens / piece) * there.base_s + tokens * token_s


def first_here_s(here: DecodeSide, there: PrefillSide, targets: LatencyTargets) -> float | None:
    """The same at the decode worker; None: unknown, or the target between tokens leaves no room: neither for the least
    piece in a step, nor on average for the prompts that come, those in line and this one."""
    tokens, token_s = here.queued_tokens + here.missing_tokens, _piece_token_s(here.token_s, there)
    if token_s is None:
        return None
    if here.rows == 0 or here.base_s is None:
        return tokens * max(token_s, there.token_s or 0.0)
    piece = piece_tokens(here.rows, here.base_s, token_s, targets.tpot_s, MOST_TOKENS)
    mean_s = mean_step_s(here.base_s, token_s, here.coming_tokens_s + tokens / targets.ttft_s)
    if here.base_s + piece * token_s > targets.tpot_s and mean_s > AIM * targets.tpot_s:
        return None
    return ceil(tokens / piece) * here.base_s + tokens * token_s


def _piece_token_s(seen_s: float | None, there: PrefillSide) -> float | None:
    """What a prompt token adds to a step with rows, by such steps and by those of prompts alone; None: unknown.

    One odd step tells of much more than it is; then no prompt would go there again whose steps could tell otherwise.
    """
    if seen_s is None or there.more_token_s is None:
        return there.more_token_s if seen_s is None else seen_s
    return min(seen_s, BOUND * there.more_token_s)
