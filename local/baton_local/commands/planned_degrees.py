"""The degrees of tensor parallelism that `baton plan` plans with: those that are asked for, or the best ones."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from baton_control.errors import ManifestError
from baton_control.sizing.decision.degree_choice import PlannedLoad, choose_degrees, mean_mix
from baton_control.sizing.inputs.model_shape import KNOWN_SHAPES, ModelShape
from baton_control.sizing.inputs.roofline import Degrees, kv_capacity_tokens
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.spec.tensor_parallel import DEGREES
from baton_engine.model.model_directory import read_spec
from baton_local.errors import StartError
from baton_local.fleet.degree_check import model_degrees
from baton_local.hardware_arguments import MODEL
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.models.errors import ModelError
from baton_wire.rules.hardware import CPU, Accelerator


@dataclass(frozen=True, slots=True)
class PlannedDegrees:
    """The degrees on one type of accelerator."""

    degrees: Degrees
    reason: str | None = None
    """Why they were chosen; None: they were asked for."""


def planned_degrees(
    options: argparse.Namespace, shape: ModelShape, accelerator: Accelerator, roles: tuple[Role, ...] = POOL_ROLES
) -> PlannedDegrees:
    """The degrees for the load and the targets of the options. Raises StartError, and ManifestError for weights that
    do not fit."""
    usual = options.tensor_parallel or (1 if accelerator.name == CPU.name else None)  # as in a manifest
    own = {Role.PREFILL: options.prefill_tensor_parallel, Role.DECODE: options.decode_tensor_parallel}
    given: dict[Role, int | None] = {role: degree or usual for role, degree in own.items()}
    allowed = _allowed(options.model, shape)
    for role in roles:
        if given[role] is not None and given[role] not in allowed:
            flag = "--tensor-parallel" if own[role] is None else f"--{role}-tensor-parallel"
            degrees = ", ".join(map(str, allowed))
            raise StartError(f"{flag}: {given[role]} ranks cannot share {shape.name}; allowed: {degrees}")
    prefill, decode = given[Role.PREFILL], given[Role.DECODE]
    if prefill is not None and (decode is not None or Role.DECODE not in roles):
        return PlannedDegrees(Degrees(prefill, decode or prefill))
    load = PlannedLoad(
        mean_mix(options.prompt, options.output),
        Targets(options.ttft, options.tpot),
        options.max_step_tokens,
        options.prompt + options.output,
    )
    choice = choose_degrees(shape, accelerator, load, allowed, roles)
    chosen = choice.degrees
    return PlannedDegrees(
        Degrees(prefill or chosen.prefill, decode or chosen.decode),
        "; ".join(choice.reasons[role] for role in roles if given[role] is None),
    )


def smallest_degree(shape: ModelShape, accelerator: Accelerator) -> int:
    """The fewest ranks whose memory holds the model; 1 where no number does."""

    def fits(ranks: int) -> bool:
        try:
            return kv_capacity_tokens(shape, accelerator, ranks) > 0
        except ManifestError:
            return False

    return next((ranks for ranks in DEGREES if shape.admits(ranks) and fits(ranks)), 1)


def _allowed(model: str, shape: ModelShape) -> tuple[int, ...]:
    """The degrees that the model allows. Raises StartError."""
    if model in KNOWN_SHAPES:
        return tuple(ranks for ranks in DEGREES if shape.admits(ranks))
    try:
        return model_degrees(read_spec(Path(model)))
    except ModelError as error:
        raise StartError(f"{MODEL}: {model} cannot be served: {error}") from error
