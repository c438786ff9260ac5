"""`baton simulate`: replays a load in the simulator under a scaling policy, and reports attainment and cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from baton_control.rollout import Limits
from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec, Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_local.argument_types import seconds, some_seconds, time_or
from baton_local.command_parser import add_renamed
from baton_local.commands.plan import add_model_options
from baton_local.commands.session_options import add_session_options, add_shape_options
from baton_local.commands.simulated_file import read_simulated
from baton_local.commands.simulated_report import SimulatedRun, comparison, document, table
from baton_local.commands.simulated_sessions import ROUTINGS, run_sessions
from baton_local.commands.what_if import what_if
from baton_local.errors import StartError
from baton_local.hardware_arguments import accelerator_named, shape_named
from baton_simulate.policies import KNOWING, POLICIES, fixed_sizes, needs_of, player
from baton_simulate.replay import ReplayOutcome, Scenario, replay
from baton_simulate.synthetic import Shape, synthetic
from baton_simulate.trace_files import read_trace
from baton_wire.messages.values import Role

USUAL: Mapping[str, object] = {
    "model": "llama-3.1-8b",
    "accelerator": "h200",
    "tensor_parallel": 1,
    "max_step_tokens": 4096,
    "ttft": 0.5,
    "tpot": 0.025,
    "percentile": 95.0,
    "max_workers": 64,
    "max_accelerators": None,
    "price": None,
    "sleep_after": None,
    "flip_time": None,
}
"""Options that an LLMDeployment sets, with their defaults without one."""
DURATION_S = 1800.0
"""Seconds of a synthetic load."""
FIRST_S = 300.0
"""The beginning of a load, from which the first sizes of the pools are taken."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `baton simulate`."""
    parser.add_argument(
        "-f",
        "--file",
        type=Path,
        metavar="FILE",
        help="manifest of an LLMDeployment that sets model, accelerators, targets, pools and prices",
    )
    add_model_options(parser)
    load = parser.add_argument_group("load")
    load.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="trace to replay: Azure CSV, Mooncake JSONL, or CSV with arrival_s,prompt_tokens,…",
    )
    load.add_argument(
        "--rate", type=float, default=10.0, metavar="R", help="highest rate of a synthetic load, in requests per second"
    )
    load.add_argument(
        "--shape", type=Shape, choices=list(Shape), default=Shape.DIURNAL, help="shape of a synthetic load"
    )
    load.add_argument(
        "--duration",
        type=some_seconds,
        metavar="TIME",
        help="length of a synthetic load (default: 30m) or of sessions (default: until they end)",
    )
    load.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="factor for the number of requests")
    load.add_argument("--time-scale", type=float, default=1.0, metavar="X", help="factor for the time between requests")
    load.add_argument("--seed", type=int, default=1, metavar="N", help="seed of a synthetic load and of the policies")
    add_session_options(parser).add_argument(
        "--routing",
        default="baton",
        metavar="NAME,…",
        help=f"how turns find their workers: {', '.join(ROUTINGS)} (default: baton); several are compared",
    )
    add_shape_options(parser)
    goal = parser.add_argument_group("goal")
    goal.add_argument("--ttft", type=some_seconds, metavar="TIME", help="TTFT target (default: 500ms)")
    goal.add_argument("--tpot", type=some_seconds, metavar="TIME", help="TPOT target (default: 25ms)")
    goal.add_argument("--percentile", type=float, metavar="P", help="percentile of both targets (default: 95)")
    pools = parser.add_argument_group("pools")
    pools.add_argument(
        "--policy",
        default="slo",
        metavar="NAME,…",
        help=f"{', '.join(POLICIES)}, or a fixed pool such as 3+2; several are compared",
    )
    pools.add_argument(
        "--startup-time", type=some_seconds, default="2m", metavar="TIME", help="time until a new worker is routable"
    )
    add_renamed(pools, "--startup-s", "--startup-time", type=time_or("s"))
    pools.add_argument(
        "--flip-time", type=seconds, metavar="TIME", help="time in which a worker changes its pool (default: no flips)"
    )
    pools.add_argument("--max-workers", type=int, metavar="N", help="maximum workers of each pool (default: 64)")
    pools.add_argument("--max-accelerators", type=int, metavar="N", help="maximum accelerators of both pools together")
    pools.add_argument("--price", type=float, metavar="X", help="price of one accelerator for an hour")
    pools.add_argument(
        "--sleep-after",
        type=some_seconds,
        metavar="TIME",
        help="time without requests after which pools scale to zero (policy slo)",
    )
    faults = parser.add_argument_group("faults")
    faults.add_argument(
        "--metrics-lost",
        type=_span,
        action="append",
        default=[],
        metavar="FROM-TO",
        help="time span without metrics, after the start of the load, such as 1m-90s",
    )
    faults.add_argument(
        "--worker-dies",
        type=_death,
        action="append",
        default=[],
        metavar="ROLE@TIME",
        help="a worker of the role prefill or decode dies at that time",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--plot", type=Path, metavar="FILE", help="timeline as .png or .svg (needs the extra `plot`)")
    output.add_argument(
        "--what-if", action="store_true", help="print the workers that other targets and loads need instead of a replay"
    )
    parser.set_defaults(**dict.fromkeys(USUAL))


def run_simulate(options: argparse.Namespace) -> int:
    """Run the command; raises StartError and ManifestError for a load or file that cannot be simulated."""
    if options.sessions is not None:
        model = _model_of(options)
        return run_sessions(options, model, _spec_of(options))
    run = _run_of_file(options) if options.file is not None else _run_of(options)
    if options.what_if:
        print(what_if(run))
        return 0
    outcomes = _replayed(options, run)
    if options.json:
        documents = [document(outcome, run) for outcome in outcomes]
        print(json.dumps(documents[0] if len(documents) == 1 else {"policies": documents}))
    else:
        print(table(outcomes[0], run) if len(outcomes) == 1 else comparison(outcomes, run))
    if options.plot:
        _draw(options.plot, run, outcomes)
    return 0


def _replayed(options: argparse.Namespace, run: SimulatedRun) -> list[ReplayOutcome]:
    """Each policy over the same load, from the same first sizes; a fixed pool from its own."""
    policies = _policies(options.policy)
    sizer = SimulatedSizer(run.model, run.spec.targets)
    # Finding what a whole load needs takes longer than a replay, so only policies that know the future get it.
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
            options.startup_time,
            fixed_sizes(name) or needs.between(0.0, 30.0),
            tuple(options.metrics_lost),
            tuple(options.worker_dies),
            options.seed,
            models={} if run.file is None else run.file.models(),
            limits=Limits(1, 0) if run.file is None else run.file.limits,
        )
        spec = run.spec if name == "slo" else _awake(run.spec)
        policy = (
            run.file.policy()
            if run.file is not None and name == "slo"
            else player(name, spec, run.model, needs, options.startup_time)
        )
        outcomes.append(replay(scenario, name, policy, _progress(not options.json)))
    return outcomes


