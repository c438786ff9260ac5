"""`baton status`: a running deployment as JSON for programs and as text for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TextIO

import msgspec

from baton_local.fleet.observation import CacheUse, Observation, ObservedWorker
from baton_local.fleet.record import ProcessRecord, TargetRecord
from baton_local.text_table import milliseconds, table
from baton_wire.sketch import Sketch

SHOWN_PERCENTILES = (50, 95, 99)
HOME_AND_CLEAR = "\x1b[H\x1b[2J"
"""Escape sequences: cursor to the upper left corner, clear the screen."""


def as_json(seen: Observation) -> dict[str, object]:
    """The status as plain data; unknown values are null."""
    record = seen.record
    return {
        "name": record.name,
        "namespace": record.namespace,
        "model": record.served_name,
        "endpoint": record.endpoint,
        "ready": record.ready,
        "pid": record.pid,
        "mode": record.mode,
        "decision": record.decision,
        "wanted": record.wanted,
        "emulated": record.emulated,
        "pools": {role: _pool(role, seen) for role in ("prefill", "decode")},
        "workers": [_worker(process, state, seen) for process, state in seen.workers],
        "gateway": None if seen.gateway is None else _process(seen.gateway),
        "cache": None if seen.seen_by_gateway.cache is None else msgspec.structs.asdict(seen.seen_by_gateway.cache),
        "slo": {
            "ttft": _latency(seen.seen_by_gateway.ttft, record.ttft),
            "tpot": _latency(seen.seen_by_gateway.tpot, record.tpot),
        },
    }


def as_text(seen: Observation) -> str:
    """The status for a terminal."""
    record = seen.record
    title = f"{record.namespace}/{record.name}  {record.served_name}  {record.endpoint}"
    title += "" if record.ready else "  (not ready)"
    processes = ([(seen.gateway, None)] if seen.gateway else []) + list(seen.workers)
    rows = [_row(process, state, seen) for process, state in processes]
    header = (
        "PROCESS",
        "ROLE",
        "PHASE",
        "LINK",
        "PID",
        "ADDRESS",
        "REVISION",
        "STARTS",
        "BLOCKS",
        "FREE",
        "RUNNING",
        "WAITING",
    )
    return "\n".join(
        [
            title,
            *([f"EMULATED: no model computes; {record.emulated}"] if record.emulated else []),
            f"pools ({record.mode}): {record.decision}",
            "",
            table(header, rows),
            "",
            *_lanes(seen),
            *_cache(seen.seen_by_gateway.cache),
            f"TTFT  {_latency_text(seen.seen_by_gateway.ttft, record.ttft)}",
            f"TPOT  {_latency_text(seen.seen_by_gateway.tpot, record.tpot)}",
        ]
    )


def watch(page: Callable[[], str], out: TextIO, *, is_clearing: bool, every_s: float) -> None:
    """Write the page repeatedly until an exception: in place of the former one, or one below the other."""
    while True:
        text = page()
        out.write(f"{HOME_AND_CLEAR if is_clearing else ''}{text}\n")
        out.flush()
        time.sleep(every_s)


def _cache(use: CacheUse | None) -> list[str]:
    if use is None or not use.prompt_tokens:
        return []
    found = f"{100 * use.cached_tokens / use.prompt_tokens:.0f} % of prompt tokens found"
    if use.cacheable_tokens:
        found += f", {100 * use.cached_tokens / use.cacheable_tokens:.0f} % of those that any worker had"
    moved = ", ".join(f"{reason} {count}" for reason, count in use.moved_sessions.items() if count)
    return [f"CACHE {found}{f'; sessions moved: {moved}' if moved else ''}"]


def _lanes(seen: Observation) -> list[str]:
    lines = []
    for process, state in seen.workers:
        for link in state.transfer.links if state is not None else ():
            rate = "not measured" if link.bytes_per_s is None else f"{link.bytes_per_s / 1e9:.2f} GB/s"
            slow = "  below minBandwidth" if link.below_minimum else ""
            lines.append(f"KV    {process.name} → {link.peer}  {link.lane}  {rate}{slow}")
    return lines


def _pool(role: str, seen: Observation) -> dict[str, object]:
    processes = [process for process, _ in seen.workers if process.role == role]
    return {"workers": len(processes), "ready": sum(process.phase == "ready" for process in processes)}


def _process(process: ProcessRecord) -> dict[str, object]:
    return {
        "name": process.name,
        "role": process.role,
        "pid": process.pid,
        "address": process.address,
        "phase": process.phase,
        "starts": process.starts,
    }


def _worker(process: ProcessRecord, state: ObservedWorker | None, seen: Observation) -> dict[str, object]:
    known = {} if state is None else {name: getattr(state, name) for name in _STATE_FIELDS}
    transfer = {} if state is None else {name: getattr(state.transfer, name) for name in _TRANSFER_FIELDS}
    links = [] if state is None else [msgspec.structs.asdict(link) for link in state.transfer.links]
    return {
        **_process(process),
        "revision": process.revision,
        "link": _link(process, seen),
        **dict.fromkeys(_STATE_FIELDS),
        **known,
        "transfer": {**dict.fromkeys(_TRANSFER_FIELDS), **transfer, "links": links},
    }


_STATE_FIELDS = ("blocks_total", "blocks_free", "block_bytes", "running", "waiting")
_TRANSFER_FIELDS = ("transport", "handovers", "bytes_sent", "bytes_received")


def _link(process: ProcessRecord, seen: Observation) -> str | None:
    """State of the gateway's link to a worker; None: the gateway does not know the worker."""
    return None if process.address is None else seen.seen_by_gateway.links.get(process.address)


def _row(process: ProcessRecord, state: ObservedWorker | None, seen: Observation) -> tuple[object, ...]:
    blocks = (None,) * 4 if state is None else (state.blocks_total, state.blocks_free, state.running, state.waiting)
    pid, link = str(process.pid or "-"), _link(process, seen)
    return (
        process.name,
        process.role,
        process.phase,
        link,
        pid,
        process.address,
        process.revision,
        process.starts,
        *blocks,
    )


def _latency(sketch: Sketch, target: TargetRecord) -> dict[str, object]:
    reached = sketch.quantile(target.percentile / 100)
    return {
        "count": sketch.count,
        **{f"p{percent}_ms": _ms(sketch.quantile(percent / 100)) for percent in SHOWN_PERCENTILES},
        "target_ms": _ms(target.target_s),
        "percentile": target.percentile,
        "met": None if reached is None else reached <= target.target_s,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _latency_text(sketch: Sketch, target: TargetRecord) -> str:
    goal = f"target p{target.percentile:g} {milliseconds(target.target_s)}"
    if not sketch.count:
        return f"no requests yet; {goal}"
    shown: Iterable[str] = (f"p{p} {milliseconds(sketch.quantile(p / 100))}" for p in SHOWN_PERCENTILES)
    return f"{'  '.join(shown)}  ({sketch.count} observations; {goal})"
