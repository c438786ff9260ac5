"""A replay of mode SLO: what it learns of workers that are not as it believes."""

from __future__ import annotations

import numpy as np
from bench.sizing.scenarios import CHAT, CHAT_SPEC

from baton_control.sizing.decision.sizing_state import fresh
from baton_simulate.policies import Slo
from baton_simulate.replay import Scenario, replay
from baton_simulate.synthetic import Shape, synthetic
from baton_wire.messages.values import POOL_ROLES


def test_mode_slo_learns_in_a_replay_that_workers_are_slower_than_it_believes() -> None:
    """Without the fit it never would: decode is sized to the edge of its target."""
    load = synthetic(Shape.STEADY, 6.0, 400.0, np.random.default_rng(2), prompt=(600.0, 0.5), output=(150.0, 0.5))
    policy = Slo(CHAT_SPEC, fresh(CHAT, CHAT_SPEC))
    true = CHAT.slowed(1.3, 1.4)
    replay(Scenario("slow", load, true, CHAT_SPEC, 60.0, dict.fromkeys(POOL_ROLES, 2)), "slo", policy)
    believed = policy.state.model
    for batch in (4, 16):
        ratio = believed.decode.seconds(batch, 700 * batch) / CHAT.decode.seconds(batch, 700 * batch)
        assert abs(ratio - 1.4) < 0.1
    assert abs(believed.prefill.prompt_s(800) / CHAT.prefill.prompt_s(800) - 1.3) < 0.1
