"""The record of a request as people read it: the largest part first, then the timeline."""

from __future__ import annotations

import time
from collections.abc import Sequence

from baton_gateway.errors import SLOW_CLIENT
from baton_gateway.records.parts import Part, meaning_of
from baton_gateway.records.request_record import RecordSpan, RequestRecord
from baton_gateway.reporting.outcome import Outcome
from baton_local.text_table import table

BAR_WIDTH = 32
_CLOSED_SLOW = "The gateway closed the connection: the client read too slowly (docs/debugging.md#a-client-reads-slowly)"
_NS = 1e9


def tell_story(record: RequestRecord) -> str:
    """Write one record."""
    lines = [_title(record), _verdict(record), "", _timeline(record)]
    if len(record.attempts) > 1 or any(attempt.reason for attempt in record.attempts):
        lines += ["", _attempts(record)]
    if record.num_slow_gaps:
        longest = ", ".join(f"{_time(gap.duration_ns)} at {_time(gap.start_ns)}" for gap in record.slow_gaps[:3])
        target = _time(round(record.gap_target_s * _NS))
        lines += ["", f"{record.num_slow_gaps} gaps between tokens beyond {target}; the longest: {longest}"]
    if record.missing:
        lines += ["", f"missing: {'; '.join(record.missing)}"]
    return "\n".join(lines)


def list_records(records: Sequence[RequestRecord]) -> str:
    """Write one line for each record."""
    header = ("REQUEST", "TENANT", "BEGAN", "TOKENS", "TOOK", "TTFT", "OUTCOME", "LARGEST PART")
    rows = [
        (
            record.id,
            record.tenant,
            time.strftime("%H:%M:%S", time.localtime(record.started_at)),
            f"{record.prompt_tokens} + {record.completion_tokens}",
            _time(record.duration_ns),
            "-" if record.ttft_s is None else _time(round(record.ttft_s * _NS)),
            record.code or record.outcome,
            _largest(record),
        )
        for record in records
    ]
    return table(header, rows)


def _title(record: RequestRecord) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started_at))
    tokens = f"{record.prompt_tokens} + {record.completion_tokens} tokens"
    cached = "" if record.cached_tokens is None else f", {record.cached_tokens} cached"
    ended = f"{record.outcome} ({record.code})" if record.code else record.outcome
    trace = f", trace {record.trace_id}" if record.trace_id else ""
    return f"{record.id}: {ended} after {_time(record.duration_ns)}, {tokens}{cached}; {record.tenant}, {began}{trace}"


def _verdict(record: RequestRecord) -> str:
    if _was_refused_at_once(record):
        return f"Refused before it began, with {record.code}: docs/api-http.md#errors says what to do"
    if record.code == SLOW_CLIENT:
        return f"{_CLOSED_SLOW}\n{_largest_part(record)}"
    return _largest_part(record)


def _was_refused_at_once(record: RequestRecord) -> bool:
    parts = {span.part for span in record.spans}
    return record.outcome == Outcome.REFUSED and bool(record.code) and parts <= {Part.RECEIVING}


def _largest_part(record: RequestRecord) -> str:
    parts = record.parts()
    if not parts:
        return "no time was spent"
    name, took = parts[0]
    where = _where(record, _longest(record, name))
    share = 100 * took / max(1, record.duration_ns)
    latencies = [
        _latency("TTFT", record.ttft_s, record.ttft_target_s),
        _latency("TPOT", record.tpot_s, record.tpot_target_s),
    ]
    seen = "; ".join(text for text in latencies if text)
    return f"Most of it, {_time(took)} ({share:.0f} %): {meaning_of(name)}{where}" + (f"\n{seen}" if seen else "")


def _largest(record: RequestRecord) -> str:
    parts = record.parts()
    if not parts:
        return "-"
    name, took = parts[0]
    detail = _longest(record, name).detail
    return f"{name} {_time(took)}" + (f" ({detail})" if detail else "")


def _longest(record: RequestRecord, part: str) -> RecordSpan:
    """Return the longest span of a part that the record has."""
    return max((span for span in record.spans if span.part == part), key=lambda span: span.duration_ns)


def _latency(name: str, seconds: float | None, target_s: float | None) -> str:
    if seconds is None:
        return ""
    text = f"{name} {_time(round(seconds * _NS))}"
    if target_s is None:
        return text
    word = "missed" if seconds > target_s else "within"
    return f"{text}, {word} its target of {_time(round(target_s * _NS))}"


def _where(record: RequestRecord, span: RecordSpan) -> str:
    """Return the span's detail and worker, in brackets."""
    worker = f"worker {_worker(record, span.worker)}" if span.worker else ""
    text = ", ".join(part for part in (span.detail, worker) if part)
    return f" ({text})" if text else ""


def _worker(record: RequestRecord, epoch: str) -> str:
    """Return a worker by its epoch, which logs have, and by what else is known of it."""
    place = record.workers.get(epoch)
    return f"{epoch} at {place}" if place else epoch


def _timeline(record: RequestRecord) -> str:
    total = max(1, record.duration_ns)
    rows = []
    for span in record.spans:
        first = BAR_WIDTH * span.start_ns // total
        length = max(1, BAR_WIDTH * (span.start_ns + span.duration_ns) // total - first)
        bar = " " * min(first, BAR_WIDTH - 1) + "#" * min(length, BAR_WIDTH - min(first, BAR_WIDTH - 1))
        rows.append((_time(span.start_ns), _time(span.duration_ns), span.part, bar, _where(record, span)[2:-1]))
    return table(("AT", "TOOK", "PART", "", ""), rows)


def _attempts(record: RequestRecord) -> str:
    rows = [
        (
            attempt.number,
            attempt.route,
            _worker(record, attempt.prefill) if attempt.prefill else "-",
            _worker(record, attempt.decode),
            _time(attempt.sent_ns),
            f"{attempt.reason}, blamed on {_worker(record, attempt.blamed)}" if attempt.reason else "-",
        )
        for attempt in record.attempts
    ]
    return table(("ATTEMPT", "ROUTE", "PREFILL", "DECODE", "SENT AT", "ENDED BY"), rows)


def _time(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.2f} s" if abs(nanoseconds) >= 1e9 else f"{nanoseconds / 1e6:.1f} ms"
