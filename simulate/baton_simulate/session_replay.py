"""A load of sessions while mode SLO resizes the pools: how large they were, and whether the targets were kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from baton_control.sizing.decision.sizing_state import fresh
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_simulate.policies import Slo
from baton_simulate.replay import Move, find_moves, resize
from baton_simulate.sessions.session_simulation import SessionOutcome, SessionSimulation, outcome
from baton_simulate.simulator_metrics import SimulatorMetrics
from baton_wire.messages.values import POOL_ROLES


@dataclass(frozen=True, slots=True)
class SizedSessions:
    """The outcome of sessions on pools that were resized."""

    outcome: SessionOutcome
    mean_workers: tuple[float, float]
    """Prefill and decode workers, as means over the time in which turns were sent, without a first part."""
    ttft_attainment: float
    """Share of the turns after the first part that kept the target."""
    tpot_attainment: float
    moves: tuple[Move, ...]


def replay_sessions(
    simulation: SessionSimulation,
    spec: SizingSpec,
    sizes: tuple[int, int],
    startup_s: float,
    held_s: float = 0.0,
    skipped_s: float = 0.0,
) -> SizedSessions:
    """Carry out a load from these sizes, which stay as they are for `held_s`. `skipped_s`: the first part, which the
    figures leave out. Raises ValueError when all turns are sent in that part."""
    simulator, model = simulation.simulator, simulation.simulator.model
    policy, metrics = Slo(spec, fresh(model, spec)), SimulatorMetrics(simulator, startup_s, spec.targets)
    random = np.random.default_rng(1)
    wanted = dict(zip(POOL_ROLES, sizes, strict=True))
    for role, workers in wanted.items():
        for _ in range(workers):
            simulator.add(role, 0.0)
    moves: list[Move] = []
    sizes_at: list[tuple[float, list[int]]] = []
    now = 0.0
    while not simulation.is_over:
        now += spec.interval_s
        simulator.run_until(now)
        sizes_at.append((now, [wanted[role] for role in POOL_ROLES]))
        if now <= held_s:
            metrics.measure()
            continue
        following = policy.decide_from(metrics, now)
        assert following is not None, "metrics are never lost here"
        moves += find_moves(now, wanted, following, policy.reasons)
        wanted = dict(following)
        resize(simulator, wanted, startup_s, random)
    ttft, tpot = simulator.latencies()
    last_s, counted = max(simulator.arrival_s, default=0.0), np.array(simulator.arrival_s) >= skipped_s
    if not counted.any():
        raise ValueError(f"skipped_s: {skipped_s:g} leaves no turn, the last one is sent after {last_s:g} s")
    counted_sizes = [pools for at_s, pools in sizes_at if skipped_s <= at_s <= last_s] or [sizes_at[-1][1]]
    prefill, decode = map(float, np.mean(counted_sizes, axis=0))
    return SizedSessions(
        outcome=outcome(simulation, sum(a * w for a, w in zip(model.accelerators, wanted.values(), strict=True))),
        mean_workers=(prefill, decode),
        ttft_attainment=float(np.mean(ttft[counted] <= spec.targets.ttft_s)),
        tpot_attainment=float(np.mean(tpot[counted] <= spec.targets.tpot_s)),
        moves=tuple(moves),
    )
