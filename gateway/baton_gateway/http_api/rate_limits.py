"""The limits of a tenant as its client meets them: refusals with `Retry-After`, and `x-ratelimit-…` headers of answers.

The headers have OpenAI's names and forms, so that clients' libraries understand them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.wait_prediction import Work
from baton_gateway.tenancy.month_meters import PER_MONTH, MonthCharge, MonthMeters, OverQuota, QuotaState
from baton_gateway.tenancy.tenant_meters import NOTHING, Charge, Cost, OverLimit, Remaining, TenantMeters
from baton_wire.messages.operator_link import LimitMeasure

MOST_RETRY_S = 60


@dataclass(slots=True)
class ChargedRequest:
    """A request that its tenant's limits let through. `live` is set once it is admitted."""

    charge: Charge
    month: MonthCharge | None = None
    live: LiveRequest | None = None

    def cost(self) -> Cost:
        """The cost that the request had in the end. Nothing, if it was refused on arrival: that may be for other
        tenants."""
        if self.live is None:
            return NOTHING
        life = self.live.life
        return Cost(1, life.prompt_tokens(), life.completion_tokens())


class RateLimits:
    """The limits by the minute and by the month, and which models a tenant may ask. `wall`: the wall clock."""

    def __init__(self, meters: TenantMeters, months: MonthMeters, wall: Callable[[], float] = time.time) -> None:
        self.meters, self._months, self._wall = meters, months, wall

    def charge(
        self, tenant: Tenant, request: ChatRequest | CompletionRequest, work: Work, headers: dict[str, str], now: float
    ) -> ChargedRequest:
        """Charge a request; `settle` follows at its end. `work`: of its first prompt. `headers` of the answer get what
        is left. Raises RefusedError with 403, 429 or 503.
        """
        check_model(tenant, request.options.model)
        cost = expected_cost(request, work)
        tokens = cost.input_tokens + cost.output_tokens
        if (refusal := self._months.check(tenant, tokens, self._wall())) is not None:
            raise RefusedError(over_quota(refusal))
        outcome = self.meters.charge(tenant, cost, now)
        headers |= limit_headers(self.meters.remaining(tenant, now))
        if isinstance(outcome, OverLimit):
            raise RefusedError(over_limit(outcome))
        return ChargedRequest(outcome, self._months.charge(tenant, tokens))

    def settle(self, charged: ChargedRequest, now: float) -> None:
        """The request ended."""
        cost = charged.cost()
        self.meters.settle(charged.charge, cost, now)
        self._months.settle(charged.month, cost.input_tokens + cost.output_tokens)


def check_model(tenant: Tenant, model: str) -> None:
    """Raises RefusedError (403) if the tenant may not ask for the model, which may not even exist."""
    if not tenant.may_ask(model):
        raise RefusedError(errors.model_not_allowed(model, tenant.models))


def expected_cost(request: ChatRequest | CompletionRequest, work: Work) -> Cost:
    """The cost that a request probably has: prompts that differ count each, and every choice has an answer."""
    prompts = 1 if isinstance(request, ChatRequest) else len(request.prompts)
    return Cost(1, work.prompt_tokens * prompts, work.output_tokens * prompts)


def over_limit(refusal: OverLimit) -> Problem:
    """The problem of a request above a limit."""
    retry_after_s = min(MOST_RETRY_S, max(1, math.ceil(refusal.retry_after_s)))
    return replace(errors.rate_limited(refusal.measure, refusal.limit), retry_after_s=retry_after_s)


def over_quota(refusal: OverQuota) -> Problem:
    """The problem of a request for which no tokens of the month are left."""
    if refusal.state is QuotaState.UNKNOWN:
        return errors.quota_unknown(PER_MONTH)
    if refusal.state is QuotaState.ELSEWHERE:
        return errors.rate_limited(PER_MONTH, refusal.limit)
    return errors.quota_used_up(PER_MONTH, refusal.limit, refusal.used, math.ceil(refusal.resets_after_s))


def limit_headers(remaining: Mapping[LimitMeasure, Remaining]) -> dict[str, str]:
    """The headers of every answer. Where input and output have limits, `tokens` is the one of which less is left."""
    headers: dict[str, str] = {}
    tokens = [remaining[measure] for measure in (LimitMeasure.INPUT, LimitMeasure.OUTPUT) if measure in remaining]
    scarcest = min(tokens, key=lambda left: left.remaining / left.limit, default=None)
    for name, left in (("requests", remaining.get(LimitMeasure.REQUESTS)), ("tokens", scarcest)):
        if left is not None:
            headers |= {
                f"x-ratelimit-limit-{name}": str(left.limit),
                f"x-ratelimit-remaining-{name}": str(left.remaining),
                f"x-ratelimit-reset-{name}": duration_text(left.reset_s),
            }
    return headers


def duration_text(seconds: float) -> str:
    """A duration as in OpenAI's headers.

    >>> duration_text(0.02), duration_text(7.26), duration_text(360)
    ('20ms', '7.26s', '6m0s')
    """
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 2), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
