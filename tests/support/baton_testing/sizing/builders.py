"""Builders for sizing tests: a worker with round numbers, workloads in one line, a sizer with a simple rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from baton_control.sizing.inputs.kv_size import KvSize
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Known, MeasuredArrivals, Measurement, Measurements, ObservedPool
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec, Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload, workload_of
from baton_wire.messages.values import Role
from baton_wire.rules.step_times import DecodeTimes, PrefillTimes

ROUND_WORKER = WorkerModel(
    prefill=PrefillTimes(fixed_s=0.01, per_token_s=1e-4, per_pair_s=0.0),
    decode=DecodeTimes(0.01, 1e-4, 0.0, 1e-7, knee=128.0, pad_to=1),
    kv_capacity_tokens=100_000,
    max_sequences=64,
    max_step_tokens=2000,
    kv=KvSize(1e5),
    link_bytes_per_s=1e10,
    layers=10,
    hand_over_s=0.002,
    gateway_s=0.0,
)


def requests(rows: Sequence[tuple[float, int, int]]) -> Workload:
    """(arrival_s, prompt tokens, output tokens) each."""
    return workload_of([row[0] for row in rows], [RequestShape(row[1], row[2]) for row in rows])


@dataclass(slots=True)
class PerWorker:
    """A sizer by which every worker does so many requests per second."""

    per_s: float = 5.0

    def required(self, role: Role, mix: Mix, rate_per_s: float) -> int:
        return max(1, ceil(rate_per_s / self.per_s - 1e-9))

    def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float:
        return min(1.0, workers * self.per_s / max(rate_per_s, 1e-9))

    def reachable_share(self, role: Role, mix: Mix) -> float:
        return 0.95

    @property
    def model(self) -> WorkerModel:
        return ROUND_WORKER

    def most_per_s(self, role: Role, mix: Mix) -> float:
        return self.per_s


def spec(minimum: int = 1, maximum: int = 20, **changes: object) -> SizingSpec:
    bounds = Bounds(minimum, maximum)
    return SizingSpec(bounds, bounds, Targets(0.5, 0.025), **changes)  # type: ignore[arg-type]


def seen(
    arrivals: MeasuredArrivals, workers: tuple[int, int], queued: Measurement | None = None, startup_s: float = 30.0
) -> Measurements:
    pools = [ObservedPool(count, count, startup_s) for count in workers]
    waiting = Known(0.5) if queued is None else queued
    return Measurements(arrivals, pools[0], pools[1], waiting, Known(0.5) if isinstance(waiting, Known) else waiting)
