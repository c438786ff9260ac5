"""Plans for loads of sessions: pools, workers that do both, and which of them to take."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from baton_control.sizing.inputs.model_shape import LLAMA_8B
from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_local.__main__ import main
from baton_simulate.sessions.session_generator import generated_load
from baton_simulate.sessions.session_plan import SessionPlan, plan_sessions
from baton_simulate.sessions.session_shapes import SHAPES, drawn_shape
from baton_simulate.sessions.turn_order import LoopLimits
from baton_wire.rules.hardware import H200

WORKER = worker_model(LLAMA_8B, H200, max_step_tokens=8192)
TARGETS = Targets(3.0, 0.025)


def plan(sessions: int, users: int | None = None, think_scale: float = 1.0, kv: int | None = None) -> SessionPlan:
    model = WORKER if kv is None else replace(WORKER, kv_capacity_tokens=kv)
    load = generated_load(replace(SHAPES["agents"], sessions=sessions), 1, "agents")
    return plan_sessions(load, LoopLimits(users=users, think_scale=think_scale), model, TARGETS)


def test_a_plan_for_agents_counts_the_tokens_that_are_missing() -> None:
    agents = plan(96, users=48)
    assert agents.prompt_tokens == pytest.approx(64_000, rel=0.1)
    assert agents.missing_tokens == pytest.approx(6_400, rel=0.2)
    assert agents.prefill_for_compute <= 3


def test_more_users_hold_more_contexts_and_kv_decides_where_it_is_scarce() -> None:
    few, many = plan(96, users=12), plan(96, users=48)
    assert many.held_tokens > 2 * few.held_tokens
    assert many.prefill > many.prefill_for_compute
    assert "their KV decides" in many.reason
    ample = plan(96, users=48, kv=100_000_000)
    assert ample.prefill == ample.prefill_for_compute
    assert "their KV decides" not in ample.reason


def test_the_mode_is_the_one_with_fewer_workers() -> None:
    for made in (plan(24, users=2), plan(96, users=48), plan(48, think_scale=0.0, kv=100_000_000)):
        pools = made.prefill + made.decode
        assert made.mode == ("Auto" if pools <= made.aggregated else "Never")
    assert {plan(24, users=1).mode, plan(48, think_scale=0.0, kv=100_000_000).mode} == {"Never", "Auto"}


def test_prefill_workers_that_caches_call_for_keep_answers_and_save_decode_workers() -> None:
    """Their KV holds contexts that come back, and their time computes few prompts."""
    scarce = plan(96, users=48, think_scale=0.2)
    assert scarce.prefill > scarce.prefill_for_compute
    assert 0.0 < scarce.kept_share < 1.0
    assert "of the answers" in scarce.reason or scarce.mode == "Never"
    ample = plan(96, users=48, think_scale=0.2, kv=100_000_000)
    assert scarce.decode <= ample.decode
    assert ample.kept_share <= scarce.kept_share


@pytest.mark.parametrize("number", range(8))
def test_every_drawn_load_has_a_plan(number: int) -> None:
    load = generated_load(replace(drawn_shape(number), sessions=12), 1, "x")
    made = plan_sessions(load, LoopLimits(), WORKER, TARGETS)
    assert min(made.prefill, made.decode, made.aggregated, made.decode_batch) >= 1
    assert made.turns_per_s > 0


def test_the_command_says_what_to_take_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["plan", "--sessions", "agents", "--session-count", "24", "--users", "12"]
    assert main(small) == 0
    assert "Take `disaggregation: " in capsys.readouterr().out
    assert main([*small, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["mode"] in {"Auto", "Never"}
    assert answer["reason"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sessions", "nothing"], "--sessions: 'nothing' is not allowed"),
        (["--sessions", "agents", "--accelerator", "h200,h100"], "--accelerator: h200,h100 is not allowed"),
    ],
)
def test_a_plan_that_cannot_be_made_is_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    assert complaint in capsys.readouterr().err
