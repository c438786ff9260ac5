"""Begins the trail of a request, and adds what is known of the request at its end."""

from __future__ import annotations

import time

from baton_gateway.openai_api.encoding_types import EncodeRequest, EncodeTask
from baton_gateway.openai_api.openai_types import ChatRequest
from baton_gateway.records.trail import SLOW_GAP_S, KeptTrail, Moment, Trail, TrailFacts, keep
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.live_request import LiveRequest, RelayRules
from baton_wire.messages.values import TokenEntry

OWN_QUOTA, TURN = "its tenant's own quota", "requests before it"


def begin_trail(
    live: LiveRequest, began_s: float | None, now: float, tpot_s: float | None, *, is_own_quota: bool
) -> None:
    """Begin the trail of a request that was offered to admission now."""
    live.slow_gap_s = SLOW_GAP_S if tpot_s is None else tpot_s
    live.trail = Trail(now if began_s is None else began_s, live.slow_gap_s)
    live.trail.mark(now, Moment.OFFERED)
    live.queued_for = OWN_QUOTA if is_own_quota else TURN


def refused_trail(request_id: str, tenant: str, code: str, began_s: float, now: float) -> KeptTrail:
    """Build the trail of a request that was refused before it began."""
    trail = Trail(began_s)
    trail.mark(now, Moment.OFFERED)
    trail.mark(now, Moment.ENDED, text=Outcome.REFUSED)
    return keep(trail, TrailFacts(request_id, tenant, "", Outcome.REFUSED, code, time.time() - (now - began_s)))


def note_arrival(trail: Trail, now: float, epoch: bytes, entry: TokenEntry) -> None:
    """Note that tokens of a choice came from a worker."""
    has_more = entry.first_index == 0 and entry.finish is None
    trail.arrived(now, entry.request, epoch, entry.times, has_more=has_more)


def trail_facts(live: LiveRequest, rules: RelayRules) -> TrailFacts:
    """Build what is known of a request at its end. Its trail ends with the mark of its end."""
    trail, times, life, trace = live.trail, live.times, live.life, live.trace
    assert trail is not None
    first_s = min(times.first_s.values(), default=None)
    gaps = [
        (times.last_s[choice] - times.first_s[choice]) / (tokens - 1)
        for choice, tokens in times.tokens.items()
        if tokens > 1
    ]
    ended_s = trail.marks[-1].at_s
    is_abandoned = live.outcome == Outcome.CANCELLED and first_s is None and not isinstance(live.request, EncodeRequest)
    return TrailFacts(
        id=live.request_id,
        tenant=live.tenant.name,
        model=live.request.options.model if live.fingerprint is not None else "",
        outcome=live.outcome,
        code=live.end_code,
        started_at=time.time() - (ended_s - trail.began_s),
        prompt_tokens=life.prompt_tokens(),
        completion_tokens=life.completion_tokens(),
        cached_tokens=life.cached_tokens(),
        first_token_s=None if first_s is None else first_s - times.arrived_s,
        tpot_s=max(gaps, default=None),
        ttft_target_s=rules.ttft_s,
        tpot_target_s=rules.life.tpot_s,
        trace_id=trace.trace_id if trace is not None and (trace.is_sampled or trace.parent_id) else "",
        parent_id="" if trace is None else trace.parent_id,
        is_sampled=trace is not None and trace.is_sampled,
        operation=operation_of(live),
        unanswered_s=ended_s - times.arrived_s if is_abandoned else None,
        answer=live.answer,
    )


def operation_of(live: LiveRequest) -> str:
    """The name of what a request asks for, in traces and in the ledger."""
    if isinstance(live.request, EncodeRequest):
        return "embeddings" if live.request.task is EncodeTask.EMBED else live.request.task.value
    return "chat" if isinstance(live.request, ChatRequest) else "text_completion"
