"""Where a turn with a long context is computed and its answer decoded, by the KV that each step reads. Pure.

`prompt_placement` decides for prompts whose own KV is a small part of a step. A context of tens of thousands of tokens
is a row that costs as much as dozens of short ones, and most of its prompt is cached at a worker or two. So here the
steps of a worker are predicted from the KV that it has promised to read, this context included, and each way of serving
the turn is judged by the targets that would be missed: those of this turn, and TPOT of all sequences at the worker that
decodes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from baton_wire.rules.piece_size import AIM, LEAST_TOKENS, piece_share, piece_tokens
from baton_wire.rules.prompt_placement import (
    FULL,
    MOST_TOKENS,
    SHORTER,
    SOONER,
    TRIED_TOKENS,
    LatencyTargets,
    Placement,
    mean_step_s,
)
from baton_wire.rules.worker_choice import MISSING_WEIGHT

LONG_SHARE: Final = 0.02
"""A share of the TPOT target: a context whose KV takes longer to read is long."""
HOME: Final = 2.0
"""Where the prefill worker would have to compute this many times as much, the decode worker computes the turn although
its steps have no room: the smallest pieces lengthen a few steps, and a context need not be computed again."""

LEAST_IDLE: Final = 0.25
"""The least share of its time that a prefill worker is taken to be idle: the gateway holds prompts that come to a busy
one, and clients whose answers are late send less."""


@dataclass(frozen=True, slots=True)
class ContextSide:
    """The load that a turn meets at a worker."""

    sequences: int
    """Sequences that it decodes, or will decode once their KV is there."""
    rows_s: float
    """Seconds of a step with all of these, without prompts."""
    token_s: float
    """Seconds that a prompt token adds to a step."""
    queued_tokens: int
    missing_tokens: int
    own_token_s: float | None = None
    """Seconds of each missing token, attention to the turn's context included; None: as `token_s`."""
    running_s: float | None = None
    """The part of `rows_s` that reads the KV of sequences in the running batch; None: unknown."""
    promised_s: float = 0.0
    """The part of `rows_s` that reads KV: also of sequences whose KV is on its way."""
    usual_rows_s: float = 0.0
    """`rows_s`, on average over the last seconds."""
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that come to it to be computed."""
    has_slot: bool = True
    """True where one more sequence could begin at once; for a prefill worker also: it may decode."""
    waiting: int = 0
    """Prompts that wait at the gateway for prefill workers and are in time. Beside an answer that is kept they are
    computed in pieces, which takes several times as long."""
    piece_fixed_s: float = 0.0
    """Seconds that a piece of a prompt adds to a step besides its tokens."""
    knows_pieces: bool = True
    """False: nothing shows what pieces next to rows cost. Then only few prompt tokens go there to be computed, and no
    answer is kept."""
    recent_step_s: float | None = None
    """Mean seconds of its steps with rows in the last seconds, pieces included; None: there were none."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way of serving the turn, as predicted."""

    placement: Placement
    ttft_s: float
    step_s: float
    """Mean step of the worker that decodes the answer."""
    sequences: int
    delayed: int = 0
    """Prompts of others that it makes late."""

    def misses(self, targets: LatencyTargets) -> int:
        """Answers that would miss a target."""
        late = self.delayed + (self.ttft_s > targets.ttft_s)
        return late + (self.sequences + 1 if self.step_s > targets.tpot_s else 0)


def is_long(own_s: float, targets: LatencyTargets) -> bool:
    """True if reading the context's KV is a part of a step that counts. `own_s`: seconds that it takes.

    >>> targets = LatencyTargets(ttft_s=2.0, tpot_s=0.015)
    >>> is_long(30e-9 * 2_000, targets), is_long(30e-9 * 24_000, targets)
    (False, True)
    """
    return own_s > LONG_SHARE * targets.tpot_s


def place_context(
    prefill: ContextSide,
    decode: ContextSide,
    own_s: float,
    targets: LatencyTargets,
    answer_tokens: int | None = None,
) -> Placement:
    """The workers that compute a turn and decode its answer. `own_s`: seconds that its KV adds to each step.
    `answer_tokens`: the most tokens of its answer, and about those of others; None: unknown.

    >>> targets = LatencyTargets(ttft_s=2.0, tpot_s=0.015)
    >>> idle = ContextSide(sequences=0, rows_s=0.004, token_s=2e-5, queued_tokens=0, missing_tokens=1_700)
    >>> full = ContextSide(sequences=14, rows_s=0.0147, token_s=2e-5, queued_tokens=0, missing_tokens=1_500)
    >>> place_context(idle, full, 0.0008, targets)
    <Placement.PREFILL_LOCAL: 3>
    >>> place_context(idle, ContextSide(4, 0.007, 2e-5, 0, 1_500), 0.0008, targets)
    <Placement.DISAGGREGATED: 1>
    """
    if prefill.has_slot and not decode.has_slot:
        return Placement.PREFILL_LOCAL
    least = min(prefill.missing_tokens, decode.missing_tokens)
    prefill_ttft_s = _first_token_s(prefill, least, targets)
    with_it_s = _mean_step_s(_when_landed(decode, prefill_ttft_s, answer_tokens), own_s, 0, targets)
    ways = [_Way(Placement.DISAGGREGATED, prefill_ttft_s, with_it_s, decode.sequences)]
    is_home = HOME * decode.missing_tokens <= prefill.missing_tokens
    # Rows come and go in waves: those that are missing now will be there before the last piece is computed.
    usual = replace(decode, rows_s=max(decode.rows_s, decode.usual_rows_s))
    if _may_compute(decode, targets) and (is_home or _has_room(usual, own_s, targets)):
        step_s = _mean_step_s(usual, own_s, decode.missing_tokens, targets)
        ttft_s = _first_token_s(usual, least, targets) / SOONER
        ways.append(_Way(Placement.DECODE_LOCAL, ttft_s, step_s, decode.sequences))
    kept_s = _mean_step_s(prefill, own_s, prefill.missing_tokens, targets)
    may_keep = prefill.has_slot and prefill.knows_pieces and not _is_late(prefill, targets)
    if may_keep and with_it_s > FULL * targets.tpot_s and kept_s < SHORTER * with_it_s:
        kept_for_s = 0.0 if answer_tokens is None else answer_tokens * kept_s
        delayed = prefill.waiting + _num_without_room(prefill, own_s, kept_for_s, targets)
        ways.append(_Way(Placement.PREFILL_LOCAL, prefill_ttft_s, kept_s, prefill.sequences, delayed))
    best = min(ways, key=lambda way: (way.misses(targets), way.ttft_s, way.step_s))
    return best.placement


