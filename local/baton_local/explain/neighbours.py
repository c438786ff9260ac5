"""Long prompts that a request shared its prefill worker with, found by their times in other records. Pure.

A prompt waits for the steps of the prompts before it, and shares steps with those that are computed at the same time.
No worker reports which: the records of one gateway have the time at which each worker computed which prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from baton_gateway.records.parts import Part
from baton_gateway.records.request_record import RecordSpan, RequestRecord

MOST_NAMED = 3
LONGER = 4
"""A prompt is long for another one from this many times its tokens."""
_WAITS = frozenset({Part.HELD, Part.PREFILL_QUEUE, Part.PREFILL, Part.FIRST_TOKEN})
_COMPUTES = frozenset({Part.PREFILL, Part.FIRST_TOKEN})


def asks_for_neighbours(record: RequestRecord) -> bool:
    """True if most of the request's time was a wait for its prompt's turn or its computation."""
    parts = record.parts()
    return bool(parts) and parts[0][0] in _WAITS


def long_prompts(record: RequestRecord, others: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests with a much longer prompt that its prefill worker computed while this one waited or was computed,
    those that did so for longest first."""
    waits = [_times(record, span) for span in record.spans if span.part in _WAITS]
    workers = {attempt.prefill or attempt.decode for attempt in record.attempts}
    shared: list[tuple[float, RequestRecord]] = []
    for other in others:
        if other.id == record.id or other.prompt_tokens < LONGER * max(1, record.prompt_tokens):
            continue
        seconds = sum(_overlaps(waits, _computing(other, workers)))
        if seconds > 0:
            shared.append((seconds, other))
    return [other for _, other in sorted(shared, key=lambda entry: -entry[0])[:MOST_NAMED]]


def neighbours_text(neighbours: Iterable[RequestRecord]) -> str:
    """The long prompts in words; empty: there is none."""
    named = ", ".join(f"{other.prompt_tokens:,} tokens ({other.id})" for other in neighbours)
    return f"Meanwhile the same worker computed longer prompts: {named}" if named else ""


def _computing(record: RequestRecord, workers: set[str]) -> list[tuple[float, float]]:
    return [_times(record, span) for span in record.spans if span.part in _COMPUTES and span.worker in workers]


def _times(record: RequestRecord, span: RecordSpan) -> tuple[float, float]:
    """Begin and end of a span, by the wall clock."""
    began = record.started_at + span.start_ns / 1e9
    return began, began + span.duration_ns / 1e9


def _overlaps(first: Iterable[tuple[float, float]], second: list[tuple[float, float]]) -> Iterator[float]:
    for begin, end in first:
        for other_begin, other_end in second:
            yield max(0.0, min(end, other_end) - max(begin, other_begin))
