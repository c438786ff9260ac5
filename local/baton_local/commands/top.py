"""`baton top`: a running deployment at a glance, live: which pool limits it, why it has its size, who fills it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import msgspec

from baton_control.sizing.decision.explanation import OTHER_CAUSE
from baton_local.commands.status import is_met, lane_lines, limits_text, link_state, phase_of, phase_text
from baton_local.fleet.observation import LostTime, Observation, ObservedWorker
from baton_local.fleet.record import ProcessRecord, TargetRecord
from baton_local.text_table import milliseconds, table
from baton_wire.sketch import Sketch

Pair = tuple[ProcessRecord, ObservedWorker | None]
OUTSIDE = {"client": "clients", "gateway": "the gateway", "links": "links", "workers": "missing or busy workers"}
"""Places that are no pool."""
PLACES = {
    "client": "waiting for clients",
    "gateway": "at the gateway",
    "workers": "waiting for workers",
    "links": "between processes",
    "prefill": "at the prefill pool",
    "decode": "at the decode pool",
}


def as_json(seen: Observation) -> dict[str, object]:
    """The page as plain data; what is not known is null."""
    gateway, record = seen.seen_by_gateway, seen.record
    return {
        "name": record.name,
        "namespace": record.namespace,
        "ready": record.ready,
        "limited_by": limited_by(seen),
        "lost_time": None if gateway.lost_time is None else msgspec.structs.asdict(gateway.lost_time),
        "pools": {role: _pool(role, seen) for role in record.roles},
        "slo": {
            "ttft": _attainment(gateway.ttft_minute, record.ttft, gateway.unserved_minute or 0),
            "tpot": _attainment(gateway.tpot_minute, record.tpot),
        },
        "unserved": gateway.unserved_minute,
        "queue": {
            "gateway": gateway.waiting,
            "workers": _sum(None if state is None else state.waiting for _, state in seen.workers),
        },
        "running": gateway.running,
        "cached_share": _cached_share(seen),
        "tenants": [
            {**msgspec.structs.asdict(tenant), "share": _share_of(tenant.running, gateway.running)}
            for tenant in gateway.tenants
        ],
        "workers": [_worker(process, state, seen) for process, state in seen.workers],
        "links": [
            {"worker": process.name, **msgspec.structs.asdict(link)}
            for process, state in seen.workers
            if state is not None
            for link in state.transfer.links
        ],
    }


def page(seen: Observation, form: str, is_live: bool) -> str:
    """The page in a form; JSON that goes on has one object a line."""
    return json.dumps(as_json(seen), indent=None if is_live else 2) if form == "json" else as_text(seen)


def as_text(seen: Observation) -> str:
    """The page for a terminal."""
    record, gateway = seen.record, seen.seen_by_gateway
    title = f"{record.namespace}/{record.name}  {record.served_name}  {record.endpoint}"
    parts = [
        title + ("" if record.ready else "  (not ready)"),
        f"limited by: {limited_by(seen) or _why_nothing(seen)}",
        *_lost_time_lines(gateway.lost_time),
        "",
        table(("POOL", "READY", "WANTED", "LIMITS", "RUNNING", "WAITING", "KV USED"), list(_pool_rows(seen))),
        *(f"  {why}" for why in record.reasons.values() or [record.decision or "not sized yet"]),
        "",
        table(
            ("TARGET", "AIM", "LAST MINUTE", "WITHIN", "OBSERVATIONS"),
            [
                _target_row("TTFT", gateway.ttft_minute, record.ttft, gateway.unserved_minute or 0),
                *([_target_row("TPOT", gateway.tpot_minute, record.tpot)] if "decode" in record.roles else []),
            ],
        ),
        "",
        _queue_line(seen),
    ]
    if gateway.tenants:
        rows = [
            (_name(t.name), _percent(_share_of(t.running, gateway.running)), t.running, t.waiting)
            for t in gateway.tenants
        ]
        parts += ["", table(("TENANT", "SHARE", "RUNNING", "WAITING"), rows)]
    workers = [_worker_row(process, state, seen) for process, state in seen.workers]
    parts += ["", table(("WORKER", "POOL", "PHASE", "LINK", "RUNNING", "WAITING", "KV USED"), workers)]
    lanes = lane_lines(seen)
    return "\n".join([*parts, *(["", *lanes] if lanes else [])])


def limited_by(seen: Observation) -> str | None:
    """The pool that keeps requests from their targets, with the figure; None: none does, as far as is known.

    Decode sets the time between tokens. Prefill sets the time to the first one, unless requests wait at the gateway or
    most of the lost time was lost at no pool.
    A request that was refused or failed got no first token. Workers that are missing are named, and so is a pool that
    sizing finds large enough.
    """
    gateway, record = seen.seen_by_gateway, seen.record
    limits = []
    unserved = gateway.unserved_minute or 0
    if _is_missed(gateway.ttft_minute, record.ttft, unserved):
        queue = f"the gateway's queue ({gateway.waiting} waiting)"
        is_queue = gateway.waiting and not unserved
        pool = queue if is_queue else _first_token_place(seen)
        limits.append(f"{pool}: TTFT {_reached(gateway.ttft_minute, record.ttft, unserved)}")
    if _is_missed(gateway.tpot_minute, record.tpot):
        limits.append(f"{_with_state('decode', seen)}: TPOT {_reached(gateway.tpot_minute, record.tpot)}")
    return "; ".join(limits) or None


def _first_token_place(seen: Observation) -> str:
    """Name where late requests wait for their first token: the prefill pool, unless most of their time was lost at no
    pool."""
    lost = seen.seen_by_gateway.lost_time
    if lost is not None and lost.place in OUTSIDE and lost.share > 1 / 2:
        return OUTSIDE[lost.place]
    return _with_state("prefill", seen)


def _lost_time_lines(lost: LostTime | None) -> Iterator[str]:
    """Yield where the late and failed requests of the last minutes lost their time, as `baton explain` shows it."""
    if lost is None:
        return
    detail = f" ({lost.detail})" if lost.detail else ""
    place = PLACES.get(lost.place, lost.place)
    yield f"late requests lost {_percent(lost.share)} of their time {place}: {lost.meaning}{detail}"
    notes = [f"{lost.requests} in the last 5 minutes"]
    notes += [f"most are of tenant {_name(lost.tenant)}"] if lost.tenant is not None else []
    notes += [f"{lost.errors} got an error, most of them {lost.code}"] if lost.errors and lost.code else []
    yield f"  {'; '.join(notes)}; see baton explain --missed"


def _why_nothing(seen: Observation) -> str:
    if seen.seen_by_gateway.running is None:
        return "not known: the gateway does not answer"
    return "nothing: every target is met, or no request came in the last minute"


def _with_state(role: str, seen: Observation) -> str:
    """The name of a pool, with what is known of it besides its latency."""
    pool = _pool(role, seen)
    wanted = max(seen.record.wanted.get(role, 0), len(_of_pool(role, seen)))
    notes = [f"{pool['ready']} of {wanted} workers ready"] if pool["ready"] != wanted else []
    if not notes and OTHER_CAUSE in seen.record.reasons.get(role, ""):
        notes = ["its size would do: are the machines busy with something else?"]
    return f"{role} ({notes[0]})" if notes else role


def _is_missed(sketch: Sketch, target: TargetRecord, unserved: int = 0) -> bool:
    """True if too few requests were in time; one that was not served is late."""
    if not unserved:
        return is_met(sketch, target) is False
    within = _within(sketch, target, unserved)
    return within is not None and within < target.percentile / 100


def _within(sketch: Sketch, target: TargetRecord, unserved: int = 0) -> float | None:
    """The share of requests within a target; None: there was none."""
    total = sketch.count + unserved
    return (sketch.share_within(target.target_s) or 0.0) * sketch.count / total if total else None


def _reached(sketch: Sketch, target: TargetRecord, unserved: int = 0) -> str:
    reached = milliseconds(sketch.quantile(target.percentile / 100)) if sketch.count else "unknown"
    text = f"p{target.percentile:g} {reached}, target {milliseconds(target.target_s)}"
    if not unserved:
        return text
    return f"{text}; {unserved} of {sketch.count + unserved} requests were refused or failed"


def _of_pool(role: str, seen: Observation) -> list[Pair]:
    return [(process, state) for process, state in seen.workers if process.role == role]


def _pool(role: str, seen: Observation) -> dict[str, object]:
    pairs, record = _of_pool(role, seen), seen.record
    ready = sum(phase_of(process) == "ready" for process, _ in pairs)
    low, high = record.limits.get(role, (None, None))
    return {
        "workers": len(pairs),
        "ready": ready,
        "wanted": record.wanted.get(role),
        "min": low,
        "max": high,
        "ranks": record.ranks.get(role),
        "running": _sum(None if state is None else state.running for _, state in pairs),
        "waiting": _sum(None if state is None else state.waiting for _, state in pairs),
        "kv_used": _kv_used(pairs),
        "reason": record.reasons.get(role),
    }


def _pool_rows(seen: Observation) -> Iterator[tuple[object, ...]]:
    for role in seen.record.roles:
        pool = _pool(role, seen)
        limits = None if pool["min"] is None else limits_text(seen.record, role)
        ready = f"{pool['ready']} of {pool['workers']}"
        used = _kv_used(_of_pool(role, seen))
        yield role, ready, pool["wanted"], limits, pool["running"], pool["waiting"], _percent(used)


def _attainment(minute: Sketch, target: TargetRecord, unserved: int = 0) -> dict[str, object]:
    reached = minute.quantile(target.percentile / 100)
    return {
        "target_ms": round(target.target_s * 1e3, 3),
        "percentile": target.percentile,
        "reached_ms": None if reached is None else round(reached * 1e3, 3),
        "within": _within(minute, target, unserved),
        "count": minute.count + unserved,
    }


def _target_row(name: str, minute: Sketch, target: TargetRecord, unserved: int = 0) -> tuple[object, ...]:
    aim = f"p{target.percentile:g} {milliseconds(target.target_s)}"
    reached = milliseconds(minute.quantile(target.percentile / 100))
    return name, aim, reached, _percent(_within(minute, target, unserved)), minute.count + unserved


def _queue_line(seen: Observation) -> str:
    gateway = seen.seen_by_gateway
    waiting = "an unknown number" if gateway.waiting is None else gateway.waiting
    running = "an unknown number" if gateway.running is None else gateway.running
    cached = _cached_share(seen)
    share = "not known yet" if cached is None else f"{_percent(cached)} of prompt tokens"
    return f"gateway: {running} running, {waiting} waiting; cached: {share}"


def _cached_share(seen: Observation) -> float | None:
    cache = seen.seen_by_gateway.cache
    return None if cache is None or not cache.prompt_tokens else cache.cached_tokens / cache.prompt_tokens


def _worker(process: ProcessRecord, state: ObservedWorker | None, seen: Observation) -> dict[str, object]:
    return {
        "name": process.name,
        "role": process.role,
        "phase": phase_of(process),
        "link": link_state(process, seen),
        "running": None if state is None else state.running,
        "waiting": None if state is None else state.waiting,
        "kv_used": _kv_used([(process, state)]),
    }


def _worker_row(process: ProcessRecord, state: ObservedWorker | None, seen: Observation) -> tuple[object, ...]:
    running, waiting = (None, None) if state is None else (state.running, state.waiting)
    used = _percent(_kv_used([(process, state)]))
    phase = phase_text(process, state is not None)
    return process.name, process.role, phase, link_state(process, seen), running, waiting, used


def _kv_used(pairs: Sequence[Pair]) -> float | None:
    """The share of KV blocks that sequences hold; None: no worker answers."""
    states = [state for _, state in pairs if state is not None]
    total = sum(state.blocks_total for state in states)
    return sum(state.blocks_total - state.blocks_free for state in states) / total if total else None


def _sum(values: Iterator[int | None]) -> int | None:
    """The sum of what is known; None: nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _share_of(part: int, whole: int | None) -> float | None:
    return part / whole if whole else None


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


def _name(tenant: str) -> str:
    return tenant or "(no key)"
