"""Keeps the ledger of requests: an entry before their work is sent, counts before tokens are delivered, the end."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.ledger.request_ledger import Closing, Opening, RequestLedger
from baton_gateway.openai_api.response_encoding import Usage
from baton_gateway.openai_api.streaming_writer import StreamingWriter
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.device_times import pool_seconds
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.record_keeping import operation_of
from baton_gateway.workers.linked_workers import WorkerTable
from baton_wire.messages.encoding import EncodedPrompt
from baton_wire.messages.values import TokenEntry


def open_entry(ledger: RequestLedger, live: LiveRequest) -> Problem | None:
    """Open the entry of a request whose prompts are built. Returns why the request is refused; None: it is not."""
    options = live.request.options
    priority = live.tenant.grant(options.priority).value
    tokens = live.life.prompt_tokens()
    live.entry = ledger.open(
        Opening(live.request_id, live.tenant.name, options.model, operation_of(live), priority, tokens)
    )
    if live.entry is not None and isinstance(live.writer, StreamingWriter):
        live.writer.on_handed = live.entry.count
    return errors.ledger_unavailable() if live.entry is None and ledger.is_required else None


def note_first(live: LiveRequest) -> None:
    """Note what is known with the first token of a choice."""
    if live.entry is not None and (cached := live.life.cached_tokens()) is not None:
        live.entry.note_cached(cached)


def note_device_time(live: LiveRequest, table: WorkerTable, epoch: bytes, message: TokenEntry | EncodedPrompt) -> None:
    """Note the time that a worker's devices spent on a request so far, where the message has it."""
    if message.device_s is None or live.entry is None or (worker := table.get(epoch)) is None:
        return
    if 1 <= message.attempt <= live.life.attempt_of(message.request):
        live.device_times.note(message.request, message.attempt, worker.role, message.device_s)
        live.entry.note_devices(live.device_times.by_role())


def note_end(live: LiveRequest, outcome: Outcome, usage: Usage) -> None:
    """Note the usage of a request that has ended. Its answer goes out after this, as a whole if it is not streamed."""
    live.usage = usage
    if live.entry is not None and not live.request.options.stream and outcome is Outcome.FINISHED:
        live.entry.count(usage.completion_tokens)


def close_entry(live: LiveRequest) -> None:
    """Close the entry of a request: its client has the whole answer, or is gone."""
    if live.entry is None or live.usage is None:
        return
    is_finished, usage = live.outcome == Outcome.FINISHED.value, live.usage
    delivered = usage.completion_tokens if is_finished else 0
    if isinstance(live.writer, StreamingWriter) and not (is_finished and live.writer.is_written):
        delivered = live.writer.handed_tokens
    live.entry.close(
        Closing(
            status=Outcome.FAILED.value if live.outcome == Outcome.REFUSED.value else live.outcome,
            code=None if live.problem is None else live.problem.code,
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=delivered,
            generated_tokens=usage.completion_tokens,
            accelerator_seconds=dict(pool_seconds(live.device_times.by_role())) or None,
        )
    )
    live.entry = None
