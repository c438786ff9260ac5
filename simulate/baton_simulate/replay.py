"""Replays a workload in the simulator at full detail while a policy resizes its pools, as `baton simulate` does.

Every worker is simulated, start-ups take their time, metrics can be lost and workers can die. Replaced workers
follow the policy's last sizes, as a Deployment would. Policies see measurements only, never the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from baton_control.rollout import Limits
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_control.sizing.simulator.simulator import Simulator
from baton_simulate.baselines.signals import Sizes
from baton_simulate.deployed_slo import DeployedSlo
from baton_simulate.policies import Player
from baton_simulate.rolling import exchange, roll
from baton_simulate.simulator_metrics import SimulatorMetrics
from baton_wire.messages.values import POOL_ROLES, Role

PATIENCE_S = 120.0
"""A client gives up when its first token has not come by then."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    workload: Workload
    model: WorkerModel
    """The workers as they really are; a policy may believe otherwise."""
    spec: SizingSpec
    startup_s: float
    initial: Sizes
    lost: tuple[tuple[float, float], ...] = ()
    """Times without metrics."""
    deaths: tuple[tuple[float, Role], ...] = ()
    seed: int = 1
    in_turn: bool = False
    """Prompts wait in order of arrival, as in other systems, instead of by the target."""
    models: Mapping[tuple[Role, str], WorkerModel] = field(default_factory=dict)
    """Workers by type of accelerator, of a deployment's file; else all workers are `model`."""
    limits: Limits = Limits(1, 0)  # noqa: RUF009 - frozen
    """The limits of a rollout from one type to another."""


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a pool."""

    at_s: float
    role: Role
    before: int
    after: int
    reason: str
    type: str | None = None
    """The type that the pool computes on from now on, where that changed."""


@dataclass(frozen=True, slots=True)
class Point:
    """The pools at one moment."""

    at_s: float
    workers: tuple[int, int]
    routable: tuple[int, int]
    queued: int
    kinds: Mapping[tuple[Role, str], int]
    """Workers by type of accelerator."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    policy: str
    requests: int
    slo_attainment: float
    """Share of requests within both targets; refused ones are outside."""
    ttft_attainment: float
    tpot_attainment: float
    gpu_hours: float
    goodput_per_gpu: float
    """Requests within both targets per second and accelerator."""
    rejected: int
    retries: int
    decisions: tuple[Move, ...]
    points: tuple[Point, ...]
    hours: Mapping[tuple[Role, str], float]
    """`gpu_hours` by pool and what it computes on."""
    ttft_s: Floats
    tpot_s: Floats

    @property
    def misses(self) -> float:
        return 1.0 - self.slo_attainment


def replay(
    scenario: Scenario,
    name: str,
    policy: Player,
    on_tick: Callable[[float], None] | None = None,
) -> ReplayOutcome:
    """One run from the first arrival until everything ended; billed until the last arrival."""
    workload = scenario.workload
    ttft_s = None if scenario.in_turn else scenario.spec.targets.ttft_s
    simulator = Simulator(scenario.model, workload, patience_s=PATIENCE_S, ttft_s=ttft_s)
    metrics = SimulatorMetrics(simulator, scenario.startup_s, scenario.spec.targets)
    random = np.random.default_rng(scenario.seed)
    wanted = dict(scenario.initial)
    moves: list[Move] = []
    points: list[Point] = []
    types = policy.types if isinstance(policy, DeployedSlo) else {}
    for role in POOL_ROLES:
        for _ in range(wanted[role]):
            simulator.add(role, 0.0, *_of_type(scenario, role, types.get(role, "")))
    if isinstance(policy, DeployedSlo):
        policy.decide_from(metrics, 0.0)
    deaths = sorted(scenario.deaths, key=lambda death: death[0])
    now, end = 0.0, workload.duration_s
    while now < end:
        now = min(end, now + policy.interval_s)
        while deaths and deaths[0][0] <= now:
            at, role = deaths.pop(0)
            simulator.run_until(at)
            simulator.kill(role)
        simulator.run_until(now)
        is_lost = any(start <= now < stop for start, stop in scenario.lost)
        sizes = policy.decide_from(None if is_lost else metrics, now)
        if sizes is not None:
            moves += find_moves(now, wanted, sizes, policy.reasons)
            wanted = dict(sizes)
            if policy.flips is not None and scenario.spec.flip_s is not None:
                for _ in range(policy.flips.workers):
                    simulator.flip(policy.flips.giver, scenario.spec.flip_s)
        if isinstance(policy, DeployedSlo):
            moves += _type_moves(now, types, policy, wanted)
            types = dict(policy.types)
            _roll(simulator, wanted, types, scenario, random)
        else:
            resize(simulator, wanted, scenario.startup_s, random)
        if not points or now - points[-1].at_s >= 10.0:
            points.append(_point(simulator, now))
        if on_tick is not None:
            on_tick(now / end)
    billed = simulator.billed_by_kind()
    simulator.run_out()
    return _outcome(name, scenario, simulator, billed, moves, points)


