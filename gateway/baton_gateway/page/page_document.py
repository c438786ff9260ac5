"""The page's data as one JSON document, from the parts of all processes and from records. Pure.

A tenant's document is made of parts and records that were asked for it alone, so nothing of others can be in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.page.page_part import PagePart, PageWorker, TenantStanding, limits_of
from baton_gateway.page.viewer import Viewer
from baton_gateway.records.parts import Part, meaning_of
from baton_gateway.records.request_record import RecordSpan, RequestRecord
from baton_gateway.reporting.load_series import SLOT_S, LoadSlot, merge_slots
from baton_gateway.tenancy.month_meters import PER_MONTH
from baton_wire.messages.measures import SketchData
from baton_wire.sketch import merged

MAX_SHOWN = 20
"""Records in a list."""
MAX_TENANTS = 50
MAX_SPANS = 64
RECENT_S = 300.0
"""Requests that began this long ago count in the answer to what limits them."""
MINUTE_SLOTS = 6
PERCENTS = (50, 95, 99)
PLACES: dict[str, str] = {
    Part.RECEIVING: "client",
    Part.QUEUED: "gateway",
    Part.RENDERING: "gateway",
    Part.TOKENISING: "gateway",
    Part.COMPILING: "gateway",
    Part.PREPARING: "gateway",
    Part.PARKED: "workers",
    Part.HELD: "prefill",
    Part.ROUTING: "gateway",
    Part.LINKS: "links",
    Part.PREFILL_QUEUE: "prefill",
    Part.PREFILL: "prefill",
    Part.FIRST_TOKEN: "prefill",
    Part.RESERVATION: "decode",
    Part.TRANSFER: "links",
    Part.DECODE_QUEUE: "decode",
    Part.SLOW_GAPS: "decode",
    Part.PREEMPTED: "decode",
    Part.LOST_ATTEMPT: "workers",
    Part.BACKING_OFF: "workers",
    Part.GATEWAY_STALLED: "gateway",
    Part.WORKER_SILENT: "workers",
}
"""The place that a part of a request's time is spent at. Parts that are left out delay no target."""
_NAMES_POOL = frozenset({Part.HELD, Part.PARKED})
"""Parts whose details name the pool that was waited for."""


@dataclass(frozen=True, slots=True)
class PageInputs:
    """Everything that a document is made of."""

    viewer: Viewer
    wall_s: float
    now_s: float
    """The machine's monotonic clock at the same moment."""
    parts: Sequence[PagePart]
    silent: Sequence[int]
    """Processes that did not answer, by pid."""
    slowest: Sequence[RequestRecord]
    missed: Sequence[RequestRecord]
    """The latest requests that missed a target, failed or were refused."""
    matches: Sequence[RequestRecord] | None = None
    """The records of the id that was asked for; None: none was."""
    silent_replicas: Sequence[str] = ()
    """Replicas of the gateway that did not answer, with the reason."""
    history: bytes = b""
    """The deployment's history as JSON; empty: the one that a part has."""


def page_document(inputs: PageInputs) -> dict[str, Any]:
    """Return the document for a viewer."""
    viewer, shown = inputs.viewer, [*inputs.slowest, *inputs.missed, *(inputs.matches or [])]
    document: dict[str, Any] = {
        "at": inputs.wall_s,
        "viewer": {"sees_all": viewer.sees_all, "tenant": None if viewer.sees_all else viewer.tenant.name},
        "playground": viewer.may_generate,
        "models": _models(inputs),
        "tenants": _tenants(inputs),
        "limited_by": limited_by(inputs.missed, inputs.wall_s),
        "slowest": [_record(record, viewer) for record in inputs.slowest[:MAX_SHOWN]],
        "missed": [_record(record, viewer) for record in inputs.missed[:MAX_SHOWN]],
        "found": None if inputs.matches is None else [_record(record, viewer) for record in inputs.matches[:MAX_SHOWN]],
        "parts": {span.part: meaning_of(span.part) for record in shown for span in record.spans},
    }
    return document | (_installation(inputs) if viewer.sees_all else {})


