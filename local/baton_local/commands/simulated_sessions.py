"""`baton simulate --sessions`: a load of sessions on fixed pools, under one routing policy or several."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_local.commands.production_routing import ProductionRouting
from baton_local.commands.session_options import loop_limits, session_source
from baton_local.errors import StartError
from baton_local.text_table import table
from baton_simulate.policies import fixed_sizes
from baton_simulate.sessions.routing_policy import BASELINES, RoutingPolicy
from baton_simulate.sessions.session_simulation import SessionOutcome, simulate_sessions
from baton_wire.messages.values import POOL_ROLES

ROUTINGS: Final = ("baton", *BASELINES)
HEADER: Final = (
    *("routing", "turns", "lost", "cached of ideal", "load spread", "TTFT ms p50/p95", "TPOT ms p95"),
    *("E2E s p95", "tokens/s of a turn, P90", "output tok/s", "per GPU"),
)


def run_sessions(options: argparse.Namespace, model: WorkerModel) -> int:
    """Run the command. Raises StartError and ManifestError."""
    if options.file is not None or options.trace is not None or options.what_if:
        raise StartError("--sessions: not allowed with -f, --trace and --what-if")
    sizes = fixed_sizes(options.policy)
    if sizes is None:
        raise StartError(f"--policy: {options.policy!r} is not allowed with --sessions: must be a pool such as 8+24")
    names = tuple(dict.fromkeys(options.routing.split(",")))
    for name in names:
        if name not in ROUTINGS:
            raise StartError(f"--routing: {name!r} is not allowed: must be of {', '.join(ROUTINGS)}")
    source, limits = session_source(options), loop_limits(options)
    load = source.load(options.seed)
    makers: Mapping[str, Callable[[], RoutingPolicy]] = {"baton": lambda: ProductionRouting(model), **BASELINES}
    pools = sizes[POOL_ROLES[0]], sizes[POOL_ROLES[1]]
    outcomes = {name: simulate_sessions(load, limits, makers[name](), model, pools, options.ttft) for name in names}
    if options.json:
        print(json.dumps({"load": source.name, "policies": [_document(name, one) for name, one in outcomes.items()]}))
    else:
        print(f"sessions: {source.name}, seed {options.seed}, on {pools[0]} prefill and {pools[1]} decode workers")
        print(table(HEADER, [_row(name, one) for name, one in outcomes.items()]))
    return 0


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
