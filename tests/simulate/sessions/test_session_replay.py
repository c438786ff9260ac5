"""Sessions while mode SLO resizes the pools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_control.sizing.inputs.model_shape import LLAMA_8B
from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec, Targets
from baton_simulate.session_replay import SizedSessions, replay_sessions
from baton_simulate.sessions.routing_policy import SessionStickyRouting
from baton_simulate.sessions.session_generator import generated_load
from baton_simulate.sessions.session_shapes import SHAPES
from baton_simulate.sessions.session_simulation import SessionSimulation
from baton_simulate.sessions.turn_order import LoopLimits
from baton_wire.rules.hardware import H200

WORKER = worker_model(LLAMA_8B, H200, max_step_tokens=8192)
BOUNDS = Bounds(1, 6)
SPEC = SizingSpec(BOUNDS, BOUNDS, Targets(2.0, 0.05))
LOAD = generated_load(replace(SHAPES["agents"], sessions=24), 5, "x")


def sized(sizes: tuple[int, int], held_s: float = 0.0, skipped_s: float = 0.0) -> SizedSessions:
    simulation = SessionSimulation(LOAD, LoopLimits(users=24), SessionStickyRouting(), WORKER, SPEC.targets.ttft_s)
    return replay_sessions(simulation, SPEC, sizes, startup_s=30.0, held_s=held_s, skipped_s=skipped_s)


def test_every_turn_is_answered_while_pools_change_within_their_bounds() -> None:
    replayed = sized((1, 1))
    assert replayed.outcome.turns == len(LOAD.turns)
    assert replayed.moves, "one worker in each pool is too few for 24 users"
    assert 1.0 < replayed.mean_workers[0] <= BOUNDS.maximum
    assert 1.0 <= replayed.mean_workers[1] <= BOUNDS.maximum


def test_pools_that_are_held_do_not_change() -> None:
    replayed = sized((2, 3), held_s=1e9)
    assert (replayed.moves, replayed.mean_workers) == ((), (2.0, 3.0))
    assert replayed.outcome.turns == len(LOAD.turns)


def test_larger_pools_keep_the_target_for_more_turns() -> None:
    assert sized((6, 6), held_s=1e9).ttft_attainment > sized((1, 6), held_s=1e9).ttft_attainment


def test_a_first_part_that_has_all_turns_is_refused() -> None:
    with pytest.raises(ValueError, match=r"skipped_s: 1e\+09 leaves no turn"):
        sized((2, 2), held_s=1e9, skipped_s=1e9)