def limited_by(missed: Sequence[RequestRecord], wall_s: float) -> dict[str, Any] | None:
    """Return what recent requests that missed a target waited for most; None: none missed one."""
    recent = [record for record in missed if record.missed and record.started_at >= wall_s - RECENT_S]
    sums: Counter[tuple[str, str, str]] = Counter()
    """By place, part and detail."""
    for record in recent:
        for span in record.spans:
            if span.part in PLACES:
                sums[place_of(span), span.part, span.detail] += span.duration_ns
    total = sum(sums.values())
    if not total:
        return None
    places: Counter[str] = Counter()
    for (place, _, _), duration_ns in sums.items():
        places[place] += duration_ns
    place, in_place = places.most_common(1)[0]
    part, detail = next((part, detail) for (where, part, detail), _ in sums.most_common() if where == place)
    return {
        "place": place,
        "share": in_place / total,
        "part": part,
        "meaning": meaning_of(part),
        "detail": detail,
        "requests": len(recent),
        "tenant": _most_common(record.tenant for record in recent),
        "errors": sum(bool(record.code) for record in recent),
        "code": _most_common(record.code for record in recent if record.code),
    }


def place_of(span: RecordSpan) -> str:
    """Return the place at which a span was spent. A wait for workers is spent at the pool that its detail names."""
    if span.part in _NAMES_POOL:
        return next((role for role in ("prefill", "decode") if role in span.detail), PLACES[span.part])
    return PLACES[span.part]


def _most_common(names: Iterable[str]) -> str | None:
    """Return the name that most have; None: no name is that of most."""
    counts = Counter(names)
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    return name if count > counts.total() / 2 else None


def _models(inputs: PageInputs) -> list[str]:
    """List the served models that the viewer may ask for."""
    models = {model for part in inputs.parts for model in part.models}
    return sorted(model for model in models if inputs.viewer.sees_all or inputs.viewer.tenant.may_ask(model))


# What the operator alone sees -----------------------------------------------------------------------------------------


def _installation(inputs: PageInputs) -> dict[str, Any]:
    parts = inputs.parts
    workers = sorted(_workers(parts), key=lambda worker: (worker.role, worker.address))
    slots, history = merge_slots(part.slots for part in parts), _history(inputs)
    minute = [slot for slot in slots if slot.number > int(inputs.now_s / SLOT_S) - MINUTE_SLOTS]
    return {
        "processes": [
            {"pid": part.pid, "running": part.running, "waiting": part.waiting, "problem": part.problem or None}
            for part in parts
        ],
        "silent": list(inputs.silent),
        "silent_replicas": list(inputs.silent_replicas),
        "running": sum(part.running for part in parts),
        "waiting": sum(part.waiting for part in parts),
        "latency": {
            "ttft": _latency(
                [part.ttft_minute for part in parts],
                next((part.ttft_target_s for part in parts), None),
                sum(slot.first_in_time for slot in minute),
                sum(slot.first_tokens for slot in minute),
            ),
            "tpot": _latency(
                [part.tpot_minute for part in parts],
                next((part.tpot_target_s for part in parts), None),
                sum(slot.sequences_in_time for slot in minute),
                sum(slot.sequences for slot in minute),
            ),
        },
        "pools": list(_pools(workers, _wanted(history))),
        "workers": [msgspec.to_builtins(worker) | {"kv_used": _kv_used([worker])} for worker in workers],
        "series": _series(slots, inputs),
        "history": history,
    }


def _workers(parts: Iterable[PagePart]) -> list[PageWorker]:
    """List each worker once, as the first process that has linked it sees it."""
    workers: dict[str, PageWorker] = {}
    for part in parts:
        for worker in part.workers:
            workers.setdefault(worker.name, worker)
    return list(workers.values())


def _latency(sketches: Iterable[SketchData], target_s: float | None, in_time: int, observations: int) -> dict[str, Any]:
    sketch = merged(sketches)
    percentiles = {f"p{percent}_s": sketch.quantile(percent / 100) for percent in PERCENTS}
    within = in_time / observations if observations and target_s is not None else None
    return percentiles | {"target_s": target_s, "within": within, "observations": observations}


def _wanted(history: Any) -> Mapping[str, int]:
    """Return how many workers each pool is to have, by the history; empty: not announced."""
    return (history or {}).get("wanted") or {}


