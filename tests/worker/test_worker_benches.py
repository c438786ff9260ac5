"""Benches of workers: every step is written down, however the stepper is made, and no figure stands for none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.serving.predicted_worker import STEP_TIMES, times_of_model
from bench.serving.ranked_fleets import Lanes
from bench.serving.traced_worker import TracedStep, read_steps, step_figures, trace_steppers

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


def traced(number: int, *, prompt_tokens: int = 0, is_ahead: bool = True) -> TracedStep:
    at_s = 0.02 * number
    return TracedStep(
        *(number, at_s, 0.001, 0.001, 0.002, 0.002),
        is_ahead=is_ahead,
        is_late=False,
        collected_s=at_s + 0.015,
        device_s=0.01,
        prompt_tokens=prompt_tokens,
        rows=4,
        kv_tokens=400,
    )


def test_figures_of_which_there_was_no_step_are_unknown() -> None:
    ahead = step_figures([traced(number) for number in range(3)], 0.0, 1.0, None)
    assert (ahead["steps"], ahead["pieces %"], ahead["device, no piece"]) == (2, 0.0, 10.0)
    assert (ahead["piece tokens"], ahead["collected to planned"]) == (None, None)
    pieces = step_figures([traced(n, prompt_tokens=64, is_ahead=False) for n in range(3)], 0.0, 1.0, None)
    assert (pieces["piece tokens"], pieces["collected to planned"]) == (64, 5.0)
    assert pieces["device, no piece"] is None


def test_steps_of_a_model_without_known_times_are_not_predicted() -> None:
    assert times_of_model("Qwen3-30B-A3B", "bf16") is STEP_TIMES["h200-qwen3-30b-a3b"]
    assert times_of_model("Llama-3.1-8B", "fp8") is None
    steps = [traced(number) for number in range(3)]
    assert "predicted" in step_figures(steps, 0.0, 1.0, STEP_TIMES["h200"])
    assert not [name for name in step_figures(steps, 0.0, 1.0, None) if "predicted" in name]


def test_no_answer_has_no_longest_wait() -> None:
    figures = Lanes("http://127.0.0.1:1", []).figures()
    assert (figures["answers"], figures["lost"]) == (0, 0)
    assert (figures["TTFT max s"], figures["gap p50 ms"], figures["gap max s"]) == (None, None, None)
