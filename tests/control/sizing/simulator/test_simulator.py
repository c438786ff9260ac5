"""The twin on cases worked out by hand, and against a step-by-step reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baton_control.sizing.decision.capacity import latencies
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_control.sizing.simulator.decode_pool import _with_full_pools, _with_room, answers_end
from baton_control.sizing.simulator.prefill_pool import first_tokens
from baton_control.sizing.simulator.simulator import Simulator
from baton_simulate.synthetic import Shape, synthetic
from baton_testing.sizing.builders import ROUND_WORKER, requests
from baton_wire.messages.values import Role
from baton_wire.rules.step_times import DecodeTimes


def started(workload: Workload, prefill: int = 1, decode: int = 1, model: WorkerModel = ROUND_WORKER) -> Simulator:
    twin = Simulator(model, workload)
    for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        for _ in range(count):
            twin.add(role, 0.0)
    twin.run_until(0.0)
    return twin


def test_one_request_takes_its_prefill_its_hand_over_and_its_steps() -> None:
    twin = started(requests([(1.0, 1000, 3)]))
    twin.run_out()
    assert twin.first_s[0] == pytest.approx(1.0 + 0.01 + 0.1)
    landed = 1.11 + 1000 * 1e5 / 1e10 / 10 + 0.002  # the last layer, and the hand-over
    steps = (0.01 + 1e-4 + 1e-7 * 1000) + (0.01 + 1e-4 + 1e-7 * 1001)
    assert twin.done_s[0] == pytest.approx(landed + steps)


def test_prompts_that_queue_share_a_step_within_the_budget() -> None:
    twin = started(requests([(1.0, 1000, 1), (1.01, 800, 1), (1.02, 800, 1), (1.03, 800, 1)]))
    twin.run_out()
    first_step = 1.0 + 0.01 + 0.1
    second = first_step + 0.01 + 0.16  # two of 800 fit in 2000, a third does not
    third = second + 0.01 + 0.08
    assert twin.first_s == pytest.approx([first_step, second, second, third])


def test_workers_of_two_kinds_each_take_their_own_time_and_are_billed_apart() -> None:
    """One kind is through with a prompt and a step in half the time, and has two accelerators."""
    fast = replace(ROUND_WORKER.slowed(0.5, 0.5), accelerators=(2, 2))
    for kind, model, prefill_s, step_s in (("", None, 0.11, 0.0102), ("fast", fast, 0.055, 0.0051)):
        twin = Simulator(ROUND_WORKER, requests([(1.0, 1000, 2)]))
        for role in (Role.PREFILL, Role.DECODE):
            twin.add(role, 0.0, model, kind)
        twin.run_until(10.0)
        assert twin.first_s[0] == pytest.approx(1.0 + prefill_s)
        landed_s = twin.first_s[0] + 1000 * 1e5 / 1e10 / 10 + 0.002
        assert twin.done_s[0] == pytest.approx(landed_s + step_s)
        seconds = 10.0 * (1 if model is None else 2)
        assert twin.billed_by_kind() == pytest.approx({(Role.PREFILL, kind): seconds, (Role.DECODE, kind): seconds})


def test_a_worker_of_one_kind_is_stopped_and_the_other_serves_on() -> None:
    twin = Simulator(ROUND_WORKER, requests([(1.0, 1000, 2), (12.0, 1000, 2)]))
    fast = ROUND_WORKER.slowed(0.5, 0.5)
    for role in (Role.PREFILL, Role.DECODE):
        twin.add(role, 0.0, ROUND_WORKER, "slow")
        twin.add(role, 5.0, fast, "fast")
    twin.run_until(4.0)
    assert twin.kinds(Role.DECODE) == {"slow": (1, 1), "fast": (1, 0)}
    twin.run_until(10.0)
    for role in (Role.PREFILL, Role.DECODE):
        twin.remove(role, "slow")
        assert twin.kinds(role) == {"fast": (1, 1)}
    twin.run_until(20.0)
    assert twin.first_s == pytest.approx([1.11, 12.055])
    assert twin.billed_by_kind()[Role.PREFILL, "slow"] == pytest.approx(10.0)
    assert twin.billed_by_kind()[Role.PREFILL, "fast"] == pytest.approx(20.0)


def test_prompts_that_wait_at_the_gateway_go_to_a_worker_that_comes() -> None:
    first_s = []
    for hold_s in (None, 0.05):
        twin = started(requests([(1.0, 1000, 1), (1.01, 800, 1)]), model=replace(ROUND_WORKER, hold_s=hold_s))
        twin.run_until(1.02)
        twin.add(Role.PREFILL, 1.02)
        twin.run_out()
        first_s.append(twin.first_s[1])
    own = 0.01 + 0.08
    assert first_s == pytest.approx([1.11 + own, 1.02 + own])


def test_prompts_that_can_be_in_time_go_before_those_that_are_late() -> None:
    rows = [(1.0, 10_000, 1), (1.05, 100, 1), (1.8, 100, 1), (1.9, 100, 1), (1.95, 2000, 1)]
    order = []
    for ttft_s in (None, 0.8):
        twin = Simulator(replace(ROUND_WORKER, hold_s=0.0), requests(rows), ttft_s=ttft_s)
        twin.add(Role.PREFILL, 0.0)
        twin.add(Role.DECODE, 0.0)
        twin.run_out()
        order.append(np.argsort(twin.first_s).tolist())
    assert order == [[0, 1, 2, 3, 4], [0, 4, 2, 3, 1]], "the longest has the least slack"


def test_many_steps_at_once_end_when_single_steps_would() -> None:
    rows = [(0.1 * i, 200 + 37 * i, 5 + 11 * (i % 7)) for i in range(30)]
    assert answers_end(ROUND_WORKER, requests(rows), 1) == pytest.approx(_reference(rows), abs=1e-9)


def test_answers_that_fill_the_pool_all_end_and_more_workers_end_them_sooner() -> None:
    rows = [(0.05 * i, 300 + 37 * (i % 11), 5 + 40 * (i % 7)) for i in range(60)]
    tight = replace(ROUND_WORKER, kv_capacity_tokens=2500)
    roomy, one, two = (
        answers_end(model, requests(rows), count) for model, count in ((ROUND_WORKER, 1), (tight, 1), (tight, 2))
    )
    assert one.max() < np.inf
    assert roomy.mean() < two.mean() < one.mean(), "some waited for blocks, or were put back"


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("per_kv_s", [0.0, 1e-7])
def test_a_pool_with_room_is_played_faster_and_ends_to_the_last_digit_as_any_other(
    workers: int, per_kv_s: float
) -> None:
    random = np.random.default_rng(workers)
    decode = DecodeTimes(0.01, 1e-4, 0.0, per_kv_s, knee=128.0, pad_to=1)
    model = replace(ROUND_WORKER, decode=decode, max_sequences=400, kv_capacity_tokens=10_000_000)
    for rate in (0.5, 5.0, 20.0):
        times = np.cumsum(random.gamma(0.3, 1 / (0.3 * rate * workers), 300)).tolist()
        prompts, answers = random.integers(1, 900, 300).tolist(), random.integers(1, 200, 300).tolist()
        load = requests(list(zip(times, prompts, answers, strict=True)))
        fast, other = _with_room(model, load, workers), _with_full_pools(model, load, workers)
        assert fast is not None
        assert fast.tolist() == other.tolist()
    waits = _with_room(replace(model, max_sequences=3), load, workers)
    assert waits is not None
    assert waits.tolist() == _with_full_pools(replace(model, max_sequences=3), load, workers).tolist()
    assert waits.mean() > 2 * other.mean(), "they waited for a place"
    assert _with_room(replace(model, kv_capacity_tokens=2500), load, workers) is None, "this is left to the other"


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("hold_s", [None, 0.02])
@pytest.mark.parametrize("ttft_s", [None, 0.5])
def test_prompts_by_themselves_start_when_the_whole_twin_starts_them(
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
        twin = Simulator(model, workload, ttft_s=ttft_s)
        for role, count in ((Role.PREFILL, workers), (Role.DECODE, 1)):
            for _ in range(count):
                twin.add(role, 0.0)
        twin.run_until(0.0)
        twin.run_out()
        assert twin.first_s == first_tokens(model, workload, workers, 0.9, ttft_s).tolist()


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
    twin = started(requests([(1.0, 1900, 50), (1.0, 1900, 2)]), prefill=2, model=tight)
    twin.run_out()
    assert twin.done_s[1] > twin.done_s[0], "the second could not land beside the first"
    assert twin.retries == 0


def test_a_full_pool_preempts_the_newest_which_still_ends() -> None:
    tight = replace(ROUND_WORKER, kv_capacity_tokens=2500)
    twin = started(requests([(1.0, 1000, 700), (1.0, 1000, 700)]), model=tight)
    twin.run_out()
    assert twin.retries >= 1
    assert not np.isnan(twin.done_s).any()
    assert twin.done_s[0] < twin.done_s[1]


def _load(seed: int) -> Workload:
    return synthetic(Shape.BURST, 12.0, 120.0, np.random.default_rng(seed), prompt=(600, 0.7), output=(60, 0.8))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_leaked_when_workers_die_drain_and_join(seed: int) -> None:
    workload = _load(seed)
    twin = started(workload, 3, 3)
    random = np.random.default_rng(seed)
    for at in range(5, 115, 5):
        twin.run_until(float(at))
        role = (Role.PREFILL, Role.DECODE)[int(random.integers(2))]
        action = int(random.integers(4))
        if action == 0:
            twin.kill(role)
        elif action == 1 and twin.workers(role) > 1:
            twin.remove(role)
        elif action == 3 and twin.routable(role) > 1:
            twin.flip(role, 2.0)
        while twin.workers(role) < 2 or (action == 2 and twin.workers(role) < 4):
            twin.add(role, at + 3.0)
    twin.run_out()
    ended = ~np.isnan(np.array(twin.done_s))
    assert ended.all(), f"{np.flatnonzero(~ended)[:10]} never ended"
    assert sorted(set(twin.finished)) == list(range(len(workload)))
    assert len(twin.finished) == len(workload), "each ends once"
    for prefill in twin.prefill:
        assert (prefill.pinned_tokens, prefill.unsent, prefill.queued_tokens) == (0, 0, 0)
    for decode in twin.decode:
        assert (decode.kv_tokens, decode.reserved_tokens, decode.waiting_tokens) == (0, 0, 0)
    ttft, tpot = latencies(twin, workload)
    assert (ttft > 0).all()
    assert (tpot >= 0).all()


def test_a_worker_is_billed_from_its_start_until_it_is_gone() -> None:
    twin = started(requests([(0.5, 100, 2), (90.0, 100, 2)]))
    twin.run_until(10.0)
    twin.add(Role.PREFILL, 40.0)
    twin.run_until(20.0)
    assert twin.billed_s() == pytest.approx(20 + 20 + 10)
    twin.remove(Role.PREFILL)  # the one that is still starting goes first
    twin.run_until(30.0)
    assert twin.billed_s() == pytest.approx(30 + 30 + 10)
    assert twin.routable(Role.PREFILL) == 1


def test_the_same_load_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        twin = started(_load(1), 2, 1)
        twin.run_out()
        runs.append((twin.first_s, twin.done_s))
    assert runs[0] == runs[1]


def test_a_worker_that_changes_role_ends_its_answers_beside_slower_prompts_and_is_billed_once() -> None:
    twin = started(requests([(0.0, 1000, 300), (0.5, 1000, 1), (9.0, 1000, 1)]), prefill=1, decode=2)
    twin.run_until(0.4)
    busy = next(worker for worker in twin.decode if not worker.is_idle)
    idle = next(worker for worker in twin.decode if worker is not busy)
    idle.reserved[99] = 50_000  # so that the busy one is the least loaded
    idle.reserved_tokens = 50_000
    assert twin.flip(Role.DECODE, 2.0)
    twin.kill(Role.PREFILL)
    assert (twin.workers(Role.PREFILL), twin.workers(Role.DECODE), twin.routable(Role.PREFILL)) == (1, 1, 0)
    twin.run_out()
    assert twin.done_s[0] < 3.5, "its answer went on"
    assert twin.first_s[1] == pytest.approx(2.4 + 2 * (0.01 + 0.1)), "twice as long while the answer ran"
    assert twin.first_s[2] == pytest.approx(9.0 + 0.01 + 0.1)
    twin.run_until(10.0)
    assert twin.billed_s() == pytest.approx(0.4 + 2 * 10.0)


def test_nobody_flips_where_nobody_serves() -> None:
    twin = Simulator(ROUND_WORKER, requests([(1.0, 1000, 1)]))
    twin.add(Role.PREFILL, 5.0)
    twin.run_until(2.0)
    assert not twin.flip(Role.PREFILL, 2.0)
    assert twin.workers(Role.PREFILL) == 1