def _pools(workers: Sequence[PageWorker], wanted: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield each pool, also one that is to have workers while none is linked."""
    for role in sorted({worker.role for worker in workers} | {role for role, count in wanted.items() if count}):
        yield _pool(role, [worker for worker in workers if worker.role == role], wanted.get(role))


def _pool(role: str, workers: Sequence[PageWorker], wanted: int | None) -> dict[str, Any]:
    live = sum(worker.state == "live" for worker in workers)
    return {
        "role": role,
        "workers": len(workers),
        "live": live,
        "wanted": wanted,
        "missing": None if wanted is None else max(0, wanted - live),
        "running": _sum(worker.running for worker in workers),
        "waiting": _sum(worker.waiting for worker in workers),
        "waiting_tokens": _sum(worker.waiting_tokens for worker in workers),
        "kv_used": _kv_used(workers),
        "tokens_per_s": _sum(worker.tokens_per_s for worker in workers),
    }


def _kv_used(workers: Iterable[PageWorker]) -> float | None:
    known = [(worker.blocks_total, worker.blocks_free) for worker in workers if worker.blocks_free is not None]
    total = sum(blocks for blocks, _ in known)
    return sum(blocks - free for blocks, free in known if free is not None) / total if total else None


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None: nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _series(slots: Sequence[LoadSlot], inputs: PageInputs) -> dict[str, Any]:
    names = LoadSlot.__struct_fields__[1:]
    rows = [
        [round(inputs.wall_s - inputs.now_s + slot.number * SLOT_S), *(getattr(slot, name) for name in names)]
        for slot in slots
    ]
    return {"slot_s": SLOT_S, "fields": ["at", *names], "slots": rows}


def _history(inputs: PageInputs) -> Any:
    content = inputs.history or next((part.history for part in inputs.parts if part.history), b"")
    return msgspec.json.decode(content) if content else None


# Tenants --------------------------------------------------------------------------------------------------------------


def _tenants(inputs: PageInputs) -> list[dict[str, Any]]:
    """List the tenants with their use over all processes, the ones with the most sequences first."""
    viewer, sums = inputs.viewer, dict[str, TenantStanding]()
    for part in inputs.parts:
        for name, standing in part.tenants.items():
            if viewer.sees_all or name == viewer.tenant.name:
                sums[name] = _add(sums.get(name, TenantStanding()), standing)
    if not viewer.sees_all:
        own = sums.get(viewer.tenant.name, TenantStanding())
        sums = {viewer.tenant.name: msgspec.structs.replace(own, limits=limits_of(viewer.tenant))}
    ordered = sorted(sums.items(), key=lambda item: (-item[1].running - item[1].waiting, item[0]))
    return [_tenant(name, standing) for name, standing in ordered[:MAX_TENANTS]]


def _add(sum_: TenantStanding, more: TenantStanding) -> TenantStanding:
    used = Counter(sum_.used)
    used.update(more.used)
    known = [month for month in (sum_.used_this_month, more.used_this_month) if month is not None]
    month = max(known, default=None)  # each process knows what all of them used
    return TenantStanding(sum_.running + more.running, sum_.waiting + more.waiting, dict(used), more.limits, month)


def _tenant(name: str, standing: TenantStanding) -> dict[str, Any]:
    limits = [{"limit": limit, "most": most, "used": _used(standing, limit)} for limit, most in standing.limits.items()]
    return {"name": name, "running": standing.running, "waiting": standing.waiting, "limits": limits}


def _used(standing: TenantStanding, limit: str) -> float | None:
    """The part of a limit that is taken; None: unknown."""
    if limit == "maxConcurrent":
        return standing.running
    if limit == PER_MONTH:
        return None if standing.used_this_month is None else round(standing.used_this_month)
    return round(standing.used.get(limit, 0.0), 1)


# Records --------------------------------------------------------------------------------------------------------------


def _record(record: RequestRecord, viewer: Viewer) -> dict[str, Any]:
    spans = [[s.part, s.start_ns, s.duration_ns, s.detail, s.worker] for s in record.spans[:MAX_SPANS]]
    left_out = len(record.spans) - len(spans)
    return {
        "id": record.id,
        "tenant": record.tenant,
        "model": record.model,
        "outcome": record.outcome,
        "code": record.code,
        "started_at": record.started_at,
        "duration_ns": record.duration_ns,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "cached_tokens": record.cached_tokens,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "missed": record.missed,
        "spans": spans,
        "attempts": list(_attempts(record)),
        "missing": [*record.missing, *([f"{left_out} later spans"] if left_out else [])],
        "workers": record.workers if viewer.sees_all else {},
    }


def _attempts(record: RequestRecord) -> Iterator[dict[str, Any]]:
    for attempt in record.attempts[:MAX_SPANS]:
        yield {
            "number": attempt.number,
            "route": attempt.route,
            "prefill": attempt.prefill,
            "decode": attempt.decode,
            "reason": attempt.reason,
            "blamed": attempt.blamed,
        }
