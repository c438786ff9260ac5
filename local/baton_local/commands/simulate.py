"""`baton simulate`: replays a load against the digital twin under a scaling policy: what was met at what cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from baton_control.sizing.capacity import TwinSizer
from baton_control.sizing.roofline import worker_model
from baton_control.sizing.spec import Bounds, SizingSpec, Targets
from baton_control.sizing.worker_model import WorkerModel
from baton_control.sizing.workload import Workload
from baton_local.argument_types import seconds, some_seconds
from baton_local.commands.plan import accelerator_named, add_model_options, shape_named
from baton_local.errors import StartError
from baton_simulate.policies import KNOWING, POLICIES, fixed_sizes, mix_of, needs_of, player
from baton_simulate.replay import ReplayOutcome, Scenario, replay
from baton_simulate.synthetic import Shape, synthetic
from baton_simulate.trace_files import read_trace
from baton_wire.messages.values import POOL_ROLES, Role

SHOWN_DECISIONS = 40
FIRST_S = 300.0
"""Of a load, what the first sizes of the pools are taken from."""


@dataclass(frozen=True, slots=True)
class _Run:
    workload: Workload
    model: WorkerModel
    spec: SizingSpec
    price: float
    """Of an accelerator and hour."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `baton simulate`."""
    add_model_options(parser)
    load = parser.add_argument_group("load")
    load.add_argument(
        "--trace", type=Path, metavar="FILE", help="Azure CSV, Mooncake JSONL, or arrival_s,prompt_tokens,…"
    )
    load.add_argument("--rate", type=float, default=10.0, metavar="R", help="highest requests per second, synthetic")
    load.add_argument("--shape", type=Shape, choices=list(Shape), default=Shape.DIURNAL, help="of the synthetic load")
    load.add_argument("--duration", type=some_seconds, default=1800.0, metavar="TIME", help="of the synthetic load")
    load.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="X times as many requests")
    load.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="the same requests over X times the time"
    )
    load.add_argument("--seed", type=int, default=1)
    goal = parser.add_argument_group("goal")
    goal.add_argument("--ttft", type=some_seconds, default=0.5, metavar="TIME", help="target, such as 500ms")
    goal.add_argument("--tpot", type=some_seconds, default=0.025, metavar="TIME", help="target, such as 25ms")
    goal.add_argument("--percentile", type=float, default=95.0, metavar="P")
    pools = parser.add_argument_group("pools")
    pools.add_argument(
        "--policy",
        default="slo",
        metavar="NAME,…",
        help=f"{', '.join(POLICIES)}, or a fixed pool such as 3+2; several are compared",
    )
    pools.add_argument("--startup-s", type=float, default=120.0, metavar="S", help="until a new worker is routable")
    pools.add_argument("--flip-time", type=seconds, metavar="TIME", help="until a worker serves in the other pool")
    pools.add_argument("--max-workers", type=int, default=64, metavar="N", help="of each pool")
    pools.add_argument("--max-accelerators", type=int, metavar="N", help="budget of both pools")
    pools.add_argument("--price", type=float, metavar="X", help="of an accelerator and hour")
    sleep = pools.add_mutually_exclusive_group()
    sleep.add_argument("--sleep-after", type=some_seconds, metavar="TIME", help="without requests; mode SLO alone")
    sleep.add_argument("--cost-of-miss", type=float, metavar="X", help="of a late request: mode SLO sleeps by cost")
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
    outcomes = _replayed(options, run)
    if options.json:
        documents = [_document(outcome, run.price) for outcome in outcomes]
        print(json.dumps(documents[0] if len(documents) == 1 else {"policies": documents}))
    else:
        print(_table(outcomes[0], run) if len(outcomes) == 1 else _comparison(outcomes, run))
    if options.plot:
        _draw(options.plot, run, outcomes)
    return 0


def _replayed(options: argparse.Namespace, run: _Run) -> list[ReplayOutcome]:
    """Each policy over the same load, from the same first sizes; a fixed pool from its own."""
    policies = _policies(options.policy)
    sizer = TwinSizer(run.model, run.spec.targets)
    # What a whole load needs takes longer to find than a replay, so only who knows the future is told.
    knows = any(name in KNOWING for name in policies)
    beginning = run.workload.between(0.0, FIRST_S)
    is_enough = len(beginning) > 1 and beginning.duration_s > 0
    needs = needs_of(beginning if is_enough and not knows else run.workload, run.spec, sizer)
    outcomes = []
    for name in policies:
        scenario = Scenario(
            run.workload.name,
            run.workload,
            run.model,
            run.spec,
            options.startup_s,
            fixed_sizes(name) or needs.between(0.0, 30.0),
            tuple(options.metrics_lost),
            tuple(options.worker_dies),
            options.seed,
        )
        spec = run.spec if name == "slo" else _awake(run.spec)
        policy = player(name, spec, run.model, needs, options.startup_s)
        outcomes.append(replay(scenario, name, policy, _progress(not options.json)))
    return outcomes


