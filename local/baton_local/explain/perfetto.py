"""Records as a trace-event file, which Perfetto and Chrome open. One row a request, one below it a worker's part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baton_gateway.records.parts import meaning_of
from baton_gateway.records.request_record import RequestRecord

_NS_PER_US = 1_000


def trace_events(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Build the content of the file. Times are in microseconds since the first request began."""
    began_at = min((record.started_at for record in records), default=0.0)
    events: list[dict[str, Any]] = []
    for row, record in enumerate(records, 1):
        offset = (record.started_at - began_at) * 1e6
        name = f"{record.id} ({record.tenant}, {record.outcome})"
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": name}})
        events.append(_event("request", row, offset, record.duration_ns, {"tokens": record.completion_tokens}))
        for span in record.spans:
            arguments = {"meaning": meaning_of(span.part), "detail": span.detail, "worker": span.worker}
            given = {key: value for key, value in arguments.items() if value}
            events.append(_event(span.part, row, offset + span.start_ns / _NS_PER_US, span.duration_ns, given))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(name: str, row: int, at_us: float, duration_ns: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "baton",
        "ph": "X",
        "pid": 1,
        "tid": row,
        "ts": round(at_us, 3),
        "dur": duration_ns / _NS_PER_US,
        "args": arguments,
    }
