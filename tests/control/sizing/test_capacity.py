"""How much is played for a question and for a decision: counts of requests, never seconds."""

from __future__ import annotations

import numpy as np
import pytest

from baton_control.sizing.decision import capacity
from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.decision.slo import size
from baton_control.sizing.inputs.memory import HISTORY, SizingMemory
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Arrivals
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_control.sizing.simulator.one_pool import answer_ends, first_tokens
from baton_testing.sizing.builders import ROUND_WORKER, seen, spec
from baton_wire.messages.values import POOL_ROLES, Role

MOST_PLAYED = 50_000
"""Requests in one decision, which are 40,432: new sizes at a new mix."""


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> dict[Role, list[int]]:
    """Requests of each question that the simulator is asked from now on."""
    counts: dict[Role, list[int]] = {role: [] for role in POOL_ROLES}

    def prompts(model: WorkerModel, load: Workload, workers: int, *rest: float) -> Floats:
        counts[Role.PREFILL].append(len(load))
        return first_tokens(model, load, workers, *rest)

    def answers(model: WorkerModel, load: Workload, workers: int) -> Floats:
        counts[Role.DECODE].append(len(load))
        return answer_ends(model, load, workers)

    monkeypatch.setattr(capacity, "first_tokens", prompts)
    monkeypatch.setattr(capacity, "answer_ends", answers)
    return counts


def test_a_question_about_decode_plays_500_answers_at_most(played: dict[Role, list[int]]) -> None:
    for tokens in (20, 200, 2000):
        mix = Mix((RequestShape(100, tokens), RequestShape(300, 2 * tokens)))
        for workers in (1, 2, 3, 40):
            sizer = SimulatedSizer(ROUND_WORKER, Targets(0.5, 0.025))
            sizer.share_met(Role.DECODE, mix, 0.95 * workers * sizer.most_per_s(Role.DECODE, mix), workers)
    assert len(played[Role.DECODE]) == 12
    assert max(played[Role.DECODE]) == 500


def test_how_many_a_decision_plays_stays_bounded_over_a_dense_half_hour(played: dict[Role, list[int]]) -> None:
    """Short prompts with long answers and the other way round, in turns of minutes, up to 400 requests a second."""
    random = np.random.default_rng(3)
    sizer, memory, pools, most = SimulatedSizer(ROUND_WORKER, Targets(0.5, 0.025)), SizingMemory(), (4, 4), 0
    limits = spec(maximum=60)
    for interval in range(HISTORY + 40):
        prompt, answer, rate = (100, 60, 400.0) if interval // 18 % 2 else (1500, 12, 40.0)
        rate *= random.uniform(0.1, 1.0)
        sample = tuple(
            RequestShape(*lengths)
            for lengths in (random.lognormal(0.0, 0.5, (64, 2)) * (prompt, answer)).astype(int).clip(1).tolist()
        )
        arrivals = Arrivals(round(rate * limits.interval_s), limits.interval_s, sample)
        for counts in played.values():
            counts.clear()
        decision = size(limits, seen(arrivals, pools), memory, limits.interval_s * interval, sizer)
        memory, pools = decision.memory, (decision.pools[Role.PREFILL].workers, decision.pools[Role.DECODE].workers)
        most = max(most, sum(map(sum, played.values())))
    assert len(memory.history) == HISTORY
    assert most <= MOST_PLAYED


def test_a_load_is_simulated_once_on_the_grid(played: dict[Role, list[int]]) -> None:
    sizer, mix = SimulatedSizer(ROUND_WORKER, Targets(0.5, 0.025)), Mix((RequestShape(900, 20), RequestShape(2500, 20)))
    rate = 1.9 * sizer.most_per_s(Role.PREFILL, mix)
    shares = {sizer.share_met(Role.PREFILL, mix, rate * part, 2) for part in (1.0, 1.0 + 1e-12)}
    assert len(played[Role.PREFILL]) == len(shares) == 1
    for workers in (6, 7, 60):
        sizer.share_met(Role.PREFILL, mix, rate * workers / 2, workers)
    assert len(played[Role.PREFILL]) == 2, "one group stands for every pool of six and more"
