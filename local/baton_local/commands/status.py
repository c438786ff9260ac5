"""`baton status`: a running deployment as JSON for programs and as text for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TextIO

import msgspec

from baton_local.fleet.observation import Link, Observation, ObservedCacheUse, ObservedWorker, observe
from baton_local.fleet.record import NotUpYetError, ProcessRecord, RunRecord, TargetRecord, read_record
from baton_local.fleet.run_dir import RunDir
from baton_local.text_table import milliseconds, table
from baton_wire.sketch import Sketch

SHOWN_PERCENTILES = (50, 95, 99)
SLOW_SHARE = 0.5
"""A KV link that reaches less than this part of the fastest one's rate is marked."""
SILENT = "silent"


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
        "reasons": record.reasons,
        "limits": record.limits,
        "wanted": record.wanted,
        "emulated": record.emulated,
        "pools": {role: _pool(role, seen) for role in record.roles},
        "workers": [_worker(process, state, seen) for process, state in seen.workers],
        "gateway": None if seen.gateway is None else _process(seen.gateway),
        "cache": None if seen.seen_by_gateway.cache is None else msgspec.structs.asdict(seen.seen_by_gateway.cache),
        "slo": {
            "ttft": _latency(seen.seen_by_gateway.ttft, seen.seen_by_gateway.ttft_minute, record.ttft),
            "tpot": _latency(seen.seen_by_gateway.tpot, seen.seen_by_gateway.tpot_minute, record.tpot),
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
            *_pool_lines(record),
            "",
            table(header, rows),
            *end_lines(process for process, _ in processes),
            "",
            *lane_lines(seen),
            *_cache(seen.seen_by_gateway.cache),
            *_latency_lines("TTFT", seen.seen_by_gateway.ttft, seen.seen_by_gateway.ttft_minute, record.ttft),
            *(
                _latency_lines("TPOT", seen.seen_by_gateway.tpot, seen.seen_by_gateway.tpot_minute, record.tpot)
                if "decode" in record.roles
                else ()
            ),
        ]
    )


def run_text(run: RunDir) -> str:
    """The page of one of several runs; a line for one that has no record yet, since it starts."""
    try:
        return as_text(observe(read_record(run)))
    except NotUpYetError as error:
        return str(error)


def end_lines(processes: Iterable[ProcessRecord]) -> list[str]:
    """One line for each process that was started again: how the former one ended, and when."""
    now = time.monotonic()
    return [
        f"{process.name}: the one before {duration_words(now - process.last_end_s)} ago: {process.last_end}"
        for process in processes
        if process.last_end and process.last_end_s is not None
    ]


def duration_words(seconds: float) -> str:
    """A duration in its largest fitting unit.

    >>> [duration_words(seconds) for seconds in (-1.0, 41.2, 150.0, 10_000.0)]
    ['0 s', '41 s', '2 min', '2 h']
    """
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


def watch(page: Callable[[], str], out: TextIO, *, is_live: bool, every_s: float) -> None:
    """Write the page repeatedly until an exception: in place of the former one, or one below the other."""
    if not is_live:
        while True:
            out.write(f"{page()}\n")
            out.flush()
            time.sleep(every_s)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=out, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            live.update(Text(page(), no_wrap=True), refresh=True)
            time.sleep(every_s)


def _cache(use: ObservedCacheUse | None) -> list[str]:
    if use is None or not use.prompt_tokens:
        return []
    summary = f"{100 * use.cached_tokens / use.prompt_tokens:.0f} % of prompt tokens found"
    if use.cacheable_tokens:
        summary += f", {100 * use.cached_tokens / use.cacheable_tokens:.0f} % of those that any worker had"
    moved = ", ".join(f"{reason} {count}" for reason, count in use.moved_sessions.items() if count)
    return [f"CACHE {summary}{f'; sessions moved: {moved}' if moved else ''}"]


def _pool_lines(record: RunRecord) -> list[str]:
    """Each pool's limits, and the reason of its size."""
    if not record.reasons:
        return [f"pools ({record.mode}): {record.decision or 'not sized yet'}"]
    limits = {role: "" if role not in record.limits else limits_text(record, role) for role in record.reasons}
    width = max(map(len, limits.values()))
    return [f"pools ({record.mode})", *(f"  {limits[role]:<{width}}   {why}" for role, why in record.reasons.items())]


def limits_text(record: RunRecord, role: str) -> str:
    """The fewest and the most workers of a pool, and the ranks of each if it has several."""
    low, high = record.limits[role]
    return f"{low} to {high}{record.ranks_text(role)}"


def lane_lines(seen: Observation) -> list[str]:
    """One line for each link, with the names of both workers."""
    names = {(process.host, process.pair_port): process.name for process, _ in seen.workers if process.pair_port}
    pairs = [(process, link) for process, state in seen.workers if state is not None for link in state.transfer.links]
    links = [link for _, link in pairs]
    return [
        f"KV    {process.name} → {_peer(link, names)}  {link.lane}  {_rate(link, links)}" for process, link in pairs
    ]


def _peer(link: Link, names: Mapping[tuple[str | None, int], str]) -> str:
    """The name of the decode worker at the other end; its address if it is none of this deployment's."""
    host, _, port = link.peer.rpartition(":")
    return names.get((host.strip("[]"), int(port) if port.isdecimal() else 0), link.peer)


