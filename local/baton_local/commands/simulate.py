"""`baton simulate`: replays a load against the digital twin under a scaling policy: what was met at what cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from baton_control.sizing.capacity import Targets, TwinSizer
from baton_control.sizing.roofline import worker_model
from baton_control.sizing.spec import Bounds, SizingSpec
from baton_control.sizing.worker_model import WorkerModel
from baton_control.sizing.workload import Workload
from baton_local.argument_types import seconds
from baton_local.commands.plan import accelerator_named, add_model_options, shape_named
from baton_local.errors import StartError
from baton_simulate.policies import POLICIES, mix_of, needs_of, player
from baton_simulate.replay import ReplayOutcome, Scenario, replay
from baton_simulate.synthetic import Shape, synthetic
from baton_simulate.trace_files import read_trace
from baton_wire.messages.values import POOL_ROLES, Role

SHOWN_DECISIONS = 40


@dataclass(frozen=True, slots=True)
class _Run:
    workload: Workload
    model: WorkerModel
    spec: SizingSpec


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton simulate`."""
    add_model_options(parser)
    load = parser.add_argument_group("load")
    load.add_argument(
        "--trace", type=Path, metavar="FILE", help="Azure CSV, Mooncake JSONL, or arrival_s,prompt_tokens,…"
    )
    load.add_argument("--rate", type=float, default=10.0, metavar="R", help="highest requests per second, synthetic")
    load.add_argument("--shape", type=Shape, choices=list(Shape), default=Shape.DIURNAL, help="of the synthetic load")
    load.add_argument("--duration", type=seconds, default=1800.0, metavar="TIME", help="of the synthetic load")
    load.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="X times as many requests")
    load.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="the same requests over X times the time"
    )
    load.add_argument("--seed", type=int, default=1)
    goal = parser.add_argument_group("goal")
    goal.add_argument("--ttft", type=seconds, default=0.5, metavar="TIME", help="target, such as 500ms")
    goal.add_argument("--tpot", type=seconds, default=0.025, metavar="TIME", help="target, such as 25ms")
    goal.add_argument("--percentile", type=float, default=95.0, metavar="P")
    pools = parser.add_argument_group("pools")
    pools.add_argument("--policy", choices=POLICIES, default="slo")
    pools.add_argument("--startup-s", type=float, default=120.0, metavar="S", help="until a new worker is routable")
    pools.add_argument("--max-workers", type=int, default=64, metavar="N", help="of each pool")
    pools.add_argument("--max-accelerators", type=int, metavar="N", help="budget of both pools")
    faults = parser.add_argument_group("faults")
    faults.add_argument("--metrics-lost", type=_span, action="append", default=[], metavar="FROM-TO", help="seconds")
    faults.add_argument("--worker-dies", type=_death, action="append", default=[], metavar="ROLE@S")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="for programs")
    output.add_argument("--plot", type=Path, metavar="FILE", help="timeline as .png or .svg (needs the extra `plot`)")
    output.add_argument(
        "--what-if", action="store_true", help="workers for other targets and loads instead of a replay"
    )


def run_simulate(options: argparse.Namespace) -> int:
    """The command; raises StartError and ManifestError for what cannot be simulated."""
    run = _run_of(options)
    if options.what_if:
        _print_what_if(run)
        return 0
    needs = needs_of(run.workload, run.spec, TwinSizer(run.model, run.spec.targets))
    scenario = Scenario(
        run.workload.name,
        run.workload,
        run.model,
        run.spec,
        options.startup_s,
        needs.between(0.0, 30.0),
        tuple(options.metrics_lost),
        tuple(options.worker_dies),
        options.seed,
    )
    policy = player(options.policy, run.spec, run.model, needs, options.startup_s)
    outcome = replay(scenario, options.policy, policy, _progress(not options.json))
    print(json.dumps(_document(outcome)) if options.json else _table(outcome, run))
    if options.plot:
        _draw(options.plot, run, outcome)
    return 0


def _run_of(options: argparse.Namespace) -> _Run:
    random = np.random.default_rng(options.seed)
    shape = shape_named(options.model)
    model = worker_model(shape, accelerator_named(options.accelerator), options.tensor_parallel)
    model = replace(model, max_step_tokens=options.max_step_tokens)
    if not 50.0 <= options.percentile < 100.0:
        raise StartError(f"--percentile: {options.percentile} is not allowed: must be from 50 to under 100")
    if not (0.0 < options.rate <= 5000.0 and 0.0 < options.rate_scale <= 1000.0 and 0.0 < options.time_scale <= 1000.0):
        raise StartError("--rate, --rate-scale and --time-scale must be over 0 and at most 5000, 1000 and 1000")
    if options.trace:
        workload = _trace(options.trace)
    else:
        workload = synthetic(options.shape, options.rate, options.duration, random)
    if options.time_scale != 1.0:
        workload = workload.time_scaled(options.time_scale)
    if options.rate_scale != 1.0:
        workload = workload.rate_scaled(options.rate_scale, random)
    if len(workload) < 2 or workload.duration_s <= 0:
        raise StartError("the load has fewer than two requests")
    share = options.percentile / 100.0
    bounds = Bounds(1, options.max_workers, options.tensor_parallel)
    targets = Targets(options.ttft, options.tpot, share, share)
    return _Run(workload, model, SizingSpec(bounds, bounds, targets, options.max_accelerators))


def _trace(path: Path) -> Workload:
    try:
        return read_trace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--trace: {path} cannot be read: {error}") from error


