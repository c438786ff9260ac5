"""The simulator on cases worked out by hand, and against a step-by-step reference."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_control.sizing.simulator.one_pool import answer_ends, first_tokens
from baton_control.sizing.simulator.simulator import Simulator
from baton_simulate.synthetic import Shape, synthetic
from baton_testing.sizing.builders import ROUND_WORKER, requests
from baton_wire.messages.values import Role
from baton_wire.rules.prompt_order import PLAN_S


def started(workload: Workload, prefill: int = 1, decode: int = 1, model: WorkerModel = ROUND_WORKER) -> Simulator:
    simulator = Simulator(model, workload)
    for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        for _ in range(count):
            simulator.add(role, 0.0)
    simulator.run_until(0.0)
    return simulator


def test_one_request_takes_its_prefill_its_hand_over_and_its_steps() -> None:
    simulator = started(requests([(1.0, 1000, 3)]))
    simulator.run_out()
    assert simulator.first_s[0] == pytest.approx(1.0 + 0.01 + 0.1)
    landed = 1.11 + 1000 * 1e5 / 1e10 / 10 + 0.002  # the last layer, and the hand-over
    steps = (0.01 + 1e-4 + 1e-7 * 1000) + (0.01 + 1e-4 + 1e-7 * 1001)
    assert simulator.done_s[0] == pytest.approx(landed + steps)


def test_prompts_that_queue_share_a_step_within_the_budget() -> None:
    simulator = started(requests([(1.0, 1000, 1), (1.01, 800, 1), (1.02, 800, 1), (1.03, 800, 1)]))
    simulator.run_out()
    first_step = 1.0 + 0.01 + 0.1
    second = first_step + 0.01 + 0.16  # two of 800 fit in 2000, a third does not
    third = second + 0.01 + 0.08
    assert simulator.first_s == pytest.approx([first_step, second, second, third])


def test_workers_of_two_kinds_each_take_their_own_time_and_are_billed_apart() -> None:
    """One kind is through with a prompt and a step in half the time, and has two accelerators."""
    fast = replace(ROUND_WORKER.slowed(0.5, 0.5), accelerators=(2, 2))
    for kind, model, prefill_s, step_s in (("", None, 0.11, 0.0102), ("fast", fast, 0.055, 0.0051)):
        simulator = Simulator(ROUND_WORKER, requests([(1.0, 1000, 2)]))
        for role in (Role.PREFILL, Role.DECODE):
            simulator.add(role, 0.0, model, kind)
        simulator.run_until(10.0)
        assert simulator.first_s[0] == pytest.approx(1.0 + prefill_s)
        landed_s = simulator.first_s[0] + 1000 * 1e5 / 1e10 / 10 + 0.002
        assert simulator.done_s[0] == pytest.approx(landed_s + step_s)
        seconds = 10.0 * (1 if model is None else 2)
        assert simulator.billed_by_kind() == pytest.approx(
            {(Role.PREFILL, kind): seconds, (Role.DECODE, kind): seconds}
        )


def test_a_worker_of_one_kind_is_stopped_and_the_other_serves_on() -> None:
    simulator = Simulator(ROUND_WORKER, requests([(1.0, 1000, 2), (12.0, 1000, 2)]))
    fast = ROUND_WORKER.slowed(0.5, 0.5)
    for role in (Role.PREFILL, Role.DECODE):
        simulator.add(role, 0.0, ROUND_WORKER, "slow")
        simulator.add(role, 5.0, fast, "fast")
    simulator.run_until(4.0)
    assert simulator.kinds(Role.DECODE) == {"slow": (1, 1), "fast": (1, 0)}
    simulator.run_until(10.0)
    for role in (Role.PREFILL, Role.DECODE):
        simulator.remove(role, "slow")
        assert simulator.kinds(role) == {"fast": (1, 1)}
    simulator.run_until(20.0)
    assert simulator.first_s == pytest.approx([1.11, 12.055])
    assert simulator.billed_by_kind()[Role.PREFILL, "slow"] == pytest.approx(10.0)
    assert simulator.billed_by_kind()[Role.PREFILL, "fast"] == pytest.approx(20.0)


def test_prompts_that_wait_at_the_gateway_go_to_a_worker_that_comes() -> None:
    first_s = []
    for hold_s in (None, 0.05):
        simulator = started(requests([(1.0, 1000, 1), (1.01, 800, 1)]), model=replace(ROUND_WORKER, hold_s=hold_s))
        simulator.run_until(1.02)
        simulator.add(Role.PREFILL, 1.02)
        simulator.run_out()
        first_s.append(simulator.first_s[1])
    own = 0.01 + 0.08
    assert first_s == pytest.approx([1.11 + own, 1.02 + own])


def test_prompts_that_can_be_in_time_go_before_those_that_are_late() -> None:
    rows = [(1.0, 10_000, 1), (1.05, 100, 1), (1.8, 100, 1), (1.9, 100, 1), (1.95, 2000, 1)]
    order = []
    for ttft_s in (None, 0.8):
        simulator = Simulator(replace(ROUND_WORKER, hold_s=0.0), requests(rows), ttft_s=ttft_s)
        simulator.add(Role.PREFILL, 0.0)
        simulator.add(Role.DECODE, 0.0)
        simulator.run_out()
        order.append(np.argsort(simulator.first_s).tolist())
    assert order == [[0, 1, 2, 3, 4], [0, 4, 2, 3, 1]], "the longest has the least slack"


def test_many_steps_at_once_end_when_single_steps_would() -> None:
    rows = [(0.1 * i, 200 + 37 * i, 5 + 11 * (i % 7)) for i in range(30)]
    assert answer_ends(ROUND_WORKER, requests(rows), 1) == pytest.approx(_reference(rows), abs=1e-9)


def test_answers_that_fill_the_pool_all_end_and_more_workers_end_them_sooner() -> None:
    rows = [(0.05 * i, 300 + 37 * (i % 11), 5 + 40 * (i % 7)) for i in range(60)]
    tight = replace(ROUND_WORKER, kv_capacity_tokens=2500)
    roomy, one, two = (
        answer_ends(model, requests(rows), count) for model, count in ((ROUND_WORKER, 1), (tight, 1), (tight, 2))
    )
    assert one.max() < np.inf
    assert roomy.mean() < two.mean() < one.mean(), "some waited for blocks, or were put back"


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("hold_s", [None, 0.02])
@pytest.mark.parametrize("ttft_s", [None, 0.5])
def test_prompts_by_themselves_start_when_they_do_with_a_decode_pool(
    workers: int, hold_s: float | None, ttft_s: float | None
) -> None:
    random = np.random.default_rng(workers)
    model = replace(ROUND_WORKER, hold_s=hold_s)
    for rate in (2.0, 6.0, 12.0):
        rows = list(
            zip(
                np.cumsum(random.gamma(0.3, 1 / (0.3 * rate * workers), 400)).tolist(),
                random.integers(1, 2500, 400).tolist(),
                [1] * 400,
                strict=True,
            )
        )
        workload = replace(requests(rows), cached_tokens=random.integers(0, 900, 400))
        simulator = Simulator(model, workload, ttft_s=ttft_s)
        for role, count in ((Role.PREFILL, workers), (Role.DECODE, 1)):
            for _ in range(count):
                simulator.add(role, 0.0)
        simulator.run_until(0.0)
        simulator.run_out()
        assert simulator.first_s == first_tokens(model, workload, workers, 0.9, ttft_s).tolist()


def test_with_too_much_to_do_more_are_in_time_by_setting_the_longest_aside() -> None:
    random = np.random.default_rng(5)
    model = replace(ROUND_WORKER, max_step_tokens=4096)
    prompts = np.clip(random.lognormal(6.5, 0.9, 900), 1, 4000).astype(np.int64)
    rate = 1.8 * 3 / model.prefill.prompt_s(float(prompts.mean()))
    times = np.cumsum(random.exponential(1.0 / rate, 900))
    load = Workload(times, prompts, np.ones(900, dtype=np.int64), np.zeros(900, dtype=np.int64))
    often, never = (first_tokens(model, load, 3, 1.0, 2.0, plan_s) - times <= 2.0 for plan_s in (PLAN_S, inf))
    assert often.sum() > 1.1 * never.sum()
    assert prompts[~often].mean() > 1.5 * prompts[often].mean()


def _reference(rows: list[tuple[float, int, int]]) -> list[float]:
    times, now = ROUND_WORKER.decode, 0.0
    landed = [(at + ROUND_WORKER.hand_over_s, i) for i, (at, _, _) in enumerate(rows)]
    active: dict[int, list[int]] = {}
    done = [0.0] * len(rows)
    while landed or active:
        if not active:
            now = max(now, landed[0][0])
        while landed and landed[0][0] <= now + 1e-12:
            _, i = landed.pop(0)
            active[i] = [rows[i][1], rows[i][2] - 1]
        now += times.seconds(len(active), sum(kv for kv, _ in active.values()))
        for i in list(active):
            active[i][0] += 1
            active[i][1] -= 1
            if active[i][1] == 0:
                done[i] = now
                del active[i]
    return done


def test_a_request_waits_for_blocks_and_starts_when_they_are_free() -> None:
    tight = replace(ROUND_WORKER, kv_capacity_tokens=2500)
    simulator = started(requests([(1.0, 1900, 50), (1.0, 1900, 2)]), prefill=2, model=tight)
    simulator.run_out()
    assert simulator.done_s[1] > simulator.done_s[0], "the second could not land beside the first"
    assert simulator.retries == 0


def test_a_full_pool_preempts_the_newest_which_still_ends() -> None:
    tight = replace(ROUND_WORKER, kv_capacity_tokens=2500)
    simulator = started(requests([(1.0, 1000, 700), (1.0, 1000, 700)]), model=tight)
    simulator.run_out()
    assert simulator.retries >= 1
    assert not np.isnan(simulator.done_s).any()
    assert simulator.done_s[0] < simulator.done_s[1]


def _load(seed: int) -> Workload:
    return synthetic(Shape.BURST, 12.0, 120.0, np.random.default_rng(seed), prompt=(600, 0.7), output=(60, 0.8))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_leaked_when_workers_die_drain_and_join(seed: int) -> None:
    workload = _load(seed)
    simulator = started(workload, 3, 3)
    random = np.random.default_rng(seed)
    for at in range(5, 115, 5):
        simulator.run_until(float(at))
        role = (Role.PREFILL, Role.DECODE)[int(random.integers(2))]
        action = int(random.integers(4))
        if action == 0:
            simulator.kill(role)
        elif action == 1 and simulator.workers(role) > 1:
            simulator.remove(role)
        elif action == 3 and simulator.routable(role) > 1:
            simulator.flip(role, 2.0)
        while simulator.workers(role) < 2 or (action == 2 and simulator.workers(role) < 4):
            simulator.add(role, at + 3.0)
    simulator.run_out()
    ended = ~np.isnan(np.array(simulator.done_s))
    assert ended.all(), f"{np.flatnonzero(~ended)[:10]} never ended"
    assert sorted(set(simulator.finished)) == list(range(len(workload)))
    assert len(simulator.finished) == len(workload), "each ends once"
    for prefill in simulator.prefill:
        assert (prefill.pinned_tokens, prefill.unsent, prefill.queued_tokens) == (0, 0, 0)
    for decode in simulator.decode:
        assert (decode.kv_tokens, decode.reserved_tokens, decode.waiting_tokens) == (0, 0, 0)
    ttft, tpot = simulator.latencies()
    assert (ttft > 0).all()
    assert (tpot >= 0).all()


def test_a_worker_is_billed_from_its_start_until_it_is_gone() -> None:
    simulator = started(requests([(0.5, 100, 2), (90.0, 100, 2)]))
    simulator.run_until(10.0)
    simulator.add(Role.PREFILL, 40.0)
    simulator.run_until(20.0)
    assert simulator.billed_s() == pytest.approx(20 + 20 + 10)
    simulator.remove(Role.PREFILL)  # the one that is still starting goes first
    simulator.run_until(30.0)
    assert simulator.billed_s() == pytest.approx(30 + 30 + 10)
    assert simulator.routable(Role.PREFILL) == 1


def test_the_same_load_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        simulator = started(_load(1), 2, 1)
        simulator.run_out()
        runs.append((simulator.first_s, simulator.done_s))
    assert runs[0] == runs[1]


def test_a_worker_that_changes_role_ends_its_answers_beside_slower_prompts_and_is_billed_once() -> None:
    simulator = started(requests([(0.0, 1000, 300), (0.5, 1000, 1), (9.0, 1000, 1)]), prefill=1, decode=2)
    simulator.run_until(0.4)
    busy = next(worker for worker in simulator.decode if not worker.is_idle)
    idle = next(worker for worker in simulator.decode if worker is not busy)
    idle.reserved[99] = 50_000  # so that the busy one is the least loaded
    idle.reserved_tokens = 50_000
    assert simulator.flip(Role.DECODE, 2.0)
    simulator.kill(Role.PREFILL)
    assert (simulator.workers(Role.PREFILL), simulator.workers(Role.DECODE), simulator.routable(Role.PREFILL)) == (
        1,
        1,
        0,
    )
    simulator.run_out()
    assert simulator.done_s[0] < 3.5, "its answer went on"
    assert simulator.first_s[1] == pytest.approx(2.4 + 2 * (0.01 + 0.1)), "twice as long while the answer ran"
    assert simulator.first_s[2] == pytest.approx(9.0 + 0.01 + 0.1)
    simulator.run_until(10.0)
    assert simulator.billed_s() == pytest.approx(0.4 + 2 * 10.0)


def test_nobody_flips_where_nobody_serves() -> None:
    simulator = Simulator(ROUND_WORKER, requests([(1.0, 1000, 1)]))
    simulator.add(Role.PREFILL, 5.0)
    simulator.run_until(2.0)
    assert not simulator.flip(Role.PREFILL, 2.0)
    assert simulator.workers(Role.PREFILL) == 1
