"""The figures of a paced run, those of the simulator for the same arrivals, and both in one picture."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.results import shrink_plot

from baton_control.sizing.decision.sizing_state import fresh
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec, Targets
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_control.sizing.simulator.simulator import Simulator
from baton_local.client import Answer
from baton_local.fleet.emulation import Emulation
from baton_simulate.policies import Slo
from baton_simulate.replay import Scenario
from baton_simulate.replay import replay as replay_policy
from baton_wire.messages.values import POOL_ROLES, Role

PERCENTS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Sample:
    """The pools at one moment of the real run."""

    at_s: float
    wanted: dict[str, int]
    ready: dict[str, int]
    load: float
    """The load of the machine, 1 min average."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """The figures of the simulator."""

    ttft_s: Floats
    tpot_s: Floats
    pools: tuple[tuple[float, int, int], ...]
    """(when, prefill, decode) routable"""
    summary: dict[str, object]


def shares(ttft_s: Floats, tpot_s: Floats, ttft_limit_s: float, tpot_limit_s: float) -> dict[str, object]:
    """Attainment and percentiles; what never came is infinite and outside every target."""
    first, tpot_met = ttft_s <= ttft_limit_s, tpot_s <= tpot_limit_s
    result: dict[str, object] = {
        "requests": len(ttft_s),
        "slo_attainment": round(float(np.mean(first & tpot_met)), 4),
        "ttft_attainment": round(float(np.mean(first)), 4),
        "tpot_attainment": round(float(np.mean(tpot_met)), 4),
    }
    for name, values in (("ttft", ttft_s), ("tpot", tpot_s)):
        known = values[np.isfinite(values)]
        for percent in PERCENTS:
            result[f"{name}_p{percent}_ms"] = (
                round(1e3 * float(np.percentile(known, percent)), 1) if len(known) else None
            )
    return result


def report(ttft_s: float, tpot_s: float, answers: Sequence[Answer], samples: Sequence[Sample]) -> dict[str, object]:
    """The run as its clients saw it, and what its pools did."""
    ttft, tpot = measured_latencies(answers)
    failures: dict[str, int] = {}
    for answer in answers:
        if answer.failure:
            failures[answer.failure] = failures.get(answer.failure, 0) + 1
    late = [answer.sent_s - answer.due_s for answer in answers]
    busy = {role.value: [sample.ready[role.value] for sample in samples] for role in POOL_ROLES}
    return {
        "measured": shares(ttft, tpot, ttft_s, tpot_s),
        "failures": failures,
        "client_late_p99_ms": round(1e3 * float(np.percentile(late, 99)), 1),
        "machine_load": [round(min(s.load for s in samples), 1), round(max(s.load for s in samples), 1)],
        "workers": {role: [min(counts), max(counts)] for role, counts in busy.items()},
        "worker_hours": round(_worker_hours(samples), 3),
        "pools": [
            [
                round(s.at_s),
                *(s.wanted[role.value] for role in POOL_ROLES),
                *(s.ready[role.value] for role in POOL_ROLES),
            ]
            for s in samples[::15]
        ],
    }


def prediction(
    workload: Workload,
    emulation: Emulation,
    samples: Sequence[Sample],
    ttft_s: float,
    tpot_s: float,
    most: int,
    startup_s: float,
) -> dict[str, Predicted]:
    """`same pools`: the simulator's latencies on the pools as they really were; `closed loop`: its own decisions
    too."""
    simulator = Simulator(emulation.model, workload, ttft_s=ttft_s)
    points = []
    for role in POOL_ROLES:
        for _ in range(samples[0].ready[role.value]):
            simulator.add(role, 0.0)
    for sample in samples:
        simulator.run_until(max(simulator.now, sample.at_s))
        for role in POOL_ROLES:
            missing = sample.ready[role.value] - simulator.workers(role)
            for _ in range(missing):
                simulator.add(role, simulator.now)
            for _ in range(-missing):
                simulator.remove(role)
        points.append((sample.at_s, simulator.routable(Role.PREFILL), simulator.routable(Role.DECODE)))
    simulator.run_out()
    ttft, tpot = simulator.latencies()
    same = Predicted(ttft, tpot, tuple(points), shares(ttft, tpot, ttft_s, tpot_s))
    bounds, targets = Bounds(1, most), Targets(ttft_s, tpot_s)
    spec = SizingSpec(bounds, bounds, targets)
    initial = {role: 1 for role in POOL_ROLES}
    scenario = Scenario("paced", workload, emulation.model, spec, startup_s, initial)
    outcome = replay_policy(scenario, "slo", Slo(spec, fresh(emulation.model, spec)))
    closed = Predicted(
        outcome.ttft_s,
        outcome.tpot_s,
        tuple((point.at_s, *point.routable) for point in outcome.points),
        {**shares(outcome.ttft_s, outcome.tpot_s, ttft_s, tpot_s), "worker_hours": round(outcome.gpu_hours, 3)},
    )
    return {"same pools": same, "closed loop": closed}


def write_plot(
    path: Path,
    answers: Sequence[Answer],
    samples: Sequence[Sample],
    predictions: Mapping[str, Predicted],
    ttft_s: float,
    tpot_s: float,
) -> None:
    """Arrivals, pools, TTFT and TPOT over time, and the measured and the predicted distributions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), layout="constrained")
    due = np.array([answer.due_s for answer in answers])
    due -= due.min()
    counts, edges = np.histogram(due, np.arange(0, due.max() + 30, 30))
    top, ttft_axes, tpot_axes, times = axes[0, 0], axes[0, 1], axes[1, 1], axes[1, 0]
    top.stairs(counts / 30, edges, color="grey", label="arrivals, req/s")
    for role, colour in zip(POOL_ROLES, ("tab:blue", "tab:orange"), strict=True):
        at = [sample.at_s for sample in samples]
        top.step(at, [sample.ready[role.value] for sample in samples], color=colour, label=f"{role.value}, ready")
        top.step(at, [sample.wanted[role.value] for sample in samples], color=colour, ls=":", lw=1)
    top.legend(fontsize=7)
    ttft, tpot = measured_latencies(answers)
    times.plot(due, np.minimum(ttft, 10 * ttft_s), ".", ms=2, color="tab:green", label="TTFT, s")
    times.axhline(ttft_s, color="tab:red", lw=0.8)
    times.set_yscale("log")
    times.legend(fontsize=7)
    for panel, values, limit, name in ((ttft_axes, ttft, ttft_s, "ttft_s"), (tpot_axes, tpot, tpot_s, "tpot_s")):
        _ecdf(panel, values, "measured", "black")
        for (label, predicted), colour in zip(predictions.items(), ("tab:purple", "tab:cyan"), strict=True):
            _ecdf(panel, getattr(predicted, name), f"simulator, {label}", colour)
        panel.axvline(limit, color="tab:red", lw=0.8)
        panel.set_xlabel(name.replace("_", ", "))
        panel.set_xlim(0, 2 * limit)
        panel.legend(fontsize=7)
    figure.suptitle("emulated workers, real everything else", fontsize=9)
    figure.savefig(path, dpi=75)
    shrink_plot(path)


def _ecdf(panel: object, values: Floats, label: str, colour: str) -> None:
    ordered = np.sort(values[np.isfinite(values)])
    panel.plot(ordered, np.arange(1, len(ordered) + 1) / len(values), label=label, color=colour, lw=1)  # type: ignore[attr-defined]


def measured_latencies(answers: Sequence[Answer]) -> tuple[Floats, Floats]:
    return (
        np.array([answer.ttft_s for answer in answers], dtype=np.float64),
        np.array([answer.tpot_s for answer in answers], dtype=np.float64),
    )


def _worker_hours(samples: Sequence[Sample]) -> float:
    """From what was wanted: a worker is paid for from its start."""
    total = 0.0
    for before, after in itertools.pairwise(samples):
        total += sum(before.wanted.values()) * (after.at_s - before.at_s)
    return total / 3600
