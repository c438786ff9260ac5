"""Keeps the ledger of requests: an entry before their work is sent, counts before tokens are delivered, the end."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.ledger.request_ledger import Closing, Opening, RequestLedger
from baton_gateway.openai_api.response_encoding import Usage
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.record_keeping import operation_of
from baton_gateway.requests.request_events import Deliver, End


def open_entry(ledger: RequestLedger, live: LiveRequest) -> Problem | None:
    """Open the entry of a request whose prompts are built. Returns why the request is refused; None: it is not."""
    options = live.request.options
    priority = live.tenant.grant(options.priority).value
    tokens = live.life.prompt_tokens()
    live.entry = ledger.open(
        Opening(live.request_id, live.tenant.name, options.model, operation_of(live), priority, tokens)
    )
    return errors.ledger_unavailable() if live.entry is None and ledger.is_required else None


def count_delivered(live: LiveRequest, action: Deliver) -> None:
    """Count tokens that are about to be delivered. An answer that is not streamed is delivered at its end, at once."""
    if live.entry is None:
        return
    if live.request.options.stream:
        live.entry.count(len(action.ids))
    if action.is_first and (cached := live.life.cached_tokens()) is not None:
        live.entry.note_cached(cached)


def close_entry(live: LiveRequest, action: End, usage: Usage) -> None:
    """Close the entry of a request, before the end of its answer goes out."""
    if live.entry is None:
        return
    is_delivered = live.request.options.stream or action.outcome is Outcome.FINISHED
    live.entry.close(
        Closing(
            status=Outcome.FAILED.value if action.outcome is Outcome.REFUSED else action.outcome.value,
            code=None if action.problem is None else action.problem.code,
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens if is_delivered else 0,
            generated_tokens=usage.completion_tokens,
        )
    )
    live.entry = None
