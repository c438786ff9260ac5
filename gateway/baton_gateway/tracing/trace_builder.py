"""Builds the spans of a trace from the record of a request. Pure.

The gateway makes the spans of the workers too: it has their times, joined with its own clock. Workers export nothing.
The span of the request is the parent of the parts of its time at the gateway, and of a span for each stay at a worker,
which is the parent of the stay's parts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from baton_gateway.records.parts import Part
from baton_gateway.records.record_builder import build_record
from baton_gateway.records.request_record import RecordedAttempt, RecordSpan, RequestRecord
from baton_gateway.records.trail import KeptTrail, TrailFacts

PREFIX = "baton."
GEN_AI_OPT_IN_VARIABLE = "OTEL_SEMCONV_STABILITY_OPT_IN"
GEN_AI_OPT_IN = "gen_ai_latest_experimental"
PROVIDER = "baton"
Attribute = str | int | float | bool | tuple[str, ...]
_PREFILL = frozenset({Part.PREFILL_QUEUE, Part.PREFILL, Part.FIRST_TOKEN})
_BETWEEN = frozenset({Part.LINKS, Part.GATEWAY_STALLED, Part.WORKER_SILENT})
"""Parts that belong to a stay that goes on after them."""
_DECODE = frozenset({Part.RESERVATION, Part.TRANSFER, Part.DECODE_QUEUE, Part.DECODING, Part.SLOW_GAPS, Part.PREEMPTED})
_ERRORS = ("failed", "refused")


class TracedService(enum.StrEnum):
    """The process in which a span's time was spent, as `service.name`."""

    GATEWAY = "baton-gateway"
    PREFILL = "baton-prefill-worker"
    DECODE = "baton-decode-worker"


_STAY_NAMES = {TracedService.PREFILL: f"{PREFIX}prefill_worker", TracedService.DECODE: f"{PREFIX}decode_worker"}
REQUEST_NAME = f"{PREFIX}request"


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span of a trace. Times are Unix nanoseconds."""

    name: str
    service: TracedService
    instance: str
    """The worker; empty: this gateway."""
    span_id: int
    parent_id: int | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Attribute]
    error: str = ""
    """The error that it ended with; empty: none."""
    is_entry: bool = False
    """True if another process asked for it."""


@dataclass(slots=True)
class _Stay:
    """Parts that follow each other in one process."""

    service: TracedService
    attempt: RecordedAttempt | None = None
    worker: str = ""
    parts: list[RecordSpan] = field(default_factory=list)

    @property
    def error(self) -> str:
        """Return why the attempt was lost, where this worker is blamed for it."""
        attempt = self.attempt
        return attempt.reason if attempt is not None and attempt.blamed and attempt.blamed == self.worker else ""


def wants_gen_ai(variable: str) -> bool:
    """Return whether `OTEL_SEMCONV_STABILITY_OPT_IN` asks for the conventions of generative AI."""
    return GEN_AI_OPT_IN in (value.strip() for value in variable.split(","))


def build_trace(trail: KeptTrail, new_id: Callable[[], int], *, is_gen_ai: bool = False) -> list[TraceSpan]:
    """Build the spans of a request that has ended, the request's own first. `new_id`: ids of spans, never 0."""
    record, facts = build_record(trail), trail.facts
    began_ns = round(facts.started_at * 1e9)
    name, attributes = REQUEST_NAME, _request_attributes(record)
    if is_gen_ai:
        name, attributes = f"{facts.operation} {record.model}".strip(), attributes | _gen_ai_attributes(record, facts)
    parent_id = int(facts.parent_id, 16) if facts.parent_id else None
    error = (record.code or record.outcome) if record.outcome in _ERRORS else ""
    if error and is_gen_ai:
        attributes["error.type"] = error
    root = TraceSpan(
        *(name, TracedService.GATEWAY, "", new_id(), parent_id, began_ns, began_ns + record.duration_ns),
        *(attributes, error, True),
    )
    spans = [root]
    for stay in _stays(record):
        above = root.span_id
        if stay.service is not TracedService.GATEWAY:
            start_ns, end_ns = began_ns + stay.parts[0].start_ns, began_ns + _end(stay.parts[-1])
            above = new_id()
            spans.append(
                TraceSpan(
                    *(_STAY_NAMES[stay.service], stay.service, stay.worker, above, root.span_id, start_ns, end_ns),
                    *(_stay_attributes(stay), stay.error, True),
                )
            )
        spans.extend(_part_span(part, stay, new_id(), above, began_ns) for part in stay.parts)
    return spans


