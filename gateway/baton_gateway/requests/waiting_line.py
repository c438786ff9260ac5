"""Who may still join a line: the wait of a newcomer is predicted, and one beyond its bound is told so at once. Pure.

The prediction is the tokens that wait, divided by the rate at which they are served: prompt tokens by the prefill
pool, output tokens by the decode pool while it is full. Without a measured rate it is unknown, and a newcomer waits.

The bound is long while the line is young, so that a burst waits instead of being refused. Once the line has stood for
the TTFT target, only those may join who will still be in time: a standing line helps nobody (Nichols and Jacobson,
CoDel, 2012; Maurer, Fail at Scale, 2015). Each tenant's line of a model has a bound, and all of them together one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from baton_gateway.workers.pool_load import PoolService

BOUND_TARGETS = 10.0
"""The longest wait without a setting, in TTFT targets."""
STANDING_SHARE = 0.5
"""Of the target, the wait that a standing line may have. The rest is for the prompt itself."""
FADING = 0.95
MAX_RETRY_S = 60


@dataclass(frozen=True, slots=True)
class Work:
    """Predicted tokens of what waits."""

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.prompt_tokens + other.prompt_tokens, self.output_tokens + other.output_tokens)

    def __mul__(self, part: float) -> Work:
        return Work(self.prompt_tokens * part, self.output_tokens * part)

    def __sub__(self, other: Work) -> Work:
        return Work(self.prompt_tokens - other.prompt_tokens, self.output_tokens - other.output_tokens)


def predicted_wait_s(held: Work, prefill: PoolService, decode: PoolService) -> float | None:
    """Seconds until a newcomer's turn behind `held` and what waits at the workers; None when a rate is unknown."""
    there, then = prefill.wait_s(held.prompt_tokens), decode.wait_s(held.output_tokens)
    return None if there is None or then is None else max(there, then)


@dataclass(frozen=True, slots=True)
class WaitRules:
    """Seconds. `longest_s`: the bound as somebody set it, whatever the line does. None: as long as ten TTFT targets, or
    ten times the prompt's own work where that is more, while the line is young.
    """

    ttft_s: float = 0.5
    longest_s: float | None = None


class WaitBound:
    """The bound on the wait of newcomers of one model and tenant, or of all its tenants, as that line behaves."""

    def __init__(self) -> None:
        self._over_since: float | None = None
        self._over_s = -math.inf

    def of(self, wait_s: float, own_s: float, rules: WaitRules, now: float) -> float:
        """Seconds that a newcomer with this predicted wait may wait; `own_s`: its prompt alone.

        Where even an idle pool takes most of the target there is nothing to protect: then only the long bound holds.
        """
        in_time_s = STANDING_SHARE * rules.ttft_s
        if wait_s > in_time_s:
            if self._over_since is None or now - self._over_s > rules.ttft_s:
                self._over_since = now
            self._over_s = now
        is_standing = self._over_since is not None and (
            now - self._over_since >= rules.ttft_s and now - self._over_s <= rules.ttft_s
        )
        if rules.longest_s is not None:
            return rules.longest_s
        return in_time_s if is_standing and own_s <= in_time_s else BOUND_TARGETS * max(rules.ttft_s, own_s)


def retry_after_s(wait_s: float, bound_s: float) -> int:
    """When the wait should have fallen to the bound: at least a second."""
    return min(MAX_RETRY_S, max(1, math.ceil(wait_s - bound_s)))
