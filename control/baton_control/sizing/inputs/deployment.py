"""From an LLMDeployment to a `SizingSpec`, and to a first guess of its workers' step times. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from baton_control.errors import ManifestError
from baton_control.sizing.inputs.model_shape import LLAMA_8B, ModelShape, shape_from_config
from baton_control.sizing.inputs.roofline import Degrees, prefill_times, worker_model
from baton_control.sizing.inputs.sizing_spec import Bounds, Schedule, SizingSpec, Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.api import LLMDeployment, ScheduleSpec
from baton_control.spec.pools import PoolSpec
from baton_control.spec.quantities import Weekday
from baton_control.worker_specs import pool_spec
from baton_wire.messages.values import Role
from baton_wire.rules import hardware
from baton_wire.rules.hardware import Accelerator

WEEKDAYS = tuple(Weekday)
DEFAULT_SEQUENCES = 64
DEFAULT_STEP_TOKENS = 8_192
"""The workers' own defaults."""
FLIP_S = 1.0
"""Seconds from the order until new work follows the new role: some tenths were measured (lab/faults.md)."""
UNKNOWN_ACCELERATOR = hardware.H100
"""The GPU that is assumed where the type is not known."""

Prior = Callable[[LLMDeployment, bytes | None], WorkerModel]
"""From a deployment and its model's config.json to a worker's step times before any was observed."""


def sizing_spec(deployment: LLMDeployment) -> SizingSpec:
    """Bounds, targets and budget of a deployment."""
    spec = deployment.spec
    return SizingSpec(
        prefill=pool_bounds(deployment, Role.PREFILL),
        decode=pool_bounds(deployment, Role.DECODE),
        targets=Targets(
            ttft_s=spec.slo.ttft.target,
            tpot_s=spec.slo.tpot.target,
            ttft_share=spec.slo.ttft.percentile / 100,
            tpot_share=spec.slo.tpot.percentile / 100,
        ),
        max_accelerators=spec.autoscaling.budget.max_accelerators,
        scale_to_zero_after_s=spec.autoscaling.scale_to_zero_after,
        schedules=tuple(window for schedule in spec.autoscaling.schedules for window in _windows(schedule)),
        flip_s=FLIP_S if spec.autoscaling.flips and _are_alike(deployment) else None,
    )


def _are_alike(deployment: LLMDeployment) -> bool:
    """True where a worker takes as many accelerators in either pool; else the templates are refused elsewhere."""
    spec = deployment.spec
    return (spec.prefill.accelerator, spec.prefill.tensor_parallel) == (
        spec.decode.accelerator,
        spec.decode.tensor_parallel,
    )


def worker_prior(
    deployment: LLMDeployment, model_config: bytes | None, accelerator: Accelerator | None = None
) -> WorkerModel:
    """A worker by roofline. Without the model's config.json it is taken to be of middle size, until steps are seen."""
    return worker_of_shape(deployment, _shape(model_config), accelerator)


def worker_of_shape(
    deployment: LLMDeployment, shape: ModelShape, accelerator: Accelerator | None = None
) -> WorkerModel:
    """A worker by roofline, of a model of that shape."""
    spec = deployment.spec
    context = spec.model.max_context_tokens
    prefill, decode = (accelerator or _hardware(pool) for pool in (spec.prefill, spec.decode))
    degrees = Degrees(spec.prefill.tensor_parallel, spec.decode.tensor_parallel)
    try:
        model = worker_model(shape, decode, degrees, context_tokens=context)
    except ManifestError:  # too large for the accelerator that is assumed, so it must be a larger one
        roomy = replace(decode, memory_bytes=4.0 * shape.weight_bytes)
        model = worker_model(shape, roomy, degrees, context_tokens=context)
    return replace(
        model,
        prefill=prefill_times(shape, prefill, degrees.prefill, context),
        max_sequences=spec.decode.engine.max_sequences or DEFAULT_SEQUENCES,
        max_step_tokens=spec.prefill.engine.max_step_tokens or DEFAULT_STEP_TOKENS,
    )


def _hardware(pool: PoolSpec) -> Accelerator:
    if pool.accelerator is None:
        return hardware.CPU
    known = pool.accelerator.type
    return UNKNOWN_ACCELERATOR if known is None else hardware.ACCELERATORS[known.lower()]


def pool_bounds(deployment: LLMDeployment, role: Role) -> Bounds:
    """The sizes that `replicas` of a pool allows, and the accelerators that one worker takes of the budget."""
    pool = pool_spec(deployment, role)
    accelerators = pool.tensor_parallel if pool.accelerator else 0
    price = None if pool.accelerator is None else pool.accelerator.cost_per_hour
    return Bounds(pool.replicas.min, pool.replicas.max, accelerators, None if price is None else price * accelerators)


def _windows(schedule: ScheduleSpec) -> Iterator[Schedule]:
    days = frozenset(WEEKDAYS.index(day) for day in schedule.days or WEEKDAYS)
    for role, workers in ((Role.PREFILL, schedule.prefill), (Role.DECODE, schedule.decode)):
        if workers is not None:
            yield Schedule(role, workers, _minute(schedule.start), _minute(schedule.end), days)


def _minute(time_of_day: str) -> int:
    hours, minutes = time_of_day.split(":")
    return int(hours) * 60 + int(minutes)


def _shape(model_config: bytes | None) -> ModelShape:
    if model_config is None:
        return LLAMA_8B
    try:
        config = json.loads(model_config)
        return shape_from_config("served", config) if isinstance(config, Mapping) else LLAMA_8B
    except (ValueError, ManifestError):
        return LLAMA_8B