def _awake(spec: SizingSpec) -> SizingSpec:
    """The spec for rules of other systems, which have no quiet time: they keep a worker in each pool."""
    pools = {role: replace(bounds, minimum=max(1, bounds.minimum)) for role, bounds in spec.bounds_of.items()}
    return replace(spec, prefill=pools[Role.PREFILL], decode=pools[Role.DECODE])


def _run_of_file(options: argparse.Namespace) -> SimulatedRun:
    """The run of a file; options that would repeat it are refused."""
    for name in USUAL:
        if name != "model" and getattr(options, name) is not None:
            raise StartError(f"--{name.replace('_', '-')}: not allowed with -f: the file says it")
    file = read_simulated(options.file, options.model)
    first = file.prior(file.deployment)
    return SimulatedRun(_workload(options), first, file.spec, 0.0, file)


def _model_of(options: argparse.Namespace) -> WorkerModel:
    """The worker that the options describe, once their defaults are filled in."""
    for name, usual in USUAL.items():
        if getattr(options, name) is None:
            setattr(options, name, usual)
    model = worker_model(shape_named(options.model), accelerator_named(options.accelerator), options.tensor_parallel)
    return replace(model, max_step_tokens=options.max_step_tokens)


def _run_of(options: argparse.Namespace) -> SimulatedRun:
    model, spec = _model_of(options), _spec_of(options)
    return SimulatedRun(_workload(options), model, spec, _price_of(options))


