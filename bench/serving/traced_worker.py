"""A worker that writes down each engine step: `python -m bench.serving.traced_worker MODULE FILE FLAG …`.

MODULE is the worker's program, such as `baton_decode_worker`, which runs as it is otherwise. A line of FILE is a
`TracedStep`. It shows where a token's time goes: on the device, in planning and launching, or between the two.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Final

from bench.results import Cell, percentile
from bench.serving.predicted_worker import StepTimes

from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.step_load import StepLoad
from baton_engine.scheduling.step_plan import StepPlan, StepResult

FLUSH_S: Final = 0.5
PAUSE_S: Final = 0.05
"""A worker that launches nothing for longer had nothing to do."""


@dataclass(slots=True)
class TracedStep:
    """One step. Times are seconds on CLOCK_MONOTONIC; `cpu` ones are of the engine's thread."""

    step: int
    planned_s: float
    """Begin of its planning."""
    plan_s: float
    """Planning, and handing out the events of the step before."""
    plan_cpu_s: float
    launch_s: float
    launch_cpu_s: float
    is_ahead: bool
    """The step before was launched and not collected yet, …"""
    is_late: bool
    """… but was over already when this one was launched: the device waited."""
    collected_s: float = 0.0
    device_s: float = 0.0
    prompt_tokens: int = 0
    prompt_pairs: float = 0.0
    rows: int = 0
    kv_tokens: int = 0


class TracedRunner:
    """A runner whose launches and results are noted."""

    def __init__(self, runner: Any, file: IO[str]) -> None:
        self._runner, self._file = runner, file
        self._pending: deque[TracedStep] = deque()
        self._flushed_s = 0.0
        self.turn_s = self.turn_cpu_s = 0.0
        """When the stepper began to plan."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan) -> None:
        is_late = bool(self._pending) and self._runner.is_done()
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        self._runner.launch(plan)
        plan_s, plan_cpu_s = began_s - self.turn_s, began_cpu_s - self.turn_cpu_s
        launch_s, launch_cpu_s = time.monotonic() - began_s, time.thread_time() - began_cpu_s
        times = plan_s, plan_cpu_s, launch_s, launch_cpu_s
        self._pending.append(TracedStep(plan.step, self.turn_s, *times, bool(self._pending), is_late))

    def collect(self) -> StepResult:
        result: StepResult = self._runner.collect()
        self._pending[0].collected_s = time.monotonic()
        return result

    def observe(self, step: int, load: StepLoad, seconds: float) -> None:
        traced = self._pending.popleft()
        traced.device_s, traced.rows, traced.kv_tokens = seconds, load.decode_rows, load.kv_tokens
        traced.prompt_tokens, traced.prompt_pairs = load.prefill_tokens, load.prefill_pairs
        self._file.write(json.dumps(astuple(traced)) + "\n")
        if traced.collected_s - self._flushed_s > FLUSH_S:
            self._flushed_s = traced.collected_s
            self._file.flush()


def trace_steppers(file: IO[str]) -> None:
    """Trace the steps of all steppers that are made from now on."""
    make, go_on = Stepper.__init__, Stepper.go_on
    runners: dict[int, TracedRunner] = {}

    def init(
        self: Stepper,
        scheduler: Any,
        runner: Any,
        observe: Callable[[int, StepLoad, float], None] = lambda step, load, seconds: None,
        *others: Any,
        **named: Any,
    ) -> None:
        traced = runners[id(self)] = TracedRunner(runner, file)

        def observe_both(step: int, load: StepLoad, seconds: float) -> None:
            traced.observe(step, load, seconds)
            observe(step, load, seconds)

        make(self, scheduler, traced, observe_both, *others, **named)

    def timed_go_on(self: Stepper, clock: Callable[[], float], *, waits: bool = True) -> bool:
        traced = runners[id(self)]
        traced.turn_s, traced.turn_cpu_s = time.monotonic(), time.thread_time()
        return go_on(self, clock, waits=waits)

    Stepper.__init__ = init  # type: ignore[method-assign]
    Stepper.go_on = timed_go_on  # type: ignore[method-assign]


def read_steps(path: Path) -> list[TracedStep]:
    """The steps of a file; a last line that is cut off is left out."""
    if not path.exists():
        return []
    return [TracedStep(*json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def step_figures(
    steps: Sequence[TracedStep], since_s: float, until_s: float, times: StepTimes | None
) -> dict[str, Cell]:
    """Where the time of a token goes on a worker, over steps with rows that follow one another. Times are ms; None
    stands for a figure of which there was no step.

    `times`: those that a prediction has, for the same steps. None: nothing is predicted.
    """
    pairs = [
        (before, step)
        for before, step in pairwise(steps)
        if since_s <= before.collected_s and step.collected_s <= until_s and before.rows and step.rows
        if step.planned_s - before.collected_s < PAUSE_S
    ]
    if not pairs:
        return {}
    after = [step for _, step in pairs]
    loads = [StepLoad(s.prompt_tokens, s.prompt_pairs, int(s.prompt_tokens > 0), s.rows, s.kv_tokens) for s in after]
    period = [step.collected_s - before.collected_s for before, step in pairs]
    plain = [(step, load) for step, load in zip(after, loads, strict=True) if not step.prompt_tokens and step.is_ahead]
    pieces = [step.prompt_tokens for step in after if step.prompt_tokens]
    row: dict[str, Cell] = {"steps": len(pairs), "rows": round(fmean(s.rows for s in after), 2)}
    row["KV tokens"] = round(fmean(s.kv_tokens for s in after))
    row["pieces %"] = round(100 * len(pieces) / len(after), 1)
    row["piece tokens"] = round(fmean(pieces)) if pieces else None
    row["period"], row["period p95"] = _mean_ms(period), _ms(percentile(period, 95))
    row["device"] = _mean_ms([s.device_s for s in after])
    row["between"] = _ms(fmean(period) - fmean(s.device_s for s in after))
    row["device, no piece"] = _mean_ms([s.device_s for s, _ in plain])
    if times is not None:
        row["predicted"] = _mean_ms([times.seconds(load) for load in loads])
        row["predicted, no piece"] = _mean_ms([times.seconds(load) for _, load in plain])
    row["ahead %"] = round(100 * fmean(s.is_ahead for s in after), 1)
    row["late %"] = round(100 * fmean(s.is_late for s in after), 1)
    for name, wall, cpu in (
        ("plan", [s.plan_s for s in after], [s.plan_cpu_s for s in after]),
        ("launch", [s.launch_s for s in after], [s.launch_cpu_s for s in after]),
    ):
        row[name], row[f"{name} p95"], row[f"{name} CPU"] = _mean_ms(wall), _ms(percentile(wall, 95)), _mean_ms(cpu)
    row["collected to planned"] = _mean_ms(
        [max(0.0, step.planned_s - before.collected_s) for before, step in pairs if not step.is_ahead]
    )
    return row


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return _ms(fmean(seconds)) if seconds else None


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


def main() -> None:
    module, path, *flags = sys.argv[1:]
    with Path(path).open("a", encoding="utf-8") as file:
        trace_steppers(file)
        sys.argv = [module, *flags]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