def resize(simulator: Simulator, wanted: Sizes, startup_s: float, random: np.random.Generator) -> None:
    """Start and stop workers until the pools have these sizes."""
    for role in POOL_ROLES:
        have = simulator.workers(role)
        for _ in range(wanted[role] - have):
            simulator.add(role, _ready_s(simulator, startup_s, random))
        for _ in range(have - wanted[role]):
            simulator.remove(role)


def _ready_s(simulator: Simulator, startup_s: float, random: np.random.Generator) -> float:
    """When a worker that is started now is routable."""
    return simulator.now + startup_s * float(np.exp(random.normal(0.0, 0.08)))


def _roll(
    simulator: Simulator, wanted: Sizes, types: Mapping[Role, str], scenario: Scenario, random: np.random.Generator
) -> None:
    def start(role: Role, name: str) -> None:
        simulator.add(role, _ready_s(simulator, scenario.startup_s, random), *_of_type(scenario, role, name))

    if scenario.spec.flip_s is not None:
        exchange(simulator, wanted, scenario.spec.flip_s)
    roll(simulator, wanted, types, scenario.limits, start)


def _of_type(scenario: Scenario, role: Role, name: str) -> tuple[WorkerModel, str]:
    return scenario.models.get((role, name), scenario.model), name


def _type_moves(now: float, before: Mapping[Role, str], policy: DeployedSlo, wanted: Sizes) -> list[Move]:
    changed = [role for role in POOL_ROLES if policy.types[role] != before[role]]
    return [Move(now, role, wanted[role], wanted[role], policy.choices[role], policy.types[role]) for role in changed]


def find_moves(now: float, before: Sizes, after: Sizes, reasons: dict[Role, str]) -> list[Move]:
    """The changes between two decisions."""
    changed = [role for role in POOL_ROLES if before[role] != after[role]]
    return [Move(now, role, before[role], after[role], reasons.get(role, "")) for role in changed]


def _point(simulator: Simulator, now: float) -> Point:
    workers, routable = ([count(role) for role in POOL_ROLES] for count in (simulator.workers, simulator.routable))
    kinds = {(role, name): count for role in POOL_ROLES for name, (count, _) in simulator.kinds(role).items() if name}
    return Point(now, (workers[0], workers[1]), (routable[0], routable[1]), len(simulator.gateway), kinds)


def _outcome(
    name: str,
    scenario: Scenario,
    simulator: Simulator,
    billed: Mapping[tuple[Role, str], float],
    moves: list[Move],
    points: list[Point],
) -> ReplayOutcome:
    billed_s = sum(billed.values())
    ttft, tpot = simulator.latencies()
    targets = scenario.spec.targets
    ttft_met, tpot_met = ttft <= targets.ttft_s, tpot <= targets.tpot_s
    good = int(np.sum(ttft_met & tpot_met))
    return ReplayOutcome(
        policy=name,
        requests=len(ttft),
        slo_attainment=good / max(1, len(ttft)),
        ttft_attainment=float(np.mean(ttft_met)),
        tpot_attainment=float(np.mean(tpot_met)),
        gpu_hours=billed_s / 3600.0,
        goodput_per_gpu=good / max(1.0, billed_s),
        rejected=simulator.rejected,
        retries=simulator.retries,
        decisions=tuple(moves),
        points=tuple(points),
        hours={key: seconds / 3600.0 for key, seconds in billed.items()},
        ttft_s=ttft,
        tpot_s=tpot,
    )