def _spec_of(options: argparse.Namespace) -> SizingSpec:
    """The targets and bounds that the options describe, once their defaults are filled in."""
    if not 50.0 <= options.percentile < 100.0:
        raise StartError(f"--percentile: {options.percentile} is not allowed: must be from 50 to under 100")
    share = options.percentile / 100.0
    targets = Targets(options.ttft, options.tpot, share, share)
    price = _price_of(options)
    least = 1 if options.sleep_after is None else 0
    bounds = Bounds(least, options.max_workers, options.tensor_parallel, price * options.tensor_parallel)
    return SizingSpec(bounds, bounds, targets, options.max_accelerators, options.sleep_after, flip_s=options.flip_time)


def _price_of(options: argparse.Namespace) -> float:
    price: float = accelerator_named(options.accelerator).cost_per_hour if options.price is None else options.price
    if not 0.0 <= price < 1e6:
        raise StartError(f"--price: {price} is not allowed: must be from 0 to under 1000000")
    return price


def _workload(options: argparse.Namespace) -> Workload:
    random = np.random.default_rng(options.seed)
    if not (0.0 < options.rate <= 5000.0 and 0.0 < options.rate_scale <= 1000.0 and 0.0 < options.time_scale <= 1000.0):
        raise StartError("--rate, --rate-scale and --time-scale must be over 0 and at most 5000, 1000 and 1000")
    if options.trace:
        if options.duration is not None:
            raise StartError(f"--duration: {options.duration:g} s is not allowed with --trace, whose length is its own")
        workload = _trace(options.trace)
    else:
        workload = synthetic(options.shape, options.rate, options.duration or DURATION_S, random)
    if options.time_scale != 1.0:
        workload = workload.time_scaled(options.time_scale)
    if options.rate_scale != 1.0:
        workload = workload.rate_scaled(options.rate_scale, random)
    if len(workload) < 2 or workload.duration_s <= 0:
        raise StartError("the load has fewer than two requests")
    return workload


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


def _draw(path: Path, run: SimulatedRun, outcomes: list[ReplayOutcome]) -> None:
    if path.suffix not in {".png", ".svg"}:
        raise StartError(f"--plot: {path.name} is not allowed: must end in .png or .svg")
    try:
        from baton_local.timeline import draw_comparison, draw_timeline
    except ImportError as error:
        raise StartError("--plot needs matplotlib: pip install 'baton-serving[plot]'") from error
    if len(outcomes) == 1:
        draw_timeline(path, run.workload, run.spec, outcomes[0])
    else:
        costs = [cost for outcome in outcomes if (cost := run.cost(outcome)) is not None]
        draw_comparison(path, run.workload, run.spec, outcomes, costs if len(costs) == len(outcomes) else None)


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in POLICIES and fixed_sizes(name) is None:
            allowed = f"must be of {', '.join(POLICIES)}, or a fixed pool such as 3+2"
            raise StartError(f"--policy: {name!r} is not allowed: {allowed}")
    return names


def _span(text: str) -> tuple[float, float]:
    start, separator, end = text.partition("-")
    try:
        if separator:
            return _moment(start), _moment(end)
    except argparse.ArgumentTypeError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed: must be FROM-TO, such as 1m-90s")


def _moment(text: str) -> float:
    """A time from the start of the load, which may be 0."""
    return 0.0 if text in ("0", "0s") else time_or("s")(text)


def _death(text: str) -> tuple[float, Role]:
    role, _, at = text.partition("@")
    try:
        return _moment(at), {"prefill": Role.PREFILL, "decode": Role.DECODE}[role]
    except (argparse.ArgumentTypeError, KeyError) as error:
        message = f"{text!r} is not allowed: must be prefill@TIME or decode@TIME, such as decode@2m"
        raise argparse.ArgumentTypeError(message) from error
