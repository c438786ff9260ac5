"""Inputs: measurements that are refused, forecasts, traces."""

from __future__ import annotations

import gzip
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from baton_control.errors import ManifestError
from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.decision.demand import capacity_steps, waiting_at
from baton_control.sizing.decision.forecast import forecast
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.model_shape import LLAMA_8B
from baton_control.sizing.inputs.observations import (
    Arrivals,
    Known,
    ProvenZero,
    Unknown,
    measure_arrivals,
    measure_number,
    merge_arrivals,
)
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.simulator.simulator import Simulator
from baton_simulate.trace_files import read_trace
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.hardware import H200

SHAPE = RequestShape(1000, 100)


@pytest.mark.parametrize(
    ("count", "stamp"), [(None, 100.0), (float("nan"), 100.0), (-1.0, 100.0), (1e300, 100.0), (5.0, 10.0), (5.0, 200.0)]
)
def test_absurd_or_stale_arrivals_are_unknown(count: float | None, stamp: float) -> None:
    assert isinstance(measure_arrivals(count, 10.0, (SHAPE,), stamp, 100.0), Unknown)


def test_zero_is_proven_only_by_a_fresh_report_and_absurd_lengths_are_left_out() -> None:
    assert isinstance(measure_arrivals(0.0, 10.0, (), 100.0, 100.0), ProvenZero)
    reading = measure_arrivals(5.0, 10.0, (SHAPE, RequestShape(1 << 30, 5)), 100.0, 101.0)
    assert isinstance(reading, Arrivals)
    assert reading.sample == (SHAPE,)
    assert isinstance(measure_number(float("inf"), "queue"), Unknown)
    assert measure_number(3.0, "queue") == Known(3.0)


def test_one_unknown_gateway_makes_the_sum_unknown() -> None:
    some = Arrivals(5, 10.0, (SHAPE,))
    assert isinstance(merge_arrivals([some, Unknown("gone")]), Unknown)
    total = merge_arrivals([some, ProvenZero(), Arrivals(7, 10.0, (SHAPE, SHAPE))])
    assert isinstance(total, Arrivals)
    assert total.count == 12


def test_a_steady_load_is_forecast_as_it_is_and_a_step_is_seen_at_once() -> None:
    steady = forecast([10.0] * 60, 10.0, 60.0, 0.75)
    assert steady.mean == pytest.approx(10.0)
    assert steady.high == pytest.approx(10.0)
    assert forecast([10.0] * 60 + [40.0], 10.0, 60.0, 0.75).mean == pytest.approx(40.0)


def test_one_step_does_not_promise_a_next_one_but_steps_that_recur_do() -> None:
    once = forecast([5.0] * 40 + [20.0] * 20, 10.0, 120.0, 0.75)
    assert once.high < 24.0
    often = forecast(([5.0] * 14 + [20.0] * 6) * 6 + [5.0] * 10, 10.0, 120.0, 0.75)
    assert often.high > 12.0


def test_a_step_promises_no_more_than_it_was() -> None:
    for after in range(3, 20):
        assert forecast([4.0] * 40 + [12.0] * after, 10.0, 150.0, 0.8).high < 15.0


def test_long_prompts_now_and_then_are_no_step() -> None:
    prompts = [5.0] * 60 + [17.0]
    assert forecast(prompts, 10.0, 60.0, 0.75).mean > 15.0
    assert forecast(prompts, 10.0, 60.0, 0.75, spread=8.0).mean < 8.0


def test_a_step_that_is_over_is_not_forecast() -> None:
    assert forecast([10.0] * 60 + [40.0, 10.0], 10.0, 60.0, 0.75).mean < 22.0


def test_a_backlog_is_what_the_workers_on_their_way_leave_of_it() -> None:
    assert capacity_steps(2, 2, (), 0.0, 100.0) == ((0.0, 2),)
    orders = ((30.0, 3), (90.0, 2))
    assert capacity_steps(4, 6, orders, 10.0, 100.0) == ((0.0, 4), (80.0, 6)), "the first order is there already"
    assert capacity_steps(1, 3, (), 10.0, 100.0) == ((0.0, 1), (50.0, 3)), "nobody knows when: half-way"
    steps = ((0.0, 1), (50.0, 3))
    assert waiting_at(100.0, 2.0, 1.0, steps, 100.0) == pytest.approx(100 + 50 * 1 - 50 * 1)
    assert waiting_at(10.0, 0.5, 1.0, steps, 100.0) == 0.0


def test_a_ramp_is_forecast_ahead() -> None:
    ramp = [5.0 + 0.2 * place for place in range(100)]
    ahead = forecast(ramp, 10.0, 120.0, 0.75)
    assert ahead.high > ramp[-1] + 0.2 * 8


