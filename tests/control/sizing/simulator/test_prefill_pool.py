"""The prefill pool that sizing plays is written out for speed: to the last digit what the twin's parts do."""

from __future__ import annotations

import heapq
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_control.sizing.simulator.prefill_pool import QUESTION_PLAN_S, first_tokens, seldom_meeting
from baton_control.sizing.simulator.prefill_worker import PrefillWorker, least_loaded
from baton_testing.sizing.builders import ROUND_WORKER
from baton_wire.rules import prompt_order
from baton_wire.rules.prompt_order import PLAN_S, PromptOrder

ROOMY = replace(ROUND_WORKER, max_step_tokens=4096)


def by_parts(model: WorkerModel, load: Workload, workers: int, ttft_s: float | None) -> list[float]:
    """First tokens with the twin's workers and the gateways' order; nothing of a prompt is lost from a cache."""
    new = (load.prompt_tokens - load.cached_tokens).tolist()
    cached, arrivals = load.cached_tokens.tolist(), load.arrival_s.tolist()
    pool, order = [PrefillWorker(0.0, 0.0, model) for _ in range(workers)], PromptOrder[int](ttft_s)
    first_s, request, count = [inf] * len(new), 0, 0
    ends: list[tuple[float, int, PrefillWorker]] = []

    def begin(worker: PrefillWorker, now: float) -> None:
        nonlocal count
        end_s = worker.start_batch(now, model)
        if end_s is not None:
            count += 1
            heapq.heappush(ends, (end_s, count, worker))

    while request < len(new) or ends:
        if ends and (request == len(new) or ends[0][0] <= arrivals[request]):
            now, _, worker = heapq.heappop(ends)
            for each in worker.batch:
                first_s[each] = now + model.gateway_s
            worker.batch, worker.pinned_tokens = [], 0
            begin(worker, now)
        else:
            now = arrivals[request]
            order.push(request, now, model.prefill.fixed_s + model.prefill.prompt_s(new[request], cached[request]))
            request += 1
        while order:
            worker = least_loaded(pool, now)
            if worker.is_backed_up(1, now, model):
                break  # nobody is asked whose turn it is
            head = order.first(now, workers)
            if worker.is_backed_up(new[head], now, model):
                break
            worker.enqueue(order.pop(), new[head], cached[head], model.prefill)
            begin(worker, now)
    return first_s


@pytest.mark.parametrize("ttft_s", [0.5, 2.0, None])
@pytest.mark.parametrize("workers", [1, 3, 6])
@pytest.mark.parametrize("model", [ROOMY, replace(ROOMY, hold_s=0.4), replace(ROOMY, kv_capacity_tokens=12_000)])
@pytest.mark.parametrize("plan_s", [PLAN_S, QUESTION_PLAN_S])
def test_first_tokens_are_those_of_the_twins_parts(
    model: WorkerModel, workers: int, ttft_s: float | None, plan_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_order, "PLAN_S", plan_s)
    for seed, busy in enumerate((0.4, 0.95, 1.6)):
        random = np.random.default_rng(seed)
        prompts = np.clip(random.lognormal(6.5, 0.9, 600), 1, 9000).astype(np.int64)
        cached = (prompts * random.uniform(0.0, 0.9, 600) * (random.uniform(size=600) < 0.3)).astype(np.int64)
        rate = busy * workers / model.prefill.prompt_s(float(prompts.mean()))
        times = np.cumsum(random.gamma(0.5, 2.0 / rate, 600))
        load = Workload(times, prompts, np.ones(600, dtype=np.int64), cached)
        found = first_tokens(model, load, workers, 1.0, ttft_s, plan_s)
        assert found.tolist() == pytest.approx(by_parts(model, load, workers, ttft_s), abs=1e-12)


def test_with_too_much_to_do_more_are_in_time_by_setting_the_longest_aside() -> None:
    random = np.random.default_rng(5)
    prompts = np.clip(random.lognormal(6.5, 0.9, 900), 1, 4000).astype(np.int64)
    rate = 1.8 * 3 / ROOMY.prefill.prompt_s(float(prompts.mean()))
    times = np.cumsum(random.exponential(1.0 / rate, 900))
    load = Workload(times, prompts, np.ones(900, dtype=np.int64), np.zeros(900, dtype=np.int64))
    often, never = (first_tokens(ROOMY, load, 3, 1.0, 2.0, plan_s) - times <= 2.0 for plan_s in (PLAN_S, inf))
    assert often.sum() > 1.1 * never.sum()
    assert prompts[~often].mean() > 1.5 * prompts[often].mean()


@pytest.mark.parametrize("busy", [0.02, 0.3, 0.8])
def test_only_those_that_meet_have_to_be_played(busy: float) -> None:
    random = np.random.default_rng(3)
    prompts = np.clip(random.lognormal(7.0, 1.2, 600), 1, 30_000).astype(np.int64)
    times = np.cumsum(random.exponential(ROOMY.prefill.prompt_s(float(prompts.mean())) / busy, 600))
    load = Workload(times, prompts, np.ones(600, dtype=np.int64), prompts // 3)
    played = first_tokens(ROOMY, load, 1, 0.9, 1.0, QUESTION_PLAN_S)
    assert seldom_meeting(ROOMY, load, 1.0) == pytest.approx(played, abs=1e-9)
    assert 0 < np.count_nonzero(played - times > 1.0) < 600
