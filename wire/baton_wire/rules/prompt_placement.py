"""Where a prompt is computed and its answer decoded, by what that does to first tokens and to the time between tokens.

Pure; the gateway decides by it, and the simulator predicts by it. The time to the first token is predicted for both
workers: after the prompts that are queued at the prefill worker, and in the pieces that the decode worker's steps have
room for (`piece_size`). The prompt goes where its first token comes sooner. Pieces keep the sequences that decode there
within their target. Where the rows alone use the target up, even the smallest piece would break it for all of them, so
the prompt is not computed there. A prefill worker that may decode then serves the whole answer (prefill-local), as long
as both workers can still compute the prompts that arrive. With more rows than the decode worker alone can serve, both
workers do both.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil
from typing import Final

from baton_wire.rules.piece_size import AIM, BOUND, piece_tokens

SOONER: Final = 0.8
"""Another worker must bring the first token within this share of the time: predictions are no better than that."""
FULL: Final = 0.8
"""A share of the target between tokens: where mean steps take more, answers are better decoded elsewhere. Also a share
of the prompt tokens that workers can compute: above it, queues grow with each error of an estimate."""
SHORTER: Final = 0.9
"""Steps at the prefill worker must be this much shorter: without rows it computes prompts faster."""
EARLY: Final = 0.3
"""A share of the TTFT target: a first token that comes by then need not come sooner."""
MOST_TOKENS: Final = 8_192
"""Prompt tokens of one step, as far as the router knows."""


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class PrefillSide:
    """The load that a prompt meets at a prefill worker."""

    token_s: float | None
    """Seconds per prompt token, as its steps took; None: not seen."""
    more_token_s: float | None
    """Seconds that one more token adds to a step; None: not seen."""
    queued_tokens: int
    """Prompt tokens queued before this prompt."""
    missing_tokens: int
    """Tokens of the prompt that it would have to compute."""
    may_decode: bool = False
    """True where the worker can decode what it prefilled."""
    rows: int = 0
    """Sequences that it decodes."""
    base_s: float | None = None
    """Seconds of a step with these rows alone; None: not seen."""
    piece_token_s: float | None = None
    """Seconds that a prompt token adds to such a step; None: not seen, taken to be `more_token_s`."""
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that come to it to be computed."""
    has_slot: bool = False
    """True where the worker can hold one more answer at all."""


