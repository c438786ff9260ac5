"""`baton simulate --sessions`: a load of sessions under one routing policy or several, on fixed pools or sized ones."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_local.commands.production_routing import ProductionRouting
from baton_local.commands.session_options import SessionSource, loop_limits, session_source
from baton_local.errors import StartError
from baton_local.text_table import table
from baton_simulate.policies import fixed_sizes
from baton_simulate.session_replay import SizedSessions, replay_sessions
from baton_simulate.sessions.routing_policy import BASELINES, RoutingPolicy
from baton_simulate.sessions.session_load import SessionLoad
from baton_simulate.sessions.session_plan import plan_sessions
from baton_simulate.sessions.session_simulation import SessionOutcome, SessionSimulation, simulate_sessions
from baton_simulate.sessions.turn_order import LoopLimits
from baton_wire.messages.values import POOL_ROLES

ROUTINGS: Final = ("baton", *BASELINES)
HEADER: Final = (
    *("routing", "turns", "lost", "cached of ideal", "load spread", "TTFT ms p50/p95", "TPOT ms p95"),
    *("E2E s p95", "tokens/s of a turn, P90", "output tok/s", "per GPU"),
)
SIZED_HEADER: Final = (*HEADER[:-1], "mean workers*", "within TTFT*", "within TPOT*", "changes")
SETTLED_S: Final = 300.0
"""The first part of a load, in which the pools are held, and which means and shares leave out: caches fill."""


def run_sessions(options: argparse.Namespace, model: WorkerModel, spec: SizingSpec) -> int:
    """Run the command. Raises StartError and ManifestError."""
    if options.file is not None or options.trace is not None or options.what_if:
        raise StartError("--sessions: not allowed with -f, --trace and --what-if")
    sizes = fixed_sizes(options.policy)
    if sizes is None and options.policy != "slo":
        text = f"--policy: {options.policy!r} is not allowed with --sessions: must be slo, or a pool such as 8+24"
        raise StartError(text)
    names = tuple(dict.fromkeys(options.routing.split(",")))
    for name in names:
        if name not in ROUTINGS:
            raise StartError(f"--routing: {name!r} is not allowed: must be of {', '.join(ROUTINGS)}")
    source, limits = session_source(options), loop_limits(options)
    load = source.load(options.seed)
    makers: Mapping[str, Callable[[], RoutingPolicy]] = {"baton": lambda: ProductionRouting(model), **BASELINES}
    title = f"sessions: {source.name}, seed {options.seed}"
    if sizes is None:
        runs = {name: _sized(options, load, limits, makers[name](), model, spec) for name in names}
        if options.json:
            _print_json(source, [_sized_document(name, run) for name, run in runs.items()])
        else:
            print(f"{title}, on pools that mode SLO sizes; figures from {SETTLED_S:.0f} s on, if marked with *")
            print(table(SIZED_HEADER, [_sized_row(name, run) for name, run in runs.items()]))
        return 0
    pools = sizes[POOL_ROLES[0]], sizes[POOL_ROLES[1]]
    outcomes = {name: simulate_sessions(load, limits, makers[name](), model, pools, options.ttft) for name in names}
    if options.json:
        _print_json(source, [_document(name, one) for name, one in outcomes.items()])
    else:
        print(f"{title}, on {pools[0]} prefill and {pools[1]} decode workers")
        print(table(HEADER, [_row(name, one) for name, one in outcomes.items()]))
    return 0


def _sized(
    options: argparse.Namespace,
    load: SessionLoad,
    limits: LoopLimits,
    policy: RoutingPolicy,
    model: WorkerModel,
    spec: SizingSpec,
) -> SizedSessions:
    """The sessions on pools that begin as `baton plan --sessions` says, and are sized from `SETTLED_S` on."""
    plan = plan_sessions(load, limits, model, spec.targets)
    sizes = tuple(min(bounds.maximum, n) for bounds, n in ((spec.prefill, plan.prefill), (spec.decode, plan.decode)))
    simulation = SessionSimulation(load, limits, policy, model, spec.targets.ttft_s)
    try:
        return replay_sessions(
            simulation, spec, (sizes[0], sizes[1]), options.startup_time, held_s=SETTLED_S, skipped_s=SETTLED_S
        )
    except ValueError as error:
        raise StartError(f"--sessions: too short for --policy slo: all turns are sent in {SETTLED_S:.0f} s") from error


def _print_json(source: SessionSource, policies: Sequence[Mapping[str, object]]) -> None:
    print(json.dumps({"load": source.name, "policies": policies}))


def _sized_document(name: str, run: SizedSessions) -> dict[str, object]:
    return _document(name, run.outcome) | {
        "mean_workers": dict(zip(POOL_ROLES, run.mean_workers, strict=True)),
        "ttft_attainment": run.ttft_attainment,
        "tpot_attainment": run.tpot_attainment,
        "decisions": [
            {"at_s": move.at_s, "pool": move.role.value, "from": move.before, "to": move.after, "reason": move.reason}
            for move in run.moves
        ],
    }


def _sized_row(name: str, run: SizedSessions) -> tuple[object, ...]:
    prefill, decode = run.mean_workers
    shares = f"{run.ttft_attainment:.1%}", f"{run.tpot_attainment:.1%}"
    return (*_row(name, run.outcome)[:-1], f"{prefill:.2f}+{decode:.2f}", *shares, len(run.moves))


def _document(name: str, outcome: SessionOutcome) -> dict[str, object]:
    """The outcome as JSON fields; a figure that no turn gave is null."""
    fields = {key: None if value != value else value for key, value in asdict(outcome).items()}
    return {"routing": name, **fields}


def _row(name: str, outcome: SessionOutcome) -> tuple[object, ...]:
    share = outcome.cached_of_ideal
    return (
        name,
        outcome.turns,
        outcome.refused,
        None if share is None else f"{share:.1%}",
        f"{outcome.load_spread:.1%}",
        f"{1e3 * outcome.ttft_p50_s:.4g}/{1e3 * outcome.ttft_p95_s:.4g}",
        f"{1e3 * outcome.tpot_p95_s:.3g}",
        f"{outcome.e2e_p95_s:.3g}",
        f"{outcome.interactivity_p90:.3g}",
        round(outcome.output_tokens_per_s),
        round(outcome.output_tokens_per_s_and_accelerator),
    )
