"""A replay as text for people and as data for programs: attainment, cost, and types of accelerators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_local.commands.simulated_file import SimulatedFile
from baton_simulate.replay import ReplayOutcome
from baton_wire.messages.values import Role

SHOWN_DECISIONS = 40


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A load, and the deployment that is simulated under it."""

    workload: Workload
    model: WorkerModel
    spec: SizingSpec
    price: float
    """Per accelerator and hour."""
    file: SimulatedFile | None = None
    """The deployment, where a file describes it."""

    def cost(self, outcome: ReplayOutcome) -> float | None:
        """None where a pool's price is not known."""
        if self.file is None:
            return outcome.gpu_hours * self.price
        costs = [cost for cost in self.file.costs(outcome).values() if cost is not None]
        return sum(costs) if len(costs) == len(outcome.hours) else None


def document(outcome: ReplayOutcome, run: SimulatedRun) -> dict[str, object]:
    """The replay as JSON fields."""
    costs = {} if run.file is None else run.file.costs(outcome)
    types = [
        {
            "pool": role.value,
            "type": name,
            "gpu_hours": round(outcome.hours[role, name], 4),
            "cost": _rounded(cost),
            "there_s": presence(outcome, role, name, run.workload.duration_s),
        }
        for (role, name), cost in costs.items()
        if name
    ]
    return {
        "policy": outcome.policy,
        "requests": outcome.requests,
        "slo_attainment": round(outcome.slo_attainment, 6),
        "ttft_attainment": round(outcome.ttft_attainment, 6),
        "tpot_attainment": round(outcome.tpot_attainment, 6),
        "gpu_hours": round(outcome.gpu_hours, 4),
        "cost": _rounded(run.cost(outcome)),
        "goodput_per_gpu": round(outcome.goodput_per_gpu, 5),
        "rejected": outcome.rejected,
        "retries": outcome.retries,
        "decisions": [
            {"at_s": move.at_s, "pool": move.role.value, "from": move.before, "to": move.after, "reason": move.reason}
            | ({} if move.type is None else {"type": move.type})
            for move in outcome.decisions
        ],
    } | ({"types": types} if types else {})


def table(outcome: ReplayOutcome, run: SimulatedRun) -> str:
    """The replay of one policy as text."""
    targets, priced = run.spec.targets, "--price" if run.file is None else "costPerHour"
    lines = [
        f"{outcome.requests} requests over {run.workload.duration_s:.0f} s, policy {outcome.policy}",
        f"  within both targets   {outcome.slo_attainment:8.2%}",
        f"  TTFT ≤ {targets.ttft_s * 1000:5.0f} ms       {outcome.ttft_attainment:8.2%}   {_spread(outcome.ttft_s)}",
        f"  TPOT ≤ {targets.tpot_s * 1000:5.0f} ms       {outcome.tpot_attainment:8.2%}   {_spread(outcome.tpot_s)}",
        f"  GPU-hours             {outcome.gpu_hours:8.2f}   cost {_money(run.cost(outcome))} ({priced})",
        *(types_table(outcome, run.file, run.workload.duration_s) if run.file and outcome.policy == "slo" else ()),
        f"  goodput per GPU       {outcome.goodput_per_gpu:8.3f} req/s",
        f"  rejected, retried     {outcome.rejected:5d} {outcome.retries:5d}",
        f"{len(outcome.decisions)} changes of a pool",
    ]
    for move in outcome.decisions[:SHOWN_DECISIONS]:
        lines.append(f"  {move.at_s:6.0f} s  {move.reason or f'{move.role.value} {move.before}→{move.after}'}")
    if len(outcome.decisions) > SHOWN_DECISIONS:
        lines.append(f"  … and {len(outcome.decisions) - SHOWN_DECISIONS} more (--json has all)")
    return "\n".join(lines)


def comparison(outcomes: list[ReplayOutcome], run: SimulatedRun) -> str:
    """The replays of several policies, a line each."""
    targets = run.spec.targets
    wide = max(len("policy"), *(len(outcome.policy) for outcome in outcomes))
    lines = [
        f"{outcomes[0].requests} requests over {run.workload.duration_s:.0f} s",
        f"{'policy':<{wide}} {'both':>8} {f'TTFT {targets.ttft_s * 1000:.0f} ms':>13} "
        f"{f'TPOT {targets.tpot_s * 1000:.0f} ms':>13} {'GPU-hours':>10} {'cost':>9} {'changes':>8}",
    ]
    for outcome in outcomes:
        shares = f"{outcome.slo_attainment:8.2%} {outcome.ttft_attainment:13.2%} {outcome.tpot_attainment:13.2%}"
        cost = f"{outcome.gpu_hours:10.2f} {_money(run.cost(outcome)):>9}"
        lines.append(f"{outcome.policy:<{wide}} {shares} {cost} {len(outcome.decisions):8d}")
    return "\n".join(lines)


def _money(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.2f}"


def _rounded(cost: float | None) -> float | None:
    return None if cost is None else round(cost, 4)


def _spread(latencies_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    ended = latencies_s[np.isfinite(latencies_s)]
    if not len(ended):
        return "none ended"
    low, middle, high = (float(value) * 1000 for value in np.percentile(ended, (50, 95, 99)))
    return f"p50 {low:.0f}  p95 {middle:.0f}  p99 {high:.0f} ms"


def types_table(outcome: ReplayOutcome, file: SimulatedFile, end_s: float) -> list[str]:
    """A line for each pool and type that ran."""
    costs = file.costs(outcome)
    lines = [f"  {'on':<22}{'GPU-hours':>10}{'cost':>10}   there from … to, s"]
    for (role, name), hours in outcome.hours.items():
        spans = ", ".join(f"{start:.0f} … {end:.0f}" for start, end in presence(outcome, role, name, end_s))
        lines.append(f"  {f'{role.value} {name}':<22}{hours:10.2f}{_money(costs[role, name]):>10}   {spans}")
    return lines


def presence(outcome: ReplayOutcome, role: Role, name: str, end_s: float) -> list[tuple[float, float]]:
    """(from, to) in seconds, when the pool had any worker of that type."""
    spans: list[tuple[float, float]] = []
    begun_s: float | None = None
    last_s = 0.0
    for point in outcome.points:
        is_there = bool(point.kinds.get((role, name)))
        if is_there and begun_s is None:
            begun_s = last_s if not spans and last_s == 0.0 else point.at_s
        if not is_there and begun_s is not None:
            spans.append((begun_s, point.at_s))
            begun_s = None
        last_s = point.at_s
    return spans if begun_s is None else [*spans, (begun_s, end_s)]
