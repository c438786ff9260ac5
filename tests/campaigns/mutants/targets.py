"""The files that decide most, and the tests that should notice a change in any file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A source file with the test paths that guard it, fastest first. Paths are relative to the repository."""

    source: str
    tests: tuple[str, ...]


_REQUESTS = ("tests/gateway/requests", "tests/gateway/workers", "tests/simulation/test_found_faults.py")
_SCHEDULING = ("tests/engine/scheduling",)
_HANDOVER = ("tests/kv_transfer/test_machine_fuzz.py", "tests/kv_transfer/test_transfer.py")
_ROLLOUT = ("tests/control/test_rollout.py", "tests/control/test_rollout_sequences.py")
_SIZING = ("tests/control/sizing",)
_PASSES = ("tests/operator/passes", "tests/operator/test_runtime.py")
_WIRE = ("tests/wire",)

TARGETS = (
    Target("gateway/baton_gateway/requests/request.py", _REQUESTS),
    Target("gateway/baton_gateway/requests/run.py", _REQUESTS),
    Target("gateway/baton_gateway/requests/admission.py", _REQUESTS),
    Target("gateway/baton_gateway/requests/wait_prediction.py", _REQUESTS),
    Target("gateway/baton_gateway/requests/held_runs.py", _REQUESTS),
    Target("gateway/baton_gateway/requests/routing.py", _REQUESTS),
    Target("gateway/baton_gateway/workers/route.py", _REQUESTS),
    Target("gateway/baton_gateway/workers/pool_load.py", _REQUESTS),
    Target("kv_transfer/baton_kv_transfer/prefill/machine.py", ("tests/kv_transfer/prefill", *_HANDOVER)),
    Target("kv_transfer/baton_kv_transfer/decode/machine.py", ("tests/kv_transfer/decode", *_HANDOVER)),
    Target("kv_transfer/baton_kv_transfer/decode/spans.py", ("tests/kv_transfer/decode", *_HANDOVER)),
    Target("engine/baton_engine/memory/blocks.py", ("tests/engine/memory", *_SCHEDULING)),
    Target("engine/baton_engine/scheduling/scheduler.py", _SCHEDULING),
    Target("engine/baton_engine/scheduling/admission.py", _SCHEDULING),
    Target("engine/baton_engine/scheduling/engine_state.py", _SCHEDULING),
    Target("control/baton_control/rollout.py", _ROLLOUT),
    Target("control/baton_control/sizing/decision/slo.py", _SIZING),
    Target("control/baton_control/sizing/decision/sizing_state.py", _SIZING),
    Target("operator/baton_operator/passes/reconcile.py", _PASSES),
    Target("operator/baton_operator/passes/pass_plan.py", _PASSES),
    Target("operator/baton_operator/passes/plan_writer.py", _PASSES),
    Target("operator/baton_operator/passes/pass_reporter.py", _PASSES),
    Target("wire/baton_wire/keys.py", _WIRE),
    Target("wire/baton_wire/handshake.py", _WIRE),
)
