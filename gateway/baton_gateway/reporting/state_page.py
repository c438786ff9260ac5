"""The `/state` document of the admin listener: linked workers, requests and latencies of all processes of a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from baton_gateway.reporting.metrics import CacheUse
from baton_gateway.workers.linked_workers import LinkedWorker
from baton_gateway.workers.route import MoveReason
from baton_wire.messages.measures import SKETCH_RATIO, SketchData
from baton_wire.sketch import Sketch, merged

PERCENTS = (50, 95, 99)
MOST_TENANTS = 50


class WorkerReport(msgspec.Struct, frozen=True):
    """One linked worker."""

    role: str
    epoch: str
    revision: str
    """The first half of the pair fingerprint's model hash and the template hash."""
    served_name: str
    address: str
    state: str
    """live, suspect or draining."""
    running: int | None
    waiting: int | None
    blocks_total: int
    blocks_free: int | None
    """None: not reported yet."""


class CacheReport(msgspec.Struct, frozen=True):
    """How much of what workers had cached of the prompts was found (`CacheUse`)."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    cacheable_tokens: int = 0
    moved: dict[str, int] = {}
    """Moved sessions by reason."""


class ProcessReport(msgspec.Struct, frozen=True):
    """One gateway process."""

    pid: int
    epoch: str
    requests_running: int
    requests_waiting: int
    tasks: int
    """Tasks of the event loop: back at their initial number once no request is left."""
    held_bytes: int
    """Bytes taken from the memory budget; 0 once no request is left."""
    workers: tuple[WorkerReport, ...]
    ttft: SketchData
    tpot: SketchData
    ailment: str = ""
    """The problem that makes it unready; empty: none."""
    cache: CacheReport = CacheReport()
    ttft_minute: SketchData = SketchData()
    """Latencies of the last minute, like `tpot_minute`."""
    tpot_minute: SketchData = SketchData()
    tenants: dict[str, tuple[int, int]] = {}
    """Running and waiting sequences of the tenants that have some."""
    unserved_minute: int = 0
    """Requests of the last minute that failed, or were refused for want of workers."""


def worker_report(worker: LinkedWorker) -> WorkerReport:
    hello, state = worker.hello, worker.state
    return WorkerReport(
        role=worker.role.value,
        epoch=hello.epoch.hex(),
        revision=f"{hello.fingerprint.model_hash[:16]}-{hello.template_hash}",
        served_name=hello.served_name,
        address=str(worker.address),
        state=worker.condition.value,
        running=None if state is None else state.running,
        waiting=None if state is None else state.waiting,
        blocks_total=hello.blocks_total,
        blocks_free=None if state is None else state.blocks_free,
    )


def state_body(processes: Sequence[ProcessReport]) -> bytes:
    """The `/state` document. A worker is listed once, as the first process that has linked it sees it."""
    workers: dict[str, WorkerReport] = {}
    for process in processes:
        for worker in process.workers:
            workers.setdefault(worker.epoch, worker)
    return msgspec.json.encode(
        {
            "role": "gateway",
            "processes": [
                {
                    "pid": process.pid,
                    "epoch": process.epoch,
                    "requests_running": process.requests_running,
                    "requests_waiting": process.requests_waiting,
                    "tasks": process.tasks,
                    "held_bytes": process.held_bytes,
                    "workers_linked": len(process.workers),
                    "ailment": process.ailment or None,
                }
                for process in processes
            ],
            "workers": sorted(workers.values(), key=lambda worker: (worker.role, worker.address)),
            "tenants": _tenants([process.tenants for process in processes]),
            "cache": _cache([process.cache for process in processes]),
            "last_minute": {"unserved": sum(process.unserved_minute for process in processes)},
            "latency": {
                "ttft": _latency(
                    merged(process.ttft for process in processes),
                    merged(process.ttft_minute for process in processes),
                ),
                "tpot": _latency(
                    merged(process.tpot for process in processes),
                    merged(process.tpot_minute for process in processes),
                ),
            },
        }
    )


def _tenants(reports: Sequence[dict[str, tuple[int, int]]]) -> list[dict[str, Any]]:
    """The tenants with the most sequences, running and waiting together."""
    loads: dict[str, tuple[int, int]] = {}
    for report in reports:
        for name, (running, waiting) in report.items():
            before = loads.get(name, (0, 0))
            loads[name] = before[0] + running, before[1] + waiting
    largest = sorted(loads.items(), key=lambda item: (-sum(item[1]), item[0]))[:MOST_TENANTS]
    return [{"name": name, "running": running, "waiting": waiting} for name, (running, waiting) in largest]


def cache_report(use: CacheUse) -> CacheReport:
    moved = {reason.value: count for reason, count in use.moved.items()}
    return CacheReport(use.prompt_tokens, use.cached_tokens, use.cacheable_tokens, moved)


def _cache(reports: Sequence[CacheReport]) -> dict[str, Any]:
    names = ("prompt_tokens", "cached_tokens", "cacheable_tokens")
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in names}
    moved = {reason.value: sum(report.moved.get(reason.value, 0) for report in reports) for reason in MoveReason}
    return sums | {"moved_sessions": moved}


def _latency(whole: Sketch, minute: Sketch) -> dict[str, Any]:
    """A latency since the processes started, and in the last minute."""
    return _distribution(whole) | {"last_minute": _distribution(minute)}


def _distribution(sketch: Sketch) -> dict[str, Any]:
    percentiles = {f"p{percent}_s": sketch.quantile(percent / 100) for percent in PERCENTS}
    buckets = sorted(sketch.bins.items())
    return percentiles | {
        "sketch": {"ratio": SKETCH_RATIO, "count": sketch.count, "sum_s": sketch.total, "buckets": buckets}
    }
