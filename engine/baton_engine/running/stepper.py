"""The engine thread's loop body: plan, launch, collect, apply, with at most one step launched ahead of the results.

If a runner is done at once (CPU), its result is applied before the next plan. While a runner is still busy, the next
step is planned and launched first, so that the device never waits for the host. A sequence that the result then ends (a
stop id) costs one surplus row, whose token is dropped.

A pipeline of stages has as many steps launched as stages.

The next step is planned ahead, but not early: a request that arrives after a step was planned waits for the one after
it. So a step is planned when the one before it is nearly over (`spare_s`), if its length can be estimated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_load import LoadMeter, StepLoad
from baton_engine.scheduling.step_plan import Runner

STEP_SMOOTHING = 0.1
"""Weight of the newest step in the smoothed step duration."""
SURE_SHARE = 0.9
"""Share of a step's expected length that it surely lasts: lengths scatter."""
LAUNCH_S = 0.0015
"""Least time that planning and launching a step take the host next to other threads (medians near 1 ms)."""
LONGER_WEIGHT, SHORTER_WEIGHT = 0.2, 0.02
"""Weights of a new launch in the estimate, if it took longer or less than estimated: most launches should fit into the
estimate. Some hosts take 2 to 5 ms."""


def planning_s(expected_s: float, launch_s: float = LAUNCH_S) -> float:
    """Seconds after a step's begin at which the next one is planned, from the step's expected length. Pure."""
    return max(0.0, SURE_SHARE * expected_s - max(LAUNCH_S, launch_s))


@dataclass(frozen=True, slots=True)
class _Launched:
    load: StepLoad
    launched_s: float


class Stepper:
    """Drives one scheduler and one runner."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        observe: Callable[[int, StepLoad, float], None] = lambda step, load, seconds: None,
        stages: int = 1,
    ) -> None:
        """`observe` is called with each collected step's number, its load, and its duration in seconds. `stages`: of a
        pipeline, in which each stage has a step of its own in hand."""
        self.before_launch: Callable[[], None] = lambda: None
        """Called when a step is planned: the scheduler's decisions need not wait for the step's end."""
        self.steps = 0
        """Steps whose result was applied."""
        self.step_s = 0.0
        """Smoothed duration of recent steps; 0 before the first."""
        self._scheduler = scheduler
        self._runner = runner
        self._observe = observe
        self._meter = LoadMeter(scheduler.config.max_slots, scheduler.config.distinct_windows)
        self._launched: deque[_Launched] = deque()
        self._began_s = 0.0
        """Time at which the device began the oldest launched step."""
        self._launch_s = LAUNCH_S
        """Estimate of what planning and launching take at most, usually."""
        self._stages = stages
        self._max_launched = max(2, stages) if scheduler.config.one_step_ahead else 1

    @property
    def idle(self) -> bool:
        """True when nothing is launched, and nothing can be before a new request or a message of the transfer."""
        return not self._launched and not self._scheduler.has_work

    @property
    def computing_tokens(self) -> int:
        """Prompt tokens of steps that are launched and whose results are not applied yet."""
        return sum(step.load.prefill_tokens for step in self._launched)

    @property
    def is_computing(self) -> bool:
        """True while the oldest launched step is running."""
        return bool(self._launched) and not self._runner.is_done()

    @property
    def is_launched(self) -> bool:
        """True when the result of some launched step was not collected yet."""
        return bool(self._launched)

    def turn(self, now: float) -> bool:
        """Advance by one step. False when there was nothing to do.

        Waits for the device only when nothing can be planned, or the most steps are launched.
        """
        self.settle(lambda: now)
        return self.go_on(lambda: now)

    def settle(self, clock: Callable[[], float]) -> None:
        """Collect the oldest step's result if the step is over, or if no other can be launched before."""
        is_done = bool(self._launched) and self._runner.is_done()
        if is_done or len(self._launched) == self._max_launched:
            self._collect(clock, is_done=is_done)

    def spare_s(self, now: float) -> float:
        """Seconds from now in which the next step need not be planned yet; 0 where that is not known, and where a stage
        waits for it."""
        if self._stages > 1 or len(self._launched) != 1 or self._runner.is_done():
            return 0.0
        (running,) = self._launched
        expected_s = self._scheduler.expected_s(running.load.decode_rows, running.load.prefill_tokens)
        return 0.0 if expected_s is None else max(0.0, self._began_s + planning_s(expected_s, self._launch_s) - now)

    def go_on(self, clock: Callable[[], float], *, waits: bool = True) -> bool:
        """Plan and launch a step, or else wait for the one that runs. False when there was nothing to do.

        `waits` False: the caller waits itself, and so can take requests meanwhile.
        """
        began_s = clock()
        plan = self._scheduler.plan(began_s)
        if plan is not None:
            self.before_launch()
            self._runner.launch(plan)
            now = clock()
            if self._launched:  # a step alone may be computed while it is launched
                took_s = now - began_s
                weight = LONGER_WEIGHT if took_s > self._launch_s else SHORTER_WEIGHT
                self._launch_s += weight * (took_s - self._launch_s)
            if not self._launched:
                self._began_s = now
            self._launched.append(_Launched(self._meter.load(plan), now))
            if self._runner.is_done():
                self._collect(clock, is_done=True)
            return True
        if self._launched and waits:
            self._collect(clock, is_done=False)
            return True
        return False

    def _collect(self, clock: Callable[[], float], *, is_done: bool) -> None:
        """Collect and apply the oldest step's result. `is_done`: the step is known to be over; otherwise wait for
        it."""
        result = self._runner.collect()
        now = clock()
        self._scheduler.apply(result, now)
        step = self._launched.popleft()
        self._observe(result.step, step.load, result.duration_s)
        if self._launched:
            ended_s = min(now, self._began_s + result.duration_s) if is_done else now
            self._began_s = max(self._launched[0].launched_s, ended_s)
        weight = STEP_SMOOTHING if self.steps else 1.0
        self.step_s += weight * (result.duration_s - self.step_s)
        self.steps += 1
