"""Benches of workers: every step is written down, however the stepper is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.serving.traced_worker import read_steps, trace_steppers

from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.scheduler import Scheduler
from baton_testing.engine.runners import ToyRunner
from baton_testing.engine.toy_engine import Engine, config, spec

SEEN: list[int] = []
MADE: dict[str, Callable[[Scheduler, Any], Stepper]] = {
    "alone": Stepper,
    "a worker's": lambda scheduler, runner: Stepper(scheduler, runner, lambda step, load, seconds: SEEN.append(step)),
    "of stages": lambda scheduler, runner: Stepper(scheduler, runner, lambda *_: None, 3),
    "of stages, by name": lambda scheduler, runner: Stepper(scheduler, runner, stages=3),
}


@pytest.mark.parametrize("made", MADE)
def test_every_step_is_written_down(made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__", "go_on"):
        monkeypatch.setattr(Stepper, name, getattr(Stepper, name))  # tracing replaces it; put back after the test
    SEEN.clear()
    path = tmp_path / "steps"
    with path.open("a") as file:
        trace_steppers(file)
        scheduler = Scheduler(config())
        runner = ToyRunner(4, scheduler.pool)
        engine = Engine(scheduler, runner, MADE[made](scheduler, runner))
        scheduler.submit(spec(1, 20, max_tokens=5), 0.0)
        engine.run()
    steps = read_steps(path)
    assert [step.step for step in steps] == [plan.step for plan in engine.plans()]
    assert (steps[0].prompt_tokens, steps[-1].rows) == (20, 1)
    assert made != "a worker's" or [step.step for step in steps] == SEEN