def _when_landed(side: ContextSide, after_s: float, answer_tokens: int | None) -> ContextSide:
    """The decode worker when KV lands there after `after_s`: part of what runs now has ended by then. What follows
    takes its place, so that steps are not shorter than now."""
    if side.running_s is None or answer_tokens is None:
        return side
    answer_s = answer_tokens * side.rows_s  # 0 where a step's cost was measured as nothing
    ended = 1.0 if after_s >= answer_s else after_s / answer_s
    coming_s = max(0.0, side.promised_s - side.running_s)
    return replace(side, rows_s=side.rows_s - min(ended * side.running_s, coming_s))


def _has_room(side: ContextSide, own_s: float, targets: LatencyTargets) -> bool:
    """True if steps have room for the smallest piece, this context included."""
    return side.rows_s + own_s + side.piece_fixed_s + LEAST_TOKENS * side.token_s <= AIM * targets.tpot_s


def _first_token_s(side: ContextSide, least: int, targets: LatencyTargets) -> float:
    """Seconds until the turn's first token there. Tokens that the other worker need not compute count as
    `worker_choice` counts missing ones."""
    own_tokens = side.missing_tokens + (MISSING_WEIGHT - 1) * (side.missing_tokens - least)
    own_token_s = side.token_s if side.own_token_s is None else side.own_token_s
    alone_s = side.queued_tokens * side.token_s + own_tokens * own_token_s
    if not side.sequences:
        return alone_s
    piece, share = _pieces(side, side.rows_s, targets)
    pieces = ceil((side.queued_tokens + own_tokens) / piece)
    return ceil(pieces / share) * side.rows_s + pieces * side.piece_fixed_s + alone_s


def _pieces(side: ContextSide, rows_s: float, targets: LatencyTargets) -> tuple[int, float]:
    """Tokens of a piece in steps whose rows take `rows_s`, and the share of steps that have one."""
    base_s = rows_s + side.piece_fixed_s
    piece = piece_tokens(side.sequences, base_s, side.token_s, targets.tpot_s, MOST_TOKENS)
    return piece, piece_share(rows_s, side.piece_fixed_s + piece * side.token_s, targets.tpot_s)


def _num_without_room(side: ContextSide, own_s: float, kept_for_s: float, targets: LatencyTargets) -> int:
    """Number of prompts like this turn's that are late because pieces next to its answer have no room for them: while
    that is decoded there, for a TTFT target at least, and until the queue of prompts has drained after it."""
    base_s = side.rows_s + own_s + side.piece_fixed_s
    room_tokens_s = max(0.0, 1.0 - base_s / (AIM * targets.tpot_s)) / side.token_s
    tokens_s, kept_s = side.coming_tokens_s - FULL * room_tokens_s, max(targets.ttft_s, kept_for_s)
    over_tokens = max(0.0, tokens_s * kept_s + side.queued_tokens + side.missing_tokens)
    # What comes until the queue has drained is late, too.
    idle_share = max(LEAST_IDLE, 1.0 - side.coming_tokens_s * side.token_s)
    return ceil(over_tokens / idle_share / max(1, side.missing_tokens))


def _may_compute(decode: ContextSide, targets: LatencyTargets) -> bool:
    """True if a decode worker may be given more prompt tokens to compute at all."""
    is_tried = decode.knows_pieces or decode.queued_tokens + decode.missing_tokens <= TRIED_TOKENS
    return decode.has_slot and is_tried and not _is_late(decode, targets)


def _is_late(side: ContextSide, targets: LatencyTargets) -> bool:
    """True while steps turn out too long, whatever was predicted."""
    return side.recent_step_s is not None and side.recent_step_s > targets.tpot_s


def _mean_step_s(side: ContextSide, own_s: float, tokens: int, targets: LatencyTargets) -> float:
    """Mean seconds of its steps with this context, while prompts come as now and these tokens besides. Prompts that
    have no room in the steps wait, and lengthen none, but for a smallest piece now and then."""
    rows_s = side.rows_s + own_s
    tokens_s = side.coming_tokens_s + (side.queued_tokens + tokens) / targets.ttft_s
    piece, share = _pieces(side, rows_s, targets)
    token_s = side.token_s + side.piece_fixed_s / piece
    return min(mean_step_s(rows_s, token_s, tokens_s), rows_s + share * piece * token_s)