def _rate(link: Link, links: Sequence[Link]) -> str:
    """The rates of a link in the last minute and when it came up, with a mark if they are low."""
    first = None if link.bytes_per_s is None else f"{_gigabytes(link.bytes_per_s)} when it came up"
    recent = None if link.recent_bytes_per_s is None else f"{_gigabytes(link.recent_bytes_per_s)} in the last minute"
    text = ", ".join(part for part in (recent, first) if part) or "not measured"
    share = _share_of_fastest(link, links)
    if link.below_minimum:
        text += "  below minBandwidth"
    elif share is not None and share < SLOW_SHARE:
        text += f"  slow: {100 * share:.0f} % of the fastest"
    return text


def _share_of_fastest(link: Link, links: Sequence[Link]) -> float | None:
    """A link's rate of the last minute over that of the fastest link; None: it carried nothing. What was measured when
    links came up is no reason for a mark: links that come up while others do share the machine."""
    if link.recent_bytes_per_s is None:
        return None
    return link.recent_bytes_per_s / max(other.recent_bytes_per_s or 0.0 for other in links)


def _gigabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s" if bytes_per_s >= 1e7 else f"{bytes_per_s / 1e6:.2f} MB/s"


def _pool(role: str, seen: Observation) -> dict[str, object]:
    processes = [process for process, _ in seen.workers if process.role == role]
    ready = sum(phase_of(process) == "ready" for process in processes)
    return {"workers": len(processes), "ready": ready, "ranks": seen.record.ranks.get(role)}


def phase_of(process: ProcessRecord) -> str:
    """The phase of a process: one that is ready and does not answer is silent."""
    return process.phase if process.silent_since_s is None else SILENT


def phase_text(process: ProcessRecord, is_answering: bool) -> str:
    """The phase for people, with how long a process has been silent."""
    if process.silent_since_s is not None:
        return f"{SILENT} {max(0.0, time.monotonic() - process.silent_since_s):.0f} s"
    return SILENT if process.phase == "ready" and not is_answering else process.phase


def _process(process: ProcessRecord) -> dict[str, object]:
    return {
        "name": process.name,
        "role": process.role,
        "pid": process.pid,
        "address": process.address,
        "phase": phase_of(process),
        "silent_s": None if process.silent_since_s is None else round(time.monotonic() - process.silent_since_s, 3),
        "starts": process.starts,
        "last_end": process.last_end or None,
        "last_end_s_ago": None if process.last_end_s is None else round(time.monotonic() - process.last_end_s, 3),
    }


def _worker(process: ProcessRecord, state: ObservedWorker | None, seen: Observation) -> dict[str, object]:
    known = {} if state is None else {name: getattr(state, name) for name in _STATE_FIELDS}
    transfer = {} if state is None else {name: getattr(state.transfer, name) for name in _TRANSFER_FIELDS}
    links = [] if state is None else [msgspec.structs.asdict(link) for link in state.transfer.links]
    return {
        **_process(process),
        "revision": process.revision,
        "link": link_state(process, seen),
        **dict.fromkeys(_STATE_FIELDS),
        **known,
        "transfer": {**dict.fromkeys(_TRANSFER_FIELDS), **transfer, "links": links},
    }


_STATE_FIELDS = ("blocks_total", "blocks_free", "block_bytes", "running", "waiting")
_TRANSFER_FIELDS = ("transport", "handovers", "bytes_sent", "bytes_received")


def link_state(process: ProcessRecord, seen: Observation) -> str | None:
    """State of the gateway's link to a worker; None: the gateway does not know the worker."""
    return None if process.address is None else seen.seen_by_gateway.links.get(process.address)


def _row(process: ProcessRecord, state: ObservedWorker | None, seen: Observation) -> tuple[object, ...]:
    blocks = (None,) * 4 if state is None else (state.blocks_total, state.blocks_free, state.running, state.waiting)
    pid, link = str(process.pid or "-"), link_state(process, seen)
    is_answering = process.role == "gateway" or state is not None
    return (
        process.name,
        process.role,
        phase_text(process, is_answering),
        link,
        pid,
        process.address,
        process.revision,
        process.starts,
        *blocks,
    )


def _latency(whole: Sketch, minute: Sketch, target: TargetRecord) -> dict[str, object]:
    """A latency since the gateway started, and in the last minute."""
    return {
        **_percentiles(whole, target),
        "target_ms": _ms(target.target_s),
        "percentile": target.percentile,
        "last_minute": _percentiles(minute, target),
    }


def _percentiles(sketch: Sketch, target: TargetRecord) -> dict[str, object]:
    return {
        "count": sketch.count,
        **{f"p{percent}_ms": _ms(sketch.quantile(percent / 100)) for percent in SHOWN_PERCENTILES},
        "met": is_met(sketch, target),
    }


def is_met(sketch: Sketch, target: TargetRecord) -> bool | None:
    """True if the target's percentile is within the target; None: there is no request."""
    reached = sketch.quantile(target.percentile / 100)
    return None if reached is None else reached <= target.target_s


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _latency_lines(name: str, whole: Sketch, minute: Sketch, target: TargetRecord) -> list[str]:
    """The percentiles of the last minute with the target, and below them those since the gateway started."""
    goal = f"target p{target.percentile:g} {milliseconds(target.target_s)}"
    if not whole.count:
        return [f"{name}  no requests yet; {goal}"]
    verdict = {None: "", True: ": met", False: ": MISSED"}[is_met(minute, target)]
    return [
        f"{name}  last minute  {_shown(minute)}; {goal}{verdict}",
        f"{'':<{len(name)}}  since start  {_shown(whole)}",
    ]


def _shown(sketch: Sketch) -> str:
    if not sketch.count:
        return "no requests"
    percentiles = "  ".join(f"p{p} {milliseconds(sketch.quantile(p / 100))}" for p in SHOWN_PERCENTILES)
    return f"{percentiles}  ({sketch.count} observations)"
