"""Predicts the wait of a new request, and bounds it: a request that would wait too long is refused at once. Pure.

The prediction is the waiting tokens divided by the rate at which they are served: prompt tokens by the prefill pool,
output tokens by the decode pool while it is full. Without a measured rate the wait is unknown, and the request queues.

The bound is long while the queue is young, so that a burst waits instead of being refused. Once the queue has stood for
the TTFT target, only requests that will still be in time may join: a standing queue helps no client (Nichols and
Jacobson, CoDel, 2012; Maurer, Fail at Scale, 2015). Each tenant's queue of a model has a bound, and all of them
together have one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from baton_gateway.workers.pool_load import PoolService

BOUND_TARGETS = 10.0
"""The longest wait without a setting, in TTFT targets."""
STANDING_SHARE = 0.5
"""The share of the target that a standing queue may wait. The rest is for the prompt itself."""
LONG_SHARE = 0.25
"""A share of the target: a prompt that takes longer by itself is long. A standing queue may make it wait for some times
its own work, because its client cannot expect less, and a session's whole context would be computed anew elsewhere."""
FADING = 0.95
MAX_RETRY_S = 60


class Work(msgspec.Struct, frozen=True):
    """The predicted tokens of waiting requests."""

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.prompt_tokens + other.prompt_tokens, self.output_tokens + other.output_tokens)

    def __mul__(self, part: float) -> Work:
        return Work(self.prompt_tokens * part, self.output_tokens * part)

    def __sub__(self, other: Work) -> Work:
        return Work(self.prompt_tokens - other.prompt_tokens, self.output_tokens - other.output_tokens)


def predict_wait_s(held: Work, prefill: PoolService, decode: PoolService) -> float | None:
    """Seconds until a new request's turn, after `held` and the requests at the workers; None: a rate is unknown."""
    prefill_s, decode_s = prefill.wait_s(held.prompt_tokens), decode.wait_s(held.output_tokens)
    return None if prefill_s is None or decode_s is None else max(prefill_s, decode_s)


@dataclass(frozen=True, slots=True)
class WaitRules:
    """The settings of the bound, in seconds. `longest_s`: a fixed bound. None: ten TTFT targets, or ten times the
    prompt's own work where that is more, while the queue is young.
    """

    ttft_s: float = 0.5
    longest_s: float | None = None


class WaitBound:
    """The bound on waits for one model, of one tenant or of all, which follows how its queue behaves."""

    def __init__(self) -> None:
        self._over_since: float | None = None
        self._over_s = -math.inf

    def of(self, wait_s: float, own_s: float, rules: WaitRules, now: float) -> float:
        """Seconds that a new request with this predicted wait may wait; `own_s`: its prompt alone.

        Where even an idle pool takes most of the target, no short bound could keep it, so the long bound holds. A long
        prompt waits by its own time.
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
        if is_standing and own_s <= in_time_s:
            return in_time_s if own_s <= LONG_SHARE * rules.ttft_s else BOUND_TARGETS * own_s
        return BOUND_TARGETS * max(rules.ttft_s, own_s)


def retry_after_s(wait_s: float, bound_s: float) -> int:
    """Seconds until the wait should have fallen to the bound: at least one."""
    return min(MAX_RETRY_S, max(1, math.ceil(wait_s - bound_s)))
