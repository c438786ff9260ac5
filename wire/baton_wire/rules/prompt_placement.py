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
from typing import Final, NamedTuple

from baton_wire.rules.piece_size import AIM, BOUND, LEAST_TOKENS, piece_share, piece_tokens

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
TRIED_TOKENS: Final = 2_048
"""Prompt tokens that a decode worker is given to compute while nothing shows what pieces next to its rows cost."""


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
    piece_fixed_s: float = 0.0
    """Seconds that a piece adds to such a step besides, whatever its size."""
    step_fixed_s: float | None = None
    """Seconds of a step of prompts alone besides its tokens; None: not known."""
    recent_step_s: float | None = None
    """Mean seconds of its steps with rows in the last seconds; None: there were none."""


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
    piece_fixed_s: float = 0.0
    """Seconds that a piece adds to such a step besides, whatever its size."""
    recent_step_s: float | None = None
    """Mean seconds of its steps with rows in the last seconds; None: there were none."""


class PieceCost(NamedTuple):
    """Seconds that a piece of a prompt adds to a step with rows: `fixed_s`, and `token_s` for each of its tokens."""

    fixed_s: float
    token_s: float
    is_known: bool = True
    """False: a guess. No such piece was seen, and prompts alone did not show what their first tokens cost."""

    def spread_s(self, tokens: int) -> float:
        """Seconds of each token of a piece of this size, its share of the fixed part included."""
        return self.token_s + self.fixed_s / tokens


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
    prefill_rows_s, decode_rows_s, prefill_cost, decode_cost = costs
    if prefill_rows_s + decode_rows_s - decode.least_s <= AIM * targets.tpot_s:
        return False
    rows, rows_s = (prefill.rows + decode.rows) // 2, (prefill_rows_s + decode_rows_s) / 2
    cost = PieceCost((prefill_cost.fixed_s + decode_cost.fixed_s) / 2, (prefill_cost.token_s + decode_cost.token_s) / 2)
    token_s, tokens_s = _spread_s(rows, rows_s, cost, targets), (prefill.coming_tokens_s + decode.coming_tokens_s) / 2
    return mean_step_s(rows_s, token_s, tokens_s) <= targets.tpot_s


