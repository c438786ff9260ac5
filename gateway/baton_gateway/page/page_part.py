"""The part of the page's data that one gateway process knows. It has no key, prompt or answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from baton_gateway.records.record_builder import worker_name
from baton_gateway.reporting.load_series import LoadSlot
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.requests.admission import Admission
from baton_gateway.requests.tenant import Tenant
from baton_gateway.tenancy.month_meters import PER_MONTH, MonthMeters
from baton_gateway.tenancy.tenant_meters import TenantMeters
from baton_gateway.tenancy.tenants import Tenants
from baton_gateway.workers.linked_workers import RATE_S, LinkedWorker, WorkerTable
from baton_wire.messages.measures import SketchData
from baton_wire.messages.operator_link import LimitMeasure

MAX_TENANTS = 50
"""Tenants of one part: those with the most to show."""
MAX_WORKERS = 1_024


class PageQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question to a process. `tenant`: the only one that may be in the answer; None: everything is asked for."""

    tenant: str | None = None


class PageWorker(msgspec.Struct, frozen=True):
    """One linked worker."""

    name: str
    role: str
    address: str
    served_name: str
    state: str
    """live, suspect or draining."""
    blocks_total: int
    running: int | None = None
    """None, like all that follow: not reported."""
    waiting: int | None = None
    waiting_tokens: int | None = None
    blocks_free: int | None = None
    blocks_cached: int | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    """Prompt tokens that a prefill worker computes a second, or tokens that a decode worker draws."""
    kv_bytes: int | None = None
    """KV sent or received so far."""
    lane: str | None = None
    """The slowest link to a decode worker."""
    lane_bytes_per_s: float | None = None
    lanes_too_slow: int | None = None


class TenantStanding(msgspec.Struct, frozen=True):
    """A tenant's use of its limits in one process."""

    running: int = 0
    waiting: int = 0
    used: dict[str, float] = {}
    """The part of each limit by the minute that is taken, by its name."""
    limits: dict[str, int] = {}
    """The limits, over all processes, by their names."""
    used_this_month: float | None = None
    """Tokens of the month that all processes have used, as this one knows it; None: unknown, or no limit."""


class PagePart(msgspec.Struct, frozen=True):
    """The part of one process."""

    pid: int
    running: int
    waiting: int
    tenants: dict[str, TenantStanding]
    models: tuple[str, ...] = ()
    """Served names."""
    workers: tuple[PageWorker, ...] = ()
    slots: tuple[LoadSlot, ...] = ()
    ttft_minute: SketchData = SketchData()
    tpot_minute: SketchData = SketchData()
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None
    problem: str = ""
    """The problem that makes the process unready; empty: none."""
    history: bytes = b""
    """The deployment's history as JSON, as the process that sizes the pools announced it; empty: it announced none."""


@dataclass(frozen=True, slots=True)
class PartSources:
    """Where a process finds its part."""

    table: WorkerTable
    admission: Admission
    tenants: Tenants
    meters: TenantMeters
    months: MonthMeters
    metrics: GatewayMetrics
    targets: Callable[[], tuple[float | None, float | None]]
    problem: Callable[[], str]
    history: Callable[[], bytes] = lambda: b""

    def answer(self, question: bytes) -> bytes:
        """Answer a question of another process. Raises ValueError where it is malformed."""
        return msgspec.json.encode(self.build(msgspec.json.decode(question, type=PageQuestion)))

    def build(self, question: PageQuestion) -> PagePart:
        """Build the part that a question asks for."""
        now, models = asyncio.get_running_loop().time(), tuple(self.table.served_names())
        if question.tenant is not None:
            loads = self.admission.tenant_loads()
            standing = self._standing(question.tenant, loads.get(question.tenant, (0, 0)), now)
            return PagePart(os.getpid(), standing.running, standing.waiting, {question.tenant: standing}, models)
        ttft_s, tpot_s = self.targets()
        return PagePart(
            os.getpid(),
            self.admission.num_running,
            self.admission.num_waiting,
            _most(self._standings(now)),
            models,
            tuple(_workers(self.table.all())),
            tuple(self.metrics.series.slots(now)),
            self.metrics.ttft.minute.sketch(now).data(),
            self.metrics.tpot.minute.sketch(now).data(),
            ttft_s,
            tpot_s,
            self.problem(),
            self.history(),
        )

    def _standings(self, now: float) -> dict[str, TenantStanding]:
        loads = self.admission.tenant_loads()
        names = {*loads, *self.meters.active()}
        return {name: self._standing(name, loads.get(name, (0, 0)), now) for name in names}

    def _standing(self, name: str, load: tuple[int, int], now: float) -> TenantStanding:
        known = self.tenants.named(name)
        limits = {} if known is None else limits_of(known)
        month = self.months.used(name) if PER_MONTH in limits else None
        return TenantStanding(*load, self.meters.used(name, now), limits, month)


def limits_of(tenant: Tenant) -> dict[str, int]:
    """Return the limits that a tenant has, by their names."""
    limits = {
        LimitMeasure.REQUESTS.value: tenant.limits.requests_per_minute,
        LimitMeasure.INPUT.value: tenant.limits.input_tokens_per_minute,
        LimitMeasure.OUTPUT.value: tenant.limits.output_tokens_per_minute,
        LimitMeasure.CONCURRENT.value: tenant.limits.max_concurrent,
        PER_MONTH: tenant.limits.tokens_per_month,
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


def _most(standings: dict[str, TenantStanding]) -> dict[str, TenantStanding]:
    if len(standings) <= MAX_TENANTS:
        return standings
    most = sorted(standings.items(), key=lambda item: (-item[1].running - item[1].waiting, -_fullest(item[1]), item[0]))
    return dict(most[:MAX_TENANTS])


def _fullest(standing: TenantStanding) -> float:
    return max((standing.used.get(name, 0.0) / limit for name, limit in standing.limits.items() if limit), default=0.0)


def _workers(workers: Iterable[LinkedWorker]) -> Iterator[PageWorker]:
    for place, worker in enumerate(workers):
        if place == MAX_WORKERS:
            return
        yield _worker(worker)


def _worker(worker: LinkedWorker) -> PageWorker:
    hello, state = worker.hello, worker.state
    plain = PageWorker(
        worker_name(hello.epoch),
        worker.role.value,
        str(worker.address),
        hello.served_name,
        worker.condition.value,
        hello.blocks_total,
    )
    if state is None:
        return plain
    lanes = state.lanes
    return msgspec.structs.replace(
        plain,
        running=state.running,
        waiting=state.waiting,
        waiting_tokens=state.waiting_tokens + state.computing_tokens,
        blocks_free=state.blocks_free,
        blocks_cached=state.blocks_cached,
        step_s=state.step_s or None,
        tokens_per_s=_rate(worker),
        kv_bytes=state.kv_bytes,
        lane=None if lanes is None else lanes.slowest,
        lane_bytes_per_s=None if lanes is None else lanes.slowest_bytes_per_s,
        lanes_too_slow=None if lanes is None else lanes.too_slow,
    )


def _rate(worker: LinkedWorker) -> float | None:
    state = worker.state
    if worker.rows and state is not None and state.step_s:
        return worker.rows / state.step_s
    return worker.computed_tokens / RATE_S
