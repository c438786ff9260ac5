"""Emulated workers (`baton up --emulate`), which compute nothing and take the step times of a modelled accelerator.

They are for trying out scaling and routing without GPUs. Only `baton up` starts them, the operator never does.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from baton_control.sizing.inputs.deployment import DEFAULT_SEQUENCES, DEFAULT_STEP_TOKENS
from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.api import LLMDeployment
from baton_control.worker_specs import pool_roles, pool_spec
from baton_local.argument_types import time_or
from baton_local.errors import StartError
from baton_local.fleet.run_dir import write_json
from baton_local.hardware_arguments import accelerator_named, shape_named
from baton_wire.rules.prompt_order import BUSY_S
from baton_wire.rules.step_times import PacedTimes

FORM = re.compile(
    r"(?P<accelerator>[a-z0-9]+?)(x(?P<count>[1-8]))?:(?P<model>[^@]+?)(/(?P<slower>[1-9][0-9]?))?(@(?P<startup>[0-9.]+(ms|s|m|h)?))?"
)
DEFAULT_STARTUP_S = 30.0


@dataclass(frozen=True, slots=True)
class Emulation:
    """The model of a worker that emulated workers imitate."""

    label: str
    model: WorkerModel
    startup_s: float

    def prior(self, deployment: LLMDeployment, model_config: bytes | None) -> WorkerModel:
        """The worker model that sizing starts from; links and gateways are this machine's own."""
        return self.model


def parse_emulation(text: str, deployment: LLMDeployment) -> Emulation:
    """Parse `ACCELERATOR[xN]:MODEL[/SLOWER][@TIME]`, a bare number being seconds. Raises StartError.

    SLOWER stretches every step, so that a small machine keeps up with many workers.
    """
    match = FORM.fullmatch(text)
    if match is None:
        raise StartError(f"--emulate: {text!r} is not allowed: must be ACCELERATOR[xN]:MODEL[/SLOWER][@TIME]")
    for role in pool_roles(deployment):
        if (degree := pool_spec(deployment, role).tensor_parallel) > 1:
            raise StartError(
                f"--emulate: not allowed with tensorParallel {degree} of {role}, as emulated workers have no ranks: "
                f"emulate {degree} accelerators with {match['accelerator']}x{degree}:{match['model']}"
            )
    accelerator, shape = accelerator_named(match["accelerator"]), shape_named(match["model"], "--emulate")
    count = int(match["count"] or 1)
    startup_s = DEFAULT_STARTUP_S if match["startup"] is None else _startup_s(match["startup"])
    decode, prefill = deployment.spec.decode.engine, deployment.spec.prefill.engine
    model = worker_model(
        shape,
        accelerator,
        count,
        max_sequences=decode.max_sequences or DEFAULT_SEQUENCES,
        max_step_tokens=prefill.max_step_tokens or DEFAULT_STEP_TOKENS,
        context_tokens=deployment.spec.model.max_context_tokens,
    )
    slower = int(match["slower"] or 1)
    times = f"{slower} times as long" if slower > 1 else "as long"
    label = f"steps take {times} as {shape.name} on {count} {accelerator.name} by its measured rates"
    # Hardly any KV bytes move between emulated workers, so their links must cost sizing nothing.
    return Emulation(
        label,
        replace(model.slowed(slower, slower), link_bytes_per_s=1e15, hold_s=BUSY_S, accelerators=(1, 1)),
        startup_s,
    )


def _startup_s(text: str) -> float:
    """The time of a start, in seconds. Raises StartError."""
    try:
        return time_or("s")(text)
    except argparse.ArgumentTypeError as error:
        raise StartError(f"--emulate: {error}") from error


def write_paced(path: Path, emulation: Emulation) -> None:
    """The file that workers get with `--paced`."""
    model = emulation.model
    times = PacedTimes(emulation.label, model.prefill, model.decode, model.kv_capacity_tokens, emulation.startup_s)
    write_json(path, msgspec.to_builtins(times))
