"""When a step is planned whose predecessor still runs: ahead of its end, and no earlier than that needs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from baton_engine.running.stepper import LAUNCH_S, Stepper, planning_s
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_plan import SlotTokens, StepPlan, StepResult
from baton_wire.messages.values import RequestKey, SamplingParams

STEP_S = 0.01


class Device:
    """Steps of one length, one after the other, on a clock that waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._free_s = 0.0
        self._launched: list[tuple[StepPlan, float]] = []

    def launch(self, plan: StepPlan) -> None:
        self._free_s = max(self.now, self._free_s) + STEP_S
        self._launched.append((plan, self._free_s))

    def is_done(self) -> bool:
        return bool(self._launched) and self.now >= self._launched[0][1]

    def collect(self) -> StepResult:
        plan, end_s = self._launched.pop(0)
        self.now = max(self.now, end_s)
        slots = (*(slot for chunk in plan.prefill for slot in chunk.sample), *plan.decode)
        return StepResult(plan.step, tuple(SlotTokens(slot, (7,)) for slot in slots), STEP_S)


def submit(scheduler: Scheduler, number: int) -> None:
    key = RequestKey(bytes([number]) * 16, 1)
    sampling = SamplingParams(max_tokens=40, temperature=0.0)
    scheduler.submit(SequenceSpec(key, (1, 2, 3), 3, (0,), sampling, "", 99.0), 0.0)


def stepping() -> tuple[Device, Scheduler, Stepper]:
    """One sequence decodes, and one step of it runs."""
    device = Device()
    scheduler = Scheduler(EngineConfig(num_blocks=32, block_tokens=4, max_slots=4, max_context_tokens=64))
    stepper = Stepper(scheduler, cast(Any, device))
    submit(scheduler, 1)
    for _ in range(6):
        stepper.settle(lambda: device.now)
        stepper.go_on(lambda: device.now)
    stepper.settle(lambda: device.now)
    return device, scheduler, stepper


@pytest.mark.parametrize(("expected_s", "seconds"), [(0.0, 0.0), (0.001, 0.0), (0.01, 0.0075), (0.02, 0.0165)])
def test_a_step_is_planned_a_tenth_and_a_launch_before_the_end(expected_s: float, seconds: float) -> None:
    assert planning_s(expected_s) == pytest.approx(seconds)


def test_the_next_step_waits_until_the_one_that_runs_is_nearly_over() -> None:
    device, _, stepper = stepping()
    began_s = device.now
    assert stepper.spare_s(began_s) == pytest.approx(planning_s(STEP_S))
    assert stepper.spare_s(began_s + STEP_S - LAUNCH_S) == 0.0


def test_what_arrives_meanwhile_is_in_the_very_next_step() -> None:
    device, scheduler, stepper = stepping()
    device.now += stepper.spare_s(device.now)
    submit(scheduler, 2)
    stepper.go_on(lambda: device.now)
    assert stepper.computing_tokens == 3


def test_nothing_is_spared_while_nothing_runs_or_two_steps_are_launched() -> None:
    device, _, stepper = stepping()
    stepper.go_on(lambda: device.now)
    assert stepper.spare_s(device.now) == 0.0


def test_a_host_that_launches_slowly_plans_earlier() -> None:
    device, _, stepper = stepping()
    launch = device.launch

    def slow(plan: StepPlan) -> None:
        device.now += 0.004
        launch(plan)

    device.launch = slow  # type: ignore[method-assign]
    spare_s = []
    for _ in range(12):
        spare_s.append(stepper.spare_s(device.now))
        device.now += spare_s[-1]
        stepper.go_on(lambda: device.now)
        stepper.settle(lambda: device.now)
    assert spare_s[0] == pytest.approx(0.9 * STEP_S - LAUNCH_S)
    assert spare_s[-1] == pytest.approx(0.9 * STEP_S - 0.004, abs=0.0005), "launches are taken to take 4 ms"
    assert planning_s(STEP_S, 0.004) == pytest.approx(0.005)
    assert planning_s(STEP_S, 0.0) == planning_s(STEP_S), "never later than on a fast host"
