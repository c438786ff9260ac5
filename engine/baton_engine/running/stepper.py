"""The engine thread's loop body: plan, launch, collect, apply, with at most one step launched ahead of the results.

A runner that is done at once (CPU) gets its result applied before the next plan, so nothing acts late. On a runner that
is still busy the next step is planned and launched first, so that the device never waits for the host; what the
result then ends (a stop id) costs one surplus row, whose token is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from baton_engine.running.step_load import LoadMeter, StepLoad
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_plan import Runner

STEP_SMOOTHING = 0.1
"""Weight of the newest step in the smoothed step duration."""


class Stepper:
    """Drives one scheduler and one runner."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        observe: Callable[[int, StepLoad, float], None] = lambda step, load, seconds: None,
    ) -> None:
        """`observe` is told each collected step's number, what was in it, and its duration in seconds."""
        self.before_launch: Callable[[], None] = lambda: None
        """Called when a step is planned: what the scheduler decided need not wait for the step to be over."""
        self.steps = 0
        """Steps whose result was applied."""
        self.step_s = 0.0
        """Smoothed duration of recent steps; 0 before the first."""
        self._scheduler = scheduler
        self._runner = runner
        self._observe = observe
        self._meter = LoadMeter(scheduler.config.max_slots, scheduler.config.distinct_windows)
        self._launched: deque[StepLoad] = deque()
        self._max_launched = 2 if scheduler.config.one_step_ahead else 1

    @property
    def idle(self) -> bool:
        """Nothing is launched and nothing could be without a word from outside."""
        return not self._launched and not self._scheduler.has_work

    @property
    def computing_tokens(self) -> int:
        """Prompt tokens of steps that are launched and whose results are not applied yet."""
        return sum(load.prefill_tokens for load in self._launched)

    def turn(self, now: float) -> bool:
        """Move on by one step. False when there was nothing to do.

        Waits for the device only when nothing can be planned.
        """
        launched = len(self._launched)
        if (launched and self._runner.is_done()) or launched == self._max_launched:
            self._collect(now)
        plan = self._scheduler.plan(now)
        if plan is not None:
            self.before_launch()
            self._runner.launch(plan)
            self._launched.append(self._meter.load(plan))
            if self._runner.is_done():
                self._collect(now)
            return True
        if self._launched:
            self._collect(now)
            return True
        return False

    def _collect(self, now: float) -> None:
        result = self._runner.collect()
        self._scheduler.apply(result, now)
        self._observe(result.step, self._launched.popleft(), result.duration_s)
        weight = STEP_SMOOTHING if self.steps else 1.0
        self.step_s += weight * (result.duration_s - self.step_s)
        self.steps += 1