def _progress(shown: bool) -> Callable[[float], None] | None:
    if not shown or not sys.stderr.isatty():
        return None

    def show(part: float) -> None:
        done = int(part * 40)
        end = "\r" if part < 1 else "\n"
        print(f"  [{'#' * done}{'.' * (40 - done)}] {part:4.0%}", end=end, file=sys.stderr, flush=True)

    return show


def _document(outcome: ReplayOutcome) -> dict[str, object]:
    return {
        "policy": outcome.policy,
        "requests": outcome.requests,
        "slo_attainment": round(outcome.slo_attainment, 6),
        "ttft_attainment": round(outcome.ttft_attainment, 6),
        "tpot_attainment": round(outcome.tpot_attainment, 6),
        "gpu_hours": round(outcome.gpu_hours, 4),
        "goodput_per_gpu": round(outcome.goodput_per_gpu, 5),
        "rejected": outcome.rejected,
        "retries": outcome.retries,
        "decisions": [
            {"at_s": move.at_s, "pool": move.role.value, "from": move.before, "to": move.after, "reason": move.reason}
            for move in outcome.decisions
        ],
    }


def _table(outcome: ReplayOutcome, run: _Run) -> str:
    targets = run.spec.targets
    lines = [
        f"{outcome.requests} requests over {run.workload.duration_s:.0f} s, policy {outcome.policy}",
        f"  within both targets   {outcome.slo_attainment:8.2%}",
        f"  TTFT ≤ {targets.ttft_s * 1000:5.0f} ms       {outcome.ttft_attainment:8.2%}   {_spread(outcome.ttft_s)}",
        f"  TPOT ≤ {targets.tpot_s * 1000:5.0f} ms       {outcome.tpot_attainment:8.2%}   {_spread(outcome.tpot_s)}",
        f"  GPU-hours             {outcome.gpu_hours:8.2f}",
        f"  goodput per GPU       {outcome.goodput_per_gpu:8.3f} req/s",
        f"  rejected, retried     {outcome.rejected:5d} {outcome.retries:5d}",
        f"{len(outcome.decisions)} changes of a pool",
    ]
    for move in outcome.decisions[:SHOWN_DECISIONS]:
        lines.append(f"  {move.at_s:6.0f} s  {move.reason or f'{move.role.value} {move.before}→{move.after}'}")
    if len(outcome.decisions) > SHOWN_DECISIONS:
        lines.append(f"  … and {len(outcome.decisions) - SHOWN_DECISIONS} more (--json has all)")
    return "\n".join(lines)


def _spread(latencies_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    ended = latencies_s[np.isfinite(latencies_s)]
    if not len(ended):
        return "none ended"
    low, middle, high = (float(value) * 1000 for value in np.percentile(ended, (50, 95, 99)))
    return f"p50 {low:.0f}  p95 {middle:.0f}  p99 {high:.0f} ms"


def _print_what_if(run: _Run) -> None:
    mix = mix_of(run.workload)
    mean_rate = len(run.workload) / run.workload.duration_s
    print(f"workers (prefill + decode) and GPUs at {mean_rate:.3g} req/s and multiples of it, steady")
    print(f"{'TTFT':>8} {'TPOT':>8} " + " ".join(f"{f'{scale:g}x':>14}" for scale in (0.5, 1, 2, 4)))
    base = run.spec.targets
    for ttft, tpot in ((0.5, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (2.0, 2.0)):
        targets = replace(base, ttft_s=base.ttft_s * ttft, tpot_s=base.tpot_s * tpot)
        sizer = TwinSizer(run.model, targets)
        cells = []
        for scale in (0.5, 1.0, 2.0, 4.0):
            sizes = {role: sizer.required(role, mix, mean_rate * scale) for role in POOL_ROLES}
            cells.append(_cell(sizes, run, sizer.reachable_share(Role.DECODE, mix) > 0))
        print(
            f"{targets.ttft_s * 1000:6.0f}ms {targets.tpot_s * 1000:6.1f}ms "
            + " ".join(f"{cell:>14}" for cell in cells)
        )


def _cell(sizes: dict[Role, int], run: _Run, is_reachable: bool) -> str:
    gpus = sum(sizes[role] * run.spec.bounds_of[role].accelerators for role in POOL_ROLES)
    if not is_reachable:
        return "unreachable"
    mark = "!" if run.spec.max_accelerators is not None and gpus > run.spec.max_accelerators else ""
    return f"{sizes[Role.PREFILL]}+{sizes[Role.DECODE]}={gpus}{mark}"


def _draw(path: Path, run: _Run, outcome: ReplayOutcome) -> None:
    if path.suffix not in {".png", ".svg"}:
        raise StartError(f"--plot: {path.name} is not allowed: must end in .png or .svg")
    try:
        from baton_local.timeline import draw_timeline
    except ImportError as error:
        raise StartError("--plot needs matplotlib: pip install 'baton-serving[plot]'") from error
    draw_timeline(path, run.workload, run.spec, outcome)


def _span(text: str) -> tuple[float, float]:
    try:
        start, end = (float(part) for part in text.split("-"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be FROM-TO in seconds") from error
    return start, end


def _death(text: str) -> tuple[float, Role]:
    role, _, at = text.partition("@")
    try:
        return float(at), {"prefill": Role.PREFILL, "decode": Role.DECODE}[role]
    except (ValueError, KeyError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be prefill@S or decode@S") from error
