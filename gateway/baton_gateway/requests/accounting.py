"""Counts requests: what metrics, telemetry and the model's load are to know of a prompt, an end and the backlog."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from baton_gateway.openai_api.response_encoding import Usage
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.reporting.outcome import Outcome, RequestTotals
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.model_load import ModelLoad
from baton_gateway.requests.request_events import End, PickRoute
from baton_gateway.workers.route import Route
from baton_wire.messages.measures import Backlog


def count_prompt(
    metrics: GatewayMetrics,
    live: LiveRequest,
    action: PickRoute,
    route: Route,
    places: Iterator[tuple[bytes, int]],
    now: float,
) -> None:
    """A prompt was routed for the first time. `places`: see `ContextReuse.count`."""
    best_cached = min(action.tokens, route.best_cached_tokens)
    live.cacheable_tokens += best_cached
    missing = action.tokens if route.missing_tokens is None else min(action.tokens, route.missing_tokens)
    max_tokens = live.prompts[action.prompt].sampling.max_tokens
    metrics.telemetry.prompt(action.tokens, action.tokens - missing, max_tokens, action.choices)
    metrics.telemetry.contexts.count(places, action.tokens, best_cached, missing, now)
    live.times.prompt_tokens = action.tokens


def count_end(metrics: GatewayMetrics, load: ModelLoad, live: LiveRequest, action: End, now: float) -> Usage:
    """The request ended. Returns its usage as the client reads it."""
    life, options = live.life, live.request.options
    completion_tokens = 0 if options.max_tokens == 0 else life.completion_tokens()
    usage = Usage(life.prompt_tokens(), completion_tokens, live.reasoning_tokens(), life.cached_tokens())
    totals = RequestTotals(
        usage.prompt_tokens,
        completion_tokens,
        life.attempts,
        life.migrations,
        life.conflicts,
        life.cached_tokens(),
        live.cacheable_tokens,
    )
    metrics.ended(live.times, action.outcome, totals, now)
    if action.problem is not None and (action.problem.status >= 500 or action.problem.status == 429):
        metrics.unserved(now)
    load.remove(live.ticket, now)
    if action.outcome is Outcome.FINISHED and live.prompts and not live.is_encoded:
        load.record_output(completion_tokens / (len(live.prompts) * options.n))
    return usage


def count_backlog(
    metrics: GatewayMetrics, live_requests: Mapping[int, LiveRequest], blocked: Collection[int], now: float
) -> Backlog:
    """The requests, by ticket, that no worker was sent and that one could take. `blocked` wait for their tenant's own
    quota: more workers would not help them.
    """
    lives = ((ticket, live.life) for ticket, live in live_requests.items())
    waiting = [life for ticket, life in lives if life.attempts == 0 and ticket not in blocked]
    oldest_s = now - min((life.arrived_s for life in waiting), default=now)
    parked = sum(life.is_parked for life in waiting)
    return metrics.telemetry.backlog(len(waiting), parked, oldest_s, len(waiting))


def answer_lengths(live_requests: Mapping[int, LiveRequest]) -> Iterator[tuple[int, int]]:
    """(tokens of its prompt, tokens so far) of each answer that has begun."""
    for live in live_requests.values():
        for tokens in live.times.tokens.values():
            yield live.times.prompt_tokens, tokens