def is_prefill_local(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> bool:
    """True if the prefill worker decodes the answer, too: the decode worker's mean steps are long, and the prefill
    worker's would be shorter, counting arriving and queued prompts. Both still have to compute all of these in time.
    False where costs are unknown, and while the prefill worker's own steps turn out too long.
    """
    if prefill.recent_step_s is not None and prefill.recent_step_s > targets.tpot_s:
        return False
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
    prefill_rows_s, decode_rows_s, prefill_cost, decode_cost = costs
    queued = prefill.queued_tokens + decode.queued_tokens
    tokens_s = prefill.coming_tokens_s + decode.coming_tokens_s + queued / targets.ttft_s
    step_s = AIM * targets.tpot_s
    room = _room_tokens_s(prefill_rows_s, prefill_cost, step_s) + _room_tokens_s(decode_rows_s, decode_cost, step_s)
    return tokens_s / room if room else float("inf")


def _room_tokens_s(rows_s: float, cost: PieceCost, step_s: float) -> float:
    """Prompt tokens a second in steps of `step_s` whose rows take `rows_s`."""
    if rows_s + cost.fixed_s >= step_s:
        return 0.0
    return (1.0 - (rows_s + cost.fixed_s) / step_s) / cost.token_s if cost.token_s else float("inf")


def _step_costs(prefill: PrefillSide, decode: DecodeSide) -> tuple[float, float, PieceCost, PieceCost] | None:
    """Seconds of a step of the rows alone, at the prefill and the decode worker, and the costs of pieces in such
    steps, in the same order; None: unknown, or the prefill worker must not decode. Without rows a prefill worker is
    assumed to need what the decode worker's shortest steps took.
    """
    base_s = decode.least_s if prefill.rows == 0 else prefill.base_s
    if not prefill.may_decode or decode.rows == 0 or decode.base_s is None or base_s is None:
        return None
    decode_cost, prefill_cost = _decode_cost(decode, prefill), _prefill_cost(prefill, base_s, decode)
    if decode_cost is None or prefill_cost is None or not prefill_cost.is_known:
        return None
    return base_s, decode.base_s, prefill_cost, decode_cost


def _mean_steps(prefill: PrefillSide, decode: DecodeSide, targets: LatencyTargets) -> tuple[float, float]:
    """Mean seconds of a step at the prefill and the decode worker, with arriving and queued prompts; both infinite
    where costs are unknown."""
    costs = _step_costs(prefill, decode)
    if costs is None:
        return float("inf"), float("inf")
    prefill_rows_s, decode_rows_s, prefill_cost, decode_cost = costs
    prefill_token_s = _spread_s(prefill.rows, prefill_rows_s, prefill_cost, targets)
    decode_token_s = _spread_s(decode.rows, decode_rows_s, decode_cost, targets)
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
    """True if the first token comes sooner at the decode worker. False where costs are unknown, and while its steps
    turn out too long, whatever was predicted."""
    if decode.recent_step_s is not None and decode.recent_step_s > targets.tpot_s:
        return False
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
    base_s = prefill.base_s
    if prefill.rows and base_s is not None:
        cost = _prefill_cost(prefill, base_s)
        if cost is not None:
            return _pieces_s(prefill.rows, base_s, cost, tokens, tpot_s)
    return None if prefill.token_s is None else tokens * prefill.token_s


def decode_ttft_s(decode: DecodeSide, prefill: PrefillSide, targets: LatencyTargets) -> float | None:
    """Seconds until the first token at the decode worker; None: unknown, or the target between tokens leaves no room:
    neither for the smallest piece in a step, nor on average for arriving and queued prompts and this one. While the
    cost of pieces is a guess, it computes few of them."""
    tokens, cost = decode.queued_tokens + decode.missing_tokens, _decode_cost(decode, prefill)
    if cost is None or (decode.rows and not cost.is_known and tokens > TRIED_TOKENS):
        return None
    if decode.rows == 0 or decode.base_s is None:
        return tokens * max(cost.token_s, prefill.token_s or 0.0)
    piece = _piece(decode.rows, decode.base_s, cost, targets.tpot_s)
    token_s = cost.spread_s(piece)
    mean_s = mean_step_s(decode.base_s, token_s, decode.coming_tokens_s + tokens / targets.ttft_s)
    if decode.base_s + piece * token_s > targets.tpot_s and mean_s > AIM * targets.tpot_s:
        return None
    return _pieces_s(decode.rows, decode.base_s, cost, tokens, targets.tpot_s)


class SeenPieces(NamedTuple):
    """Costs that pieces of prompts added to a worker's steps with rows, learned from these steps."""

    token_s: float | None
    """None: none were seen."""
    fixed_s: float = 0.0


def piece_cost(
    seen: SeenPieces,
    base_s: float,
    alone_token_s: float | None,
    alone_fixed_s: float | None,
    elsewhere: SeenPieces | None = None,
) -> PieceCost | None:
    """Cost of a piece next to rows that take `base_s`; None: nothing is known. Pieces that were seen show it. Else
    steps of prompts alone do, `alone_fixed_s` and `alone_token_s` for each token: with rows, such a step takes no less
    than without. So do pieces that were seen at a worker of the other role (`elsewhere`).

    >>> piece_cost(SeenPieces(None), base_s=0.010, alone_token_s=2e-5, alone_fixed_s=0.019)
    PieceCost(fixed_s=0.009, token_s=2e-05, is_known=True)
    """
    if seen.token_s is not None:
        return _seen_cost(seen.token_s, seen.fixed_s, alone_token_s)
    if alone_token_s is None:
        return None
    fixed_s = [] if alone_fixed_s is None else [max(0.0, alone_fixed_s - base_s)]
    if elsewhere is not None and elsewhere.token_s is not None:
        fixed_s.append(_seen_cost(elsewhere.token_s, elsewhere.fixed_s, alone_token_s).fixed_s)
    return PieceCost(max(fixed_s, default=0.0), alone_token_s, bool(fixed_s))


def _seen_cost(token_s: float, fixed_s: float, alone_token_s: float | None) -> PieceCost:
    """Cost by pieces that were seen. Where their tokens seem far dearer than alone, only the smallest pieces were seen:
    what they cost beyond that is a part of their fixed cost."""
    bounded_s = token_s if alone_token_s is None else min(token_s, BOUND * alone_token_s)
    return PieceCost(fixed_s + (token_s - bounded_s) * LEAST_TOKENS, bounded_s)


def _prefill_cost(prefill: PrefillSide, base_s: float, decode: DecodeSide | None = None) -> PieceCost | None:
    seen = SeenPieces(prefill.piece_token_s, prefill.piece_fixed_s)
    elsewhere = None if decode is None else SeenPieces(decode.token_s, decode.piece_fixed_s)
    return piece_cost(seen, base_s, prefill.more_token_s, prefill.step_fixed_s, elsewhere)


def _decode_cost(decode: DecodeSide, prefill: PrefillSide) -> PieceCost | None:
    base_s = 0.0 if decode.base_s is None else decode.base_s
    elsewhere = SeenPieces(prefill.piece_token_s, prefill.piece_fixed_s)
    seen = SeenPieces(decode.token_s, decode.piece_fixed_s)
    return piece_cost(seen, base_s, prefill.more_token_s, prefill.step_fixed_s, elsewhere)


def _piece(rows: int, base_s: float, cost: PieceCost, tpot_s: float) -> int:
    """Prompt tokens of a piece."""
    return piece_tokens(rows, base_s + cost.fixed_s, cost.token_s, tpot_s, MOST_TOKENS)


def _spread_s(rows: int, base_s: float, cost: PieceCost, targets: LatencyTargets) -> float:
    """Seconds of a prompt token, its share of the pieces' fixed parts included."""
    return cost.spread_s(_piece(rows, base_s, cost, targets.tpot_s))


def _pieces_s(rows: int, base_s: float, cost: PieceCost, tokens: int, tpot_s: float) -> float:
    """Seconds of the steps that compute this many prompt tokens, those that wait for room included."""
    piece = _piece(rows, base_s, cost, tpot_s)
    pieces = ceil(tokens / piece)
    share = piece_share(base_s, cost.fixed_s + piece * cost.token_s, tpot_s)
    return ceil(pieces / share) * base_s + pieces * cost.fixed_s + tokens * cost.token_s
