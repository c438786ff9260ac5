"""Where a prompt is computed when both are possible (`--disaggregation auto`): by prediction, never by a fixed length.
Pure.

A decode worker that computes a prompt makes its running sequences wait. It may spend so much of its time on prompts
that TPOT stays within its target: steps of s seconds under a target of T leave a share of 1 - s/T. That share, halved
because other gateways do the same, fills an allowance in seconds; within it the prompt goes where its first token
comes sooner, if that keeps the TTFT target where the prefill worker would not, or saves half of the work.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.5
"""Of the time that the TPOT target leaves, what one gateway process gives to prompts."""
SOONER = 0.8
"""The first token must come in this part of the time: predictions are no better than that."""
TIGHT = 0.5
"""A wait of more than this part of the TTFT target is worth relieving."""
LESS_WORK = 0.5
FULL_S = 1.0
"""An allowance never grows beyond this, so that a quiet minute does not permit a loud second."""


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What a prompt meets at one worker."""

    token_s: float | None
    """Seconds per prompt token, as its steps took; None: not seen."""
    step_s: float
    """Smoothed duration of its steps."""
    queued_tokens: int
    """Prompt tokens before this one."""
    missing_tokens: int
    """Tokens of the prompt that it would have to compute."""


def goes_to_decode(prefill: Costs, decode: Costs, allowance_s: float, targets: LatencyTargets) -> bool:
    """Whether the decode worker computes the prompt itself. Unknown costs leave it to the prefill worker."""
    if prefill.token_s is None:
        return False
    own_s = work_s(prefill, decode)
    there_s = prefill.missing_tokens * prefill.token_s
    if own_s > allowance_s:
        return False
    first_here_s = (decode.token_s or prefill.token_s) * decode.queued_tokens + own_s + decode.step_s
    first_there_s = prefill.queued_tokens * prefill.token_s + there_s
    if first_here_s >= SOONER * first_there_s:
        return False
    return first_there_s > TIGHT * targets.ttft_s or own_s < LESS_WORK * there_s


def work_s(prefill: Costs, decode: Costs) -> float:
    """Seconds of the decode worker that the prompt takes; a worker that computed none yet is taken to be as fast."""
    return decode.missing_tokens * (decode.token_s or prefill.token_s or 0.0)


def refilled(allowance_s: float, seconds: float, step_s: float, targets: LatencyTargets) -> float:
    """The allowance `seconds` later, while steps take `step_s`; it may be negative after a long prompt."""
    share = SHARE * max(0.0, 1.0 - step_s / targets.tpot_s)
    return min(FULL_S, allowance_s + share * max(0.0, seconds))