def _awake(spec: SizingSpec) -> SizingSpec:
    """Rules of others have no quiet time: they keep a worker in each pool."""
    pools = {role: replace(bounds, minimum=max(1, bounds.minimum)) for role, bounds in spec.bounds_of.items()}
    return replace(spec, prefill=pools[Role.PREFILL], decode=pools[Role.DECODE])


def _run_of(options: argparse.Namespace) -> _Run:
    random = np.random.default_rng(options.seed)
    shape = shape_named(options.model)
    accelerator = accelerator_named(options.accelerator)
    model = worker_model(shape, accelerator, options.tensor_parallel)
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
    targets = Targets(options.ttft, options.tpot, share, share)
    price = accelerator.cost_per_hour if options.price is None else options.price
    miss = options.cost_of_miss
    for name, value in (("--price", price), ("--cost-of-miss", miss)):
        if value is not None and not 0.0 <= value < 1e6:
            raise StartError(f"{name}: {value} is not allowed: must be from 0 to under 1000000")
    least = 1 if miss is None and options.sleep_after is None else 0
    bounds = Bounds(least, options.max_workers, options.tensor_parallel, price * options.tensor_parallel)
    spec = SizingSpec(
        bounds, bounds, targets, options.max_accelerators, options.sleep_after, miss, flip_s=options.flip_time
    )
    return _Run(workload, model, spec, price)


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


def _document(outcome: ReplayOutcome, price: float) -> dict[str, object]:
    return {
        "policy": outcome.policy,
        "requests": outcome.requests,
        "slo_attainment": round(outcome.slo_attainment, 6),
        "ttft_attainment": round(outcome.ttft_attainment, 6),
        "tpot_attainment": round(outcome.tpot_attainment, 6),
        "gpu_hours": round(outcome.gpu_hours, 4),
        "cost": round(outcome.gpu_hours * price, 4),
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
        f"  GPU-hours             {outcome.gpu_hours:8.2f}   cost {outcome.gpu_hours * run.price:.2f} (--price)",
        f"  goodput per GPU       {outcome.goodput_per_gpu:8.3f} req/s",
        f"  rejected, retried     {outcome.rejected:5d} {outcome.retries:5d}",
        f"{len(outcome.decisions)} changes of a pool",
    ]
    for move in outcome.decisions[:SHOWN_DECISIONS]:
        lines.append(f"  {move.at_s:6.0f} s  {move.reason or f'{move.role.value} {move.before}→{move.after}'}")
    if len(outcome.decisions) > SHOWN_DECISIONS:
        lines.append(f"  … and {len(outcome.decisions) - SHOWN_DECISIONS} more (--json has all)")
    return "\n".join(lines)


def _comparison(outcomes: list[ReplayOutcome], run: _Run) -> str:
    targets = run.spec.targets
    wide = max(len("policy"), *(len(outcome.policy) for outcome in outcomes))
    lines = [
        f"{outcomes[0].requests} requests over {run.workload.duration_s:.0f} s",
        f"{'policy':<{wide}} {'both':>8} {f'TTFT {targets.ttft_s * 1000:.0f} ms':>13} "
        f"{f'TPOT {targets.tpot_s * 1000:.0f} ms':>13} {'GPU-hours':>10} {'cost':>9} {'changes':>8}",
    ]
    for each in outcomes:
        shares = f"{each.slo_attainment:8.2%} {each.ttft_attainment:13.2%} {each.tpot_attainment:13.2%}"
        cost = f"{each.gpu_hours:10.2f} {each.gpu_hours * run.price:9.2f}"
        lines.append(f"{each.policy:<{wide}} {shares} {cost} {len(each.decisions):8d}")
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


def _draw(path: Path, run: _Run, outcomes: list[ReplayOutcome]) -> None:
    if path.suffix not in {".png", ".svg"}:
        raise StartError(f"--plot: {path.name} is not allowed: must end in .png or .svg")
    try:
        from baton_local.timeline import draw_comparison, draw_timeline
    except ImportError as error:
        raise StartError("--plot needs matplotlib: pip install 'baton-serving[plot]'") from error
    if len(outcomes) == 1:
        draw_timeline(path, run.workload, run.spec, outcomes[0])
    else:
        draw_comparison(path, run.workload, run.spec, outcomes, run.price)


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in POLICIES and fixed_sizes(name) is None:
            allowed = f"must be of {', '.join(POLICIES)}, or a fixed pool such as 3+2"
            raise StartError(f"--policy: {name!r} is not allowed: {allowed}")
    return names


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
