"""`baton plan --sessions`: the workers and the mode for a load of sessions."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace

from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_local.commands.planned_degrees import smallest_degree
from baton_local.commands.session_options import loop_limits, session_source
from baton_local.errors import StartError
from baton_local.hardware_arguments import accelerator_named, shape_named
from baton_simulate.sessions.session_plan import SessionPlan, plan_sessions

SEED = 1


def run_session_plan(options: argparse.Namespace) -> int:
    """Run the command. Raises StartError and ManifestError."""
    if "," in options.accelerator:
        raise StartError(f"--accelerator: {options.accelerator} is not allowed with --sessions: must be one")
    shape, accelerator = shape_named(options.model), accelerator_named(options.accelerator)
    degree = options.tensor_parallel or smallest_degree(shape, accelerator)
    model = replace(worker_model(shape, accelerator, degree), max_step_tokens=options.max_step_tokens)
    source = session_source(options)
    targets = Targets(options.ttft, options.tpot)
    plan = plan_sessions(source.load(SEED), loop_limits(options), model, targets)
    if options.json:
        print(json.dumps({"load": source.name, "mode": plan.mode, "reason": plan.reason, **asdict(plan)}))
        return 0
    print(f"{shape.name} on {degree}× {accelerator.name} per worker, sessions: {source.name}")
    for words, value in _rows(plan):
        print(f"  {words:<52} {value}")
    print(f"Take `disaggregation: {plan.mode}` with {_workers(plan)}: {plan.reason}.")
    return 0


def _rows(plan: SessionPlan) -> list[tuple[str, str]]:
    cached = 1.0 - plan.missing_tokens / plan.prompt_tokens
    return [
        ("turns a second, if nothing waits", f"{plan.turns_per_s:.3g}"),
        ("prompt tokens of a turn", f"{plan.prompt_tokens:,.0f}, {cached:.0%} of them sent before"),
        ("answer tokens of a turn", f"{plan.output_tokens:,.0f}"),
        ("contexts that are continued", f"{plan.held_tokens:,} tokens within {plan.window_s:.0f} s"),
        ("prefill workers", f"{plan.prefill}, of which computing needs {plan.prefill_for_compute}"),
        ("decode workers", f"{plan.decode}, each with {plan.decode_batch} sequences at once"),
        ("answers that prefill workers keep", f"{plan.kept_share:.0%}"),
        ("workers that do both instead", f"{plan.aggregated}, of which computing needs {plan.aggregated_for_compute}"),
    ]


def _workers(plan: SessionPlan) -> str:
    if plan.mode == "Never":
        return f"{plan.aggregated} worker{'s' if plan.aggregated > 1 else ''}"
    return f"{plan.prefill} prefill and {plan.decode} decode workers"
