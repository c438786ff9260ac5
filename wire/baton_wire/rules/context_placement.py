"""Where a turn with a long context is computed and its answer decoded, by the KV that each step reads. Pure.

`prompt_placement` decides for prompts whose own KV is a small part of a step. A context of tens of thousands of tokens
is a row that costs as much as dozens of short ones, and most of its prompt is cached at a worker or two. So here the
steps of a worker are predicted from the KV that it has promised to read, this context included, and each way of serving
the turn is judged by the targets that would be missed: those of this turn, and TPOT of all sequences at the worker that
decodes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from baton_wire.rules.piece_size import AIM, LEAST_TOKENS, piece_tokens
from baton_wire.rules.prompt_placement import (
    FULL,
    MOST_TOKENS,
    SHORTER,
    SOONER,
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
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that come to it to be computed."""
    has_slot: bool = True
    """True where one more sequence could begin at once; for a prefill worker also: it may decode."""
    waiting: int = 0
    """Prompts that wait at the gateway for prefill workers and are in time. Beside an answer that is kept they are
    computed in pieces, which takes several times as long."""


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


def place_context(prefill: ContextSide, decode: ContextSide, own_s: float, targets: LatencyTargets) -> Placement:
    """The workers that compute a turn and decode its answer. `own_s`: seconds that its KV adds to each step.

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
    with_it_s = _mean_step_s(decode, own_s, 0, targets)
    ways = [_Way(Placement.DISAGGREGATED, prefill_ttft_s, with_it_s, decode.sequences)]
    is_home = HOME * decode.missing_tokens <= prefill.missing_tokens
    if decode.has_slot and (is_home or _has_room(decode, own_s, targets)):
        step_s = _mean_step_s(decode, own_s, decode.missing_tokens, targets)
        ttft_s = _first_token_s(decode, least, targets) / SOONER
        ways.append(_Way(Placement.DECODE_LOCAL, ttft_s, step_s, decode.sequences))
    kept_s = _mean_step_s(prefill, own_s, prefill.missing_tokens, targets)
    if prefill.has_slot and with_it_s > FULL * targets.tpot_s and kept_s < SHORTER * with_it_s:
        ways.append(_Way(Placement.PREFILL_LOCAL, prefill_ttft_s, kept_s, prefill.sequences, prefill.waiting))
    best = min(ways, key=lambda way: (way.misses(targets), way.ttft_s, way.step_s))
    return best.placement


def _has_room(side: ContextSide, own_s: float, targets: LatencyTargets) -> bool:
    """True if steps have room for the smallest piece, this context included."""
    return side.rows_s + own_s + LEAST_TOKENS * side.token_s <= AIM * targets.tpot_s


def _first_token_s(side: ContextSide, least: int, targets: LatencyTargets) -> float:
    """Seconds until the turn's first token there. Tokens that the other worker need not compute count as
    `worker_choice` counts missing ones."""
    tokens = side.queued_tokens + side.missing_tokens + (MISSING_WEIGHT - 1) * (side.missing_tokens - least)
    if not side.sequences:
        return tokens * side.token_s
    piece = piece_tokens(side.sequences, side.rows_s, side.token_s, targets.tpot_s, MOST_TOKENS)
    return ceil(tokens / piece) * side.rows_s + tokens * side.token_s


def _mean_step_s(side: ContextSide, own_s: float, tokens: int, targets: LatencyTargets) -> float:
    """Mean seconds of its steps with this context, while prompts come as now and these tokens besides."""
    tokens_s = side.coming_tokens_s + (side.queued_tokens + tokens) / targets.ttft_s
    room_tokens_s = max(0.0, 1.0 - (side.rows_s + own_s) / (AIM * targets.tpot_s)) / side.token_s
    # Pieces are cut so that they leave a step within the target: what has no room waits, and lengthens no step.
    return max(side.rows_s + own_s, mean_step_s(side.rows_s + own_s, side.token_s, min(tokens_s, room_tokens_s)))