def _part_span(part: RecordSpan, stay: _Stay, span_id: int, parent_id: int, began_ns: int) -> TraceSpan:
    attributes: dict[str, Attribute] = {}
    if part.detail:
        attributes[f"{PREFIX}detail"] = part.detail
    if part.worker:
        attributes[f"{PREFIX}worker"] = part.worker
    error = part.detail if part.part == Part.LOST_ATTEMPT else ""
    return TraceSpan(
        *(PREFIX + part.part, stay.service, stay.worker, span_id, parent_id),
        *(began_ns + part.start_ns, began_ns + _end(part), attributes, error),
    )


def _end(part: RecordSpan) -> int:
    return part.start_ns + part.duration_ns


# Stays ----------------------------------------------------------------------------------------------------------------


def _stays(record: RequestRecord) -> Iterator[_Stay]:
    """Yield the stays in order of time. Time between processes belongs to a stay if that goes on after it."""
    stay, links = _Stay(TracedService.GATEWAY), list[RecordSpan]()
    for span in record.spans:
        if span.part in _BETWEEN:
            links.append(span)
            continue
        service, attempt = _place(record, span)
        is_same_worker = not span.worker or not stay.worker or span.worker == stay.worker
        if service is stay.service and (service is TracedService.GATEWAY or is_same_worker):
            stay.parts.extend((*links, span))
        else:
            if stay.parts:
                yield stay
            if links:
                yield _Stay(TracedService.GATEWAY, parts=links)
            stay = _Stay(service, attempt, parts=[span])
        links = []
        if service is not TracedService.GATEWAY:
            decode = "" if attempt is None else attempt.decode
            stay.worker = stay.worker or span.worker or decode
    if stay.parts:
        yield stay
    if links:
        yield _Stay(TracedService.GATEWAY, parts=links)


def _place(record: RequestRecord, span: RecordSpan) -> tuple[TracedService, RecordedAttempt | None]:
    """Return where the span was spent, and in which attempt."""
    if span.part not in _PREFILL and span.part not in _DECODE:
        return TracedService.GATEWAY, None
    sent = [attempt for attempt in record.attempts if attempt.sent_ns <= span.start_ns]
    latest = sent[-1] if sent else None
    for attempt in reversed(sent):
        if span.worker and span.worker in (attempt.prefill, attempt.decode):
            return TracedService.PREFILL if span.worker == attempt.prefill else TracedService.DECODE, attempt
    return TracedService.PREFILL if span.part in _PREFILL else TracedService.DECODE, latest


# Attributes -----------------------------------------------------------------------------------------------------------


def _request_attributes(record: RequestRecord) -> dict[str, Attribute]:
    values: dict[str, Attribute | None] = {
        "request.id": record.id or None,
        "tenant": record.tenant,
        "model": record.model or None,
        "outcome": record.outcome,
        "error_code": record.code or None,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cached_tokens": record.cached_tokens,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "target_missed": record.missed,
        "attempts": len(record.attempts),
        "migrations": record.migrations,
        "slow_gaps": record.num_slow_gaps,
        "missing": tuple(record.missing) or None,
    }
    return {PREFIX + name: value for name, value in values.items() if value is not None}


def _stay_attributes(stay: _Stay) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {f"{PREFIX}worker": stay.worker} if stay.worker else {}
    if (attempt := stay.attempt) is not None:
        attributes |= {f"{PREFIX}attempt": attempt.number, f"{PREFIX}route": attempt.route}
        if stay.service is TracedService.PREFILL and attempt.chunks is not None:
            attributes[f"{PREFIX}chunks"] = attempt.chunks
    return attributes


def _gen_ai_attributes(record: RequestRecord, facts: TrailFacts) -> dict[str, Attribute]:
    values: dict[str, Attribute | None] = {
        "operation.name": facts.operation,
        "provider.name": PROVIDER,
        "request.model": record.model or None,
        "response.model": record.model or None,
        "usage.input_tokens": record.prompt_tokens,
        "usage.output_tokens": record.completion_tokens,
        "usage.cache_read.input_tokens": record.cached_tokens,
        "response.time_to_first_chunk": record.ttft_s,
    }
    return {f"gen_ai.{name}": value for name, value in values.items() if value is not None}
