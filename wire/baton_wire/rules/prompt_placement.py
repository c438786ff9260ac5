"""The choice of where a prompt is computed and its answer decoded, by its effect on first tokens and on token times.

Pure; the gateway decides with it, and the simulator predicts with it. The first token is predicted at both places:
after the queue of the prefill worker, and in the pieces that the decode worker's steps have room for (`piece_size`).
The prompt goes where its first token comes sooner. Sequences that decode at the decode worker keep their target: pieces
see to that. Where rows alone use the target up, even the smallest piece would break it, and the prompt goes elsewhere.
Then a prefill worker that may decode keeps the answer, too, as long as both can still compute the arriving prompts.
With more rows than the decode worker alone can serve, both workers do both.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil
from typing import Final

from baton_wire.rules.piece_size import AIM, BOUND, piece_tokens

SOONER: Final = 0.8
"""The first token must come within this share of the other place's time: predictions are no better than that."""
FULL: Final = 0.8
"""Share of the token target above which average steps are too long to take further answers. Also the share of the
workers' prompt capacity above which queues grow with each error of an estimate."""
SHORTER: Final = 0.9
"""Steps at the prefill worker must be shorter by this factor: without rows it computes prompts faster."""
EARLY: Final = 0.3
"""Share of the TTFT target within which a first token need not come sooner elsewhere."""
MOST_TOKENS: Final = 8_192
"""Most prompt tokens in a step, as far as the gateway knows."""


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class PrefillSide:
    """The state of a prefill worker that a prompt could go to."""

    token_s: float | None
    """Seconds per prompt token, as its steps took; None: not seen."""
    more_token_s: float | None
    """Seconds that one more token adds to a step; None: not seen."""
    queued_tokens: int
    """Prompt tokens before this one."""
    missing_tokens: int
    """Tokens of the prompt that it would have to compute."""
    may_keep: bool = False
    """The worker can decode what it prefilled."""
    rows: int = 0
    """Sequences that decode at this worker."""
    base_s: float | None = None
    """Seconds of a step of these rows alone; None: not seen."""
    piece_token_s: float | None = None
    """Seconds that a prompt token adds to it; None: not seen, taken to be `more_token_s`."""
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that arrive to be computed."""
    has_slot: bool = False
    """The worker has a slot for one more answer, wherever that is better off."""


@dataclass(frozen=True, slots=True)
class DecodeSide:
    """The state of the decode worker that a prompt could go to."""

    rows: int
    """Sequences that decode at this worker."""
    base_s: float | None
    """Seconds of a step of these rows alone; None: not seen."""
    token_s: float | None
    """Seconds that a prompt token adds to it; None: not seen, taken to be as at the prefill worker."""
    queued_tokens: int
    missing_tokens: int
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that arrive to be computed."""
    least_s: float | None = None
    """Seconds of its shortest step of rows so far: the cost of few rows."""
    has_slot: bool = True
    """One more sequence could begin at once."""


class Placement(enum.Enum):
    DISAGGREGATED = enum.auto()
    """Computed at the prefill worker, decoded at the decode worker."""
    DECODE_LOCAL = enum.auto()
    """Both at the decode worker."""
    PREFILL_LOCAL = enum.auto()
    """Both at the prefill worker."""