@dataclass(frozen=True, slots=True)
class DecodeSide:
    """The load that a prompt meets at a decode worker."""

    rows: int
    """Sequences that it decodes."""
    base_s: float | None
    """Seconds of a step with these rows alone; None: not seen."""
    token_s: float | None
    """Seconds that a prompt token adds to such a step; None: not seen, taken to be as at the prefill worker."""
    queued_tokens: int
    missing_tokens: int
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that come to it to be computed."""
    least_s: float | None = None
    """The shortest step without prompts that was seen: the cost of few rows."""
    has_slot: bool = True
    """True where one more sequence could begin at once."""


class Placement(enum.Enum):
    DISAGGREGATED = enum.auto()
    """Computed at the prefill worker, decoded at the decode worker."""
    DECODE_LOCAL = enum.auto()
    """Both at the decode worker."""
    PREFILL_LOCAL = enum.auto()
    """Both at the prefill worker."""


def choose_placement(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> Placement:
    """The workers that compute a request's prompt and decode its answer.

    >>> targets = LatencyTargets(ttft_s=1.0, tpot_s=0.03)
    >>> prefill = PrefillSide(token_s=1e-5, more_token_s=1e-5, queued_tokens=0, missing_tokens=2000)
    >>> decode = DecodeSide(rows=8, base_s=0.01, token_s=2e-5, queued_tokens=0, missing_tokens=2000)
    >>> choose_placement(prefill, decode, targets)
    <Placement.DISAGGREGATED: 1>
    >>> cached = DecodeSide(rows=8, base_s=0.01, token_s=2e-5, queued_tokens=0, missing_tokens=16)
    >>> choose_placement(prefill, cached, targets)
    <Placement.DECODE_LOCAL: 2>
    """
    if prefill.has_slot and not decode.has_slot:  # at the decode worker it would wait for whole answers to end
        return Placement.PREFILL_LOCAL
    prefill_s = prefill_ttft_s(prefill, targets)
    if is_shared(prefill, decode, targets):
        prefill_step_s, decode_step_s = _mean_steps(prefill, decode, targets)
        return Placement.DECODE_LOCAL if decode_step_s < prefill_step_s else Placement.PREFILL_LOCAL
    keeps = is_prefill_local(prefill, decode, targets)
    if keeps and prefill_s is not None and prefill_s <= EARLY * targets.ttft_s:
        return Placement.PREFILL_LOCAL
    if is_decode_local(prefill, decode, targets):
        return Placement.DECODE_LOCAL
    return Placement.PREFILL_LOCAL if keeps else Placement.DISAGGREGATED


def is_shared(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> bool:
    """True if both workers should compute prompts and decode: all rows together are too many for the decode worker
    alone, and each would keep the target with half of the rows and half of the prompts. While one worker computes all
    prompts, the other has too little time left for the smallest piece, and the first too little for all of them.
    """
    costs = _step_costs(prefill, decode)
    if costs is None or decode.least_s is None:
        return False
    prefill_rows_s, decode_rows_s, prefill_token_s, decode_token_s = costs
    if prefill_rows_s + decode_rows_s - decode.least_s <= AIM * targets.tpot_s:
        return False
    token_s, tokens_s = (prefill_token_s + decode_token_s) / 2, (prefill.coming_tokens_s + decode.coming_tokens_s) / 2
    return mean_step_s((prefill_rows_s + decode_rows_s) / 2, token_s, tokens_s) <= targets.tpot_s


def is_prefill_local(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> bool:
    """True if the prefill worker decodes the answer, too: the decode worker's mean steps are long, and the prefill
    worker's would be shorter, counting arriving and queued prompts. Both still have to compute all of these in time.
    False where costs are unknown.
    """
    prefill_s, decode_s = _mean_steps(prefill, decode, targets)
    if not (decode_s > FULL * targets.tpot_s and prefill_s < SHORTER * decode_s):
        return False
    return prompts_share(prefill, decode, targets) <= FULL


def prompts_share(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> float:
    """Arriving and queued prompt tokens, as a share of what both workers can compute besides their rows; infinite:
    unknown.

    Without rows a prefill worker's steps hold prompts alone. With its first prefill-local answer they become as short
    as the target wants, and each step includes the rows. It also gets prompts that the decode worker has no room for.
    """
    costs = _step_costs(prefill, decode)
    if costs is None:
        return float("inf")
    prefill_rows_s, decode_rows_s, prefill_token_s, decode_token_s = costs
    queued = prefill.queued_tokens + decode.queued_tokens
    tokens_s = prefill.coming_tokens_s + decode.coming_tokens_s + queued / targets.ttft_s
    step_s = AIM * targets.tpot_s
    room = _room_tokens_s(prefill_rows_s, prefill_token_s, step_s) + _room_tokens_s(
        decode_rows_s, decode_token_s, step_s
    )
    return tokens_s / room if room else float("inf")


def _room_tokens_s(rows_s: float, token_s: float, step_s: float) -> float:
    """Prompt tokens a second in steps of `step_s` whose rows take `rows_s`."""
    if rows_s >= step_s:
        return 0.0
    return (1.0 - rows_s / step_s) / token_s if token_s else float("inf")


def _step_costs(prefill: PrefillSide, decode: DecodeSide) -> tuple[float, float, float, float] | None:
    """Seconds of a step of the rows alone, at the prefill and the decode worker, and seconds per prompt token in such
    steps, in the same order; None: unknown, or the prefill worker must not decode. Without rows a prefill worker is
    assumed to need what the decode worker's shortest steps took.
    """
    decode_token_s, prefill_token_s = (
        _piece_token_s(decode.token_s, prefill),
        _piece_token_s(prefill.piece_token_s, prefill),
    )
    base_s = decode.least_s if prefill.rows == 0 else prefill.base_s
    if not prefill.may_decode or decode.rows == 0 or decode.base_s is None or base_s is None:
        return None
    if decode_token_s is None or prefill_token_s is None:
        return None
    return base_s, decode.base_s, prefill_token_s, decode_token_s


def _mean_steps(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> tuple[float, float]:
    """Mean seconds of a step at the prefill and the decode worker, with arriving and queued prompts; both infinite
    where costs are unknown."""
    costs = _step_costs(prefill, decode)
    if costs is None:
        return float("inf"), float("inf")
    prefill_rows_s, decode_rows_s, prefill_token_s, decode_token_s = costs
    decode_tokens_s = decode.coming_tokens_s + decode.queued_tokens / targets.ttft_s
    prefill_tokens_s = prefill.coming_tokens_s + prefill.queued_tokens / targets.ttft_s
    return (
        mean_step_s(prefill_rows_s, prefill_token_s, prefill_tokens_s),
        mean_step_s(decode_rows_s, decode_token_s, decode_tokens_s),
    )


def mean_step_s(base_s: float, token_s: float, tokens_s: float) -> float:
    """Mean seconds of steps whose rows alone take `base_s`, with `tokens_s` prompt tokens a second, `token_s` each."""
    left = 1.0 - token_s * tokens_s
    return base_s / left if left > 0 else float("inf")


def is_decode_local(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> bool:
    """True if the first token comes sooner at the decode worker. False where costs are unknown."""
    prefill_s, decode_s = prefill_ttft_s(prefill, targets), decode_ttft_s(decode, prefill, targets)
    return prefill_s is not None and decode_s is not None and decode_s < SOONER * prefill_s


def prefill_ttft_s(prefill: PrefillSide, targets: LatencyTargets) -> float | None:
    """Seconds until the first token at the prefill worker; None: unknown."""
    if prefill.token_s is None or prefill.more_token_s is None:
        return None
    if prefill.rows == 0 or prefill.base_s is None:
        return prefill.queued_tokens * prefill.more_token_s + prefill.missing_tokens * prefill.token_s
    return prompts_s(prefill, prefill.queued_tokens + prefill.missing_tokens, targets.tpot_s)


def prompts_s(prefill: PrefillSide, tokens: int, tpot_s: float) -> float | None:
    """Seconds that a prefill worker takes for this many prompt tokens, in pieces if it has rows; None: unknown."""
    token_s = _piece_token_s(prefill.piece_token_s, prefill)
    if prefill.rows == 0 or prefill.base_s is None or token_s is None:
        return None if prefill.token_s is None else tokens * prefill.token_s
    piece = piece_tokens(prefill.rows, prefill.base_s, token_s, tpot_s, MOST_TOKENS)
    return ceil(tokens / piece) * prefill.base_s + tokens * token_s


def decode_ttft_s(decode: DecodeSide, prefill: PrefillSide, targets: LatencyTargets) -> float | None:
    """Seconds until the first token at the decode worker; None: unknown, or the target between tokens leaves no room:
    neither for the smallest piece in a step, nor on average for arriving and queued prompts and this one."""
    tokens, token_s = decode.queued_tokens + decode.missing_tokens, _piece_token_s(decode.token_s, prefill)
    if token_s is None:
        return None
    if decode.rows == 0 or decode.base_s is None:
        return tokens * max(token_s, prefill.token_s or 0.0)
    piece = piece_tokens(decode.rows, decode.base_s, token_s, targets.tpot_s, MOST_TOKENS)
    mean_s = mean_step_s(decode.base_s, token_s, decode.coming_tokens_s + tokens / targets.ttft_s)
    if decode.base_s + piece * token_s > targets.tpot_s and mean_s > AIM * targets.tpot_s:
        return None
    return ceil(tokens / piece) * decode.base_s + tokens * token_s


def _piece_token_s(seen_s: float | None, prefill: PrefillSide) -> float | None:
    """Seconds that a prompt token adds to a step with rows, by such steps and by those of prompts alone; None: unknown.

    Bounded, because after one odd step no prompt would go there again, and no later step could correct the estimate.
    """
    if seen_s is None or prefill.more_token_s is None:
        return prefill.more_token_s if seen_s is None else seen_s
    return min(seen_s, BOUND * prefill.more_token_s)
