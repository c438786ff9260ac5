"""The gateway's metrics. Label values come from closed sets only; nothing that a client sends becomes one."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram

from baton_gateway.errors import Problem
from baton_gateway.request_events import Outcome
from baton_gateway.responses import Usage
from baton_kv_transfer.wire.values import Reason

_TIME_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_GAP_BUCKETS = (0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 3)


@dataclass(slots=True)
class RequestTimes:
    """When things happened to one request, in seconds of the event loop's clock."""

    arrived_s: float
    first_token_s: float | None = None
    first_s: dict[int, float] = field(default_factory=dict)
    """Per choice."""
    last_s: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)


class GatewayMetrics:
    """All series exist from the start, so that their number never changes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = Histogram
        self._ttft = histogram(
            "baton_gateway_ttft_seconds", "Arrival to first token", registry=registry, buckets=_TIME_BUCKETS
        )
        self._tpot = histogram(
            "baton_gateway_tpot_seconds", "Mean gap between tokens of a choice", registry=registry, buckets=_GAP_BUCKETS
        )
        self._itl = histogram(
            "baton_gateway_itl_seconds", "Gap between tokens", registry=registry, buckets=_GAP_BUCKETS
        )
        self._e2e = histogram("baton_gateway_e2e_seconds", "Arrival to end", registry=registry, buckets=_TIME_BUCKETS)
        self._queue = histogram(
            "baton_gateway_queue_seconds", "Arrival to admission", registry=registry, buckets=_TIME_BUCKETS
        )
        requests = Counter("baton_gateway_requests", "Requests by outcome", ["outcome"], registry=registry)
        self._requests = {outcome: requests.labels(outcome.value) for outcome in Outcome}
        legs = Counter("baton_gateway_leg_failures", "Failed legs by reason", ["reason"], registry=registry)
        self._legs = {reason: legs.labels(reason.value) for reason in Reason}
        self._prompt_tokens = Counter("baton_gateway_prompt_tokens", "Prompt tokens", registry=registry)
        self._completion_tokens = Counter("baton_gateway_completion_tokens", "Generated tokens", registry=registry)

    def arrived(self, now: float) -> RequestTimes:
        return RequestTimes(now)

    def refused(self, problem: Problem) -> None:
        self._requests[Outcome.REFUSED].inc()

    def admitted(self, times: RequestTimes, now: float) -> None:
        self._queue.observe(now - times.arrived_s)

    def routed(self, is_local: bool) -> None:
        pass

    def leg_failed(self, reason: Reason) -> None:
        self._legs[reason].inc()

    def delivered(self, times: RequestTimes, choice: int, tokens: int, now: float) -> None:
        last_s = times.last_s.get(choice)
        if last_s is None:
            times.first_s[choice] = now
            if times.first_token_s is None:
                times.first_token_s = now
                self._ttft.observe(now - times.arrived_s)
        elif tokens:
            self._itl.observe((now - last_s) / tokens)
        times.last_s[choice] = now
        times.tokens[choice] = times.tokens.get(choice, 0) + tokens

    def ended(self, times: RequestTimes, outcome: Outcome, problem: Problem | None, usage: Usage, now: float) -> None:
        self._requests[outcome].inc()
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._completion_tokens.inc(usage.completion_tokens)
        if outcome is Outcome.FINISHED:
            self._e2e.observe(now - times.arrived_s)
        for choice, tokens in times.tokens.items():
            if tokens > 1:
                self._tpot.observe((times.last_s[choice] - times.first_s[choice]) / (tokens - 1))