def placement(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> Placement:
    """The workers that compute a request's prompt and decode its answer.

    >>> targets = LatencyTargets(ttft_s=1.0, tpot_s=0.03)
    >>> prefill = PrefillSide(token_s=1e-5, more_token_s=1e-5, queued_tokens=0, missing_tokens=2000)
    >>> decode = DecodeSide(rows=8, base_s=0.01, token_s=2e-5, queued_tokens=0, missing_tokens=2000)
    >>> placement(prefill, decode, targets)
    <Placement.DISAGGREGATED: 1>
    >>> cached = DecodeSide(rows=8, base_s=0.01, token_s=2e-5, queued_tokens=0, missing_tokens=16)
    >>> placement(prefill, cached, targets)
    <Placement.DECODE_LOCAL: 2>
    """
    if prefill.has_slot and not decode.has_slot:  # else it waits for whole answers to end
        return Placement.PREFILL_LOCAL
    prefill_s = first_token_at_prefill_s(prefill, targets)
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
    """True if both workers should do both: all rows together are too many for the decode worker alone, and with half of
    them and half of all prompts each worker keeps the target. If one computed all prompts, the other would have too
    little time left for the smallest piece, and the first too little for all prompts.
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
    """True if the prefill worker should decode the answer, too: the decode worker's steps are long on average, and its
    own would be shorter, with the prompts that arrive and those in its queue. Both must still compute all of these in
    time. With unknown costs no answer is kept.
    """
    prefill_s, decode_s = _mean_steps(prefill, decode, targets)
    if not (decode_s > FULL * targets.tpot_s and prefill_s < SHORTER * decode_s):
        return False
    return prompts_share(prefill, decode, targets) <= FULL


def prompts_share(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> float:
    """Arriving and queued prompt tokens, as a share of what both workers can compute next to rows; infinite: unknown.

    Without rows a prefill worker's steps hold prompts alone. With the first answer that it keeps they become as short
    as the target demands, and each has the rows in it. It also gets the prompts that the decode worker has no room for.
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
    """Seconds of a step of the rows, at the prefill and at the decode worker, and of a prompt token next to them.

    None: unknown, or the prefill worker may not decode. Without rows it is taken to need as long as the decode worker's
    shortest steps.
    """
    decode_token_s, prefill_token_s = (
        _piece_token_s(decode.token_s, prefill),
        _piece_token_s(prefill.piece_token_s, prefill),
    )
    base_s = decode.least_s if prefill.rows == 0 else prefill.base_s
    if not prefill.may_keep or decode.rows == 0 or decode.base_s is None or base_s is None:
        return None
    if decode_token_s is None or prefill_token_s is None:
        return None
    return base_s, decode.base_s, prefill_token_s, decode_token_s


def _mean_steps(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> tuple[float, float]:
    """Mean step of each worker, with its arriving and queued prompts; both infinite where costs are unknown."""
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
    """Mean seconds of steps whose rows alone take `base_s`, with `tokens_s` prompt tokens a second."""
    left = 1.0 - token_s * tokens_s
    return base_s / left if left > 0 else float("inf")


def is_decode_local(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> bool:
    """True if the decode worker should compute the prompt. Unknown costs leave it to the prefill worker."""
    prefill_s, decode_s = first_token_at_prefill_s(prefill, targets), first_token_at_decode_s(decode, prefill, targets)
    return prefill_s is not None and decode_s is not None and decode_s < SOONER * prefill_s


def first_token_at_prefill_s(prefill: PrefillSide, targets: LatencyTargets) -> float | None:
    """Seconds until the first token at the prefill worker; None: unknown."""
    if prefill.token_s is None or prefill.more_token_s is None:
        return None
    if prefill.rows == 0 or prefill.base_s is None:
        return prefill.queued_tokens * prefill.more_token_s + prefill.missing_tokens * prefill.token_s
    return prompts_s(prefill, prefill.queued_tokens + prefill.missing_tokens, targets.tpot_s)


def prompts_s(prefill: PrefillSide, tokens: int, tpot_s: float) -> float | None:
    """Seconds that a prefill worker needs for `tokens` prompt tokens, in pieces if it has rows; None: unknown."""
    token_s = _piece_token_s(prefill.piece_token_s, prefill)
    if prefill.rows == 0 or prefill.base_s is None or token_s is None:
        return None if prefill.token_s is None else tokens * prefill.token_s
    piece = piece_tokens(prefill.rows, prefill.base_s, token_s, tpot_s, MOST_TOKENS)
    return ceil(tokens / piece) * prefill.base_s + tokens * token_s


def first_token_at_decode_s(decode: DecodeSide, prefill: PrefillSide, targets: LatencyTargets) -> float | None:
    """Seconds until the first token at the decode worker. None: unknown, or the token target leaves no room, neither
    for the smallest piece in a step, nor on average for arriving prompts, queued prompts and this one."""
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
    """Seconds that a prompt token adds to a step with rows, from such steps and from steps of prompts alone.

    None: unknown. One odd step shows far more than the true cost, and then no prompt would go there again whose steps
    could correct it: so steps of prompts alone bound it.
    """
    if seen_s is None or prefill.more_token_s is None:
        return prefill.more_token_s if seen_s is None else seen_s
    return min(seen_s, BOUND * prefill.more_token_s)