def test_more_load_never_needs_fewer_workers_and_answers_hold_when_verified() -> None:
    random = np.random.default_rng(5)
    rows = zip(random.integers(100, 3000, 100).tolist(), random.integers(2, 400, 100).tolist(), strict=True)
    mix = Mix(tuple(RequestShape(p, o) for p, o in rows))
    sizer = SimulatedSizer(worker_model(LLAMA_8B, H200, max_step_tokens=4096), Targets(0.5, 0.025))
    for role in (Role.PREFILL, Role.DECODE):
        sizes = [sizer.required(role, mix, rate) for rate in (5.0, 40.0, 120.0)]
        assert sizes == sorted(sizes)
        assert sizes[-1] > 1
    workers = (sizer.required(Role.PREFILL, mix, 80.0), sizer.required(Role.DECODE, mix, 80.0))
    assert min(_shares_met(sizer, mix, 80.0, workers)) >= 0.93
    assert _shares_met(sizer, mix, 80.0, (1, 1))[0] < 0.9


def test_what_is_known_of_other_loads_gives_the_answer_that_asking_would() -> None:
    random = np.random.default_rng(6)
    rows = zip(random.integers(100, 3000, 100).tolist(), random.integers(2, 400, 100).tolist(), strict=True)
    mix = Mix(tuple(RequestShape(p, o) for p, o in rows), 4.0)
    sizer = SimulatedSizer(worker_model(LLAMA_8B, H200, max_step_tokens=4096), Targets(0.5, 0.025))
    asked = SimulatedSizer(sizer.model, sizer.targets)
    for role in (Role.PREFILL, Role.DECODE):
        wanted = asked.reachable_share(role, mix)
        for rate in random.uniform(5.0, 90.0, 40).tolist():
            least = max(1, ceil(rate / asked.most_per_s(role, mix)))
            keep = (count for count in range(least, 50) if asked.share_met(role, mix, rate, count) >= wanted)
            assert sizer.required(role, mix, rate) == next(keep)


def _shares_met(sizer: SimulatedSizer, mix: Mix, rate_per_s: float, workers: tuple[int, int]) -> tuple[float, float]:
    """Within TTFT and TPOT, with both pools and the links between them."""
    workload = mix.draw(rate_per_s, 4_000)
    simulator = Simulator(sizer.model, workload, ttft_s=sizer.targets.ttft_s)
    for role, count in zip(POOL_ROLES, workers, strict=True):
        for _ in range(count):
            simulator.add(role, 0.0)
    simulator.run_out()
    ttft, tpot = (latencies[len(workload) // 2 :] for latencies in simulator.latencies())
    return float(np.mean(ttft <= sizer.targets.ttft_s)), float(np.mean(tpot <= sizer.targets.tpot_s))


def test_an_unreachable_target_does_not_ask_for_every_worker() -> None:
    mix = Mix((RequestShape(100, 20), RequestShape(30_000, 20)))
    sizer = SimulatedSizer(worker_model(LLAMA_8B, H200), Targets(0.5, 0.025))
    assert sizer.reachable_share(Role.PREFILL, mix) < 0.6
    assert sizer.required(Role.PREFILL, mix, 2.0) < 20


def test_the_three_trace_formats_are_told_apart(tmp_path: Path) -> None:
    azure = tmp_path / "a.csv"
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    workload = read_trace(azure)
    assert workload.arrival_s.tolist() == pytest.approx([0.0, 4.314579])
    assert workload.prompt_tokens.tolist() == [374, 396]
    mooncake = tmp_path / "m.jsonl"
    mooncake.write_text(
        '{"timestamp": 0, "input_length": 1200, "output_length": 6, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 500, "input_length": 1300, "output_length": 4, "hash_ids": [0, 1, 9]}\n'
    )
    assert read_trace(mooncake).cached_tokens.tolist() == [0, 1024]
    own = tmp_path / "o.csv"
    own.write_text("arrival_s,prompt_tokens,output_tokens\n1,10,5\n3,20,6\n")
    assert read_trace(own).arrival_s.tolist() == [0.0, 2.0]
    packed = tmp_path / "own.csv.gz"
    packed.write_bytes(gzip.compress(own.read_bytes()))
    assert read_trace(packed).arrival_s.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        "arrival_s,prompt_tokens,output_tokens\n",
        "arrival_s,prompt_tokens,output_tokens\n1,-5,2\n",
        '{"a":1}\n',
    ],
)
def test_a_bad_trace_is_an_error_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(ManifestError, match="line"):
        read_trace(path)
