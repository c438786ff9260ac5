"""One pool by itself: the simulator, with the other pool taken as free."""

from __future__ import annotations

import numpy as np

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_control.sizing.simulator.simulator import Simulator
from baton_control.sizing.simulator.worker_choice import ByLoad
from baton_wire.messages.values import Role
from baton_wire.rules.prompt_order import PLAN_S


def first_tokens(
    model: WorkerModel,
    workload: Workload,
    workers: int,
    prefix_affinity: float,
    ttft_s: float | None,
    plan_s: float = PLAN_S,
) -> Floats:
    """When each request has its first token, in seconds, with `workers` prefill workers that serve from the start."""
    choice = ByLoad(prefix_affinity)
    simulator = Simulator(model, workload, ttft_s=ttft_s, free=Role.DECODE, plan_s=plan_s, choice=choice)
    return np.array(_run_out(simulator, Role.PREFILL, workers).first_s)


def answer_ends(model: WorkerModel, workload: Workload, workers: int) -> Floats:
    """When each answer ends, in seconds, with `workers` decode workers that serve from the start, if first tokens come
    as the requests arrive."""
    return np.array(_run_out(Simulator(model, workload, free=Role.PREFILL), Role.DECODE, workers).done_s)


def _run_out(simulator: Simulator, role: Role, workers: int) -> Simulator:
    for _ in range(workers):
        simulator.add(role, 0.0)
    simulator.run_out()
    return simulator
