"""A worker as `goodput_predicted` has it: the real scheduler, and steps that take what was measured."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from baton_engine.running.stepper import planning_s
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_load import LoadMeter, StepLoad
from baton_engine.scheduling.step_plan import SlotTokens, StepPlan, StepResult
from baton_wire.messages.gateway_link import Hello, WorkerState
from baton_wire.messages.measures import StepTiming
from baton_wire.rules.gateway_rounds import GatewayRounds
from baton_worker.serving.gateway_links import CameSince


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one kind of GPU. Products are bound by weights to `knee` rows, then by computing. All in
    seconds."""

    weights_s: float
    row_s: float
    """Each row up to the knee."""
    over_knee_s: float
    """Each row beyond it."""
    knee: int
    kv_token_s: float
    prompts_s: float
    """Extra time of a step with prompts."""
    pair_s: float
    """Each pair of a prompt token and a position that it attends to."""
    launch_s: float
    """Launch time of a step of prompts alone on an idle device: it waits for the host. Others are launched ahead."""

    def seconds(self, load: StepLoad) -> float:
        rows = load.decode_rows + load.prefill_tokens
        seconds = self.weights_s + self.row_s * min(rows, self.knee) + self.over_knee_s * max(0, rows - self.knee)
        seconds += self.kv_token_s * load.kv_tokens
        if load.prefill_tokens:
            seconds += self.prompts_s + self.pair_s * load.prefill_pairs
        return seconds


@dataclass(frozen=True, slots=True)
class MeasuredTimes(StepTimes):
    """Step times between measured points: of experts, each row reads more of the weights until all are read."""

    points: tuple[tuple[int, float], ...] = ()
    """Rows and prompt tokens of a step, and its seconds with contexts that are short."""

    def seconds(self, load: StepLoad) -> float:
        rows, seconds = zip(*self.points, strict=True)
        return (
            float(np.interp(load.decode_rows + load.prefill_tokens, rows, seconds)) + self.kv_token_s * load.kv_tokens
        )


_GPT_OSS_120B: Final = (
    *((1, 2.38e-3), (8, 7.61e-3), (32, 15.8e-3), (64, 21e-3), (128, 23.5e-3), (256, 26e-3), (512, 29e-3)),
    *((1_024, 41e-3), (2_048, 69e-3), (8_192, 192e-3)),
)
"""Whole steps at 1, 8 and 32 rows and at prompts of 2,048 and 8,192; between them by the experts' layers
(lab/experts.md)."""
_GPT_OSS_20B: Final = (
    *((1, 1.68e-3), (2, 2.2e-3), (4, 3e-3), (8, 4.2e-3), (32, 5.6e-3), (128, 6.9e-3), (512, 11e-3)),
    *((1_024, 17e-3), (4_096, 57e-3), (8_192, 114e-3)),
)
_QWEN3_30B_A3B: Final = (
    *((1, 2.7e-3), (8, 7.5e-3), (16, 10.8e-3), (32, 14.8e-3), (128, 18.8e-3), (512, 21e-3)),
    *((1_024, 26e-3), (4_096, 58e-3), (8_192, 131e-3)),
)
"""As above: whole steps of 1, 32 and 128 rows and of prompts, between them the experts' layers."""
STEP_TIMES: Final[dict[str, StepTimes]] = {
    "h200": StepTimes(4.15e-3, 6.5e-6, 22.4e-6, 144, 38.9e-9, 0.9e-3, 0.63e-9, 2.5e-3),
    "h100": StepTimes(5.53e-3, 8e-6, 20e-6, 176, 48.5e-9, 0.8e-3, 1.25e-9, 3.5e-3),
    "h200-gpt-oss-120b": MeasuredTimes(0.0, 0.0, 0.0, 0, 8.4e-9, 0.0, 0.0, 2.5e-3, _GPT_OSS_120B),
    "h200-gpt-oss-20b": MeasuredTimes(0.0, 0.0, 0.0, 0, 6.1e-9, 0.0, 0.0, 2.5e-3, _GPT_OSS_20B),
    "h200-qwen3-30b-a3b": MeasuredTimes(0.0, 0.0, 0.0, 0, 24.5e-9, 0.0, 0.0, 2.5e-3, _QWEN3_30B_A3B),
    "h200-llama-3.3-70b-fp8": StepTimes(19.1e-3, 50e-6, 122e-6, 150, 82e-9, 2e-3, 3e-9, 2.5e-3),
}
"""`h200` and `h100`: Llama-3.1-8B in bfloat16, measured on two workers under load (lab/goodput.md). Alone a step of few
rows takes an H200 3.95 ms. Llama-3.3-70B: estimated from two decode steps and one prompt (lab/engine-gpu.md)."""
_TIMES_OF: Final = {
    ("Llama-3.1-8B", "bf16"): "h200",
    ("gpt-oss-120b", "mxfp4"): "h200-gpt-oss-120b",
    ("gpt-oss-20b", "mxfp4"): "h200-gpt-oss-20b",
    ("Qwen3-30B-A3B", "bf16"): "h200-qwen3-30b-a3b",
    ("Llama-3.3-70B", "fp8"): "h200-llama-3.3-70b-fp8",
}


def times_of_model(shape: str, weights: str) -> StepTimes | None:
    """Step times of a model on an H200, by its names in `bench.engine.gpu_model`. None: none are known."""
    machine = _TIMES_OF.get((shape, weights))
    return None if machine is None else STEP_TIMES[machine]


@dataclass(slots=True, eq=False)
class Machine:
    """One worker: its scheduler and its steps in flight."""

    name: str
    scheduler: Scheduler
    hello: Hello
    meter: LoadMeter
    times: StepTimes
    in_flight: deque[tuple[StepPlan, StepLoad, float]] = field(default_factory=deque)
    free_s: float = 0.0
    busy_s: float = 0.0
    steps: int = 0
    step_s: float = 0.0
    timings: list[StepTiming] = field(default_factory=list)
    looks_s: float = 0.0
    """When it looks again by itself, if nothing comes before."""
    holders: GatewayRounds[int] = field(default_factory=GatewayRounds)
    came: CameSince = field(default_factory=CameSince)
    told_s: float = float("-inf")
    """When the worker last reported to gateways, and when it will next."""
    reports_s: float = 0.0

    def spare_s(self, now: float) -> float:
        """As `Stepper.spare_s`: how long the next step need not be planned yet."""
        if len(self.in_flight) != 1:
            return 0.0
        ((_, load, seconds),) = self.in_flight
        expected_s = self.scheduler.expected_s(load.decode_rows, load.prefill_tokens)
        return 0.0 if expected_s is None else max(0.0, self.free_s - seconds + planning_s(expected_s) - now)

    def launch(self, now: float) -> list[float]:
        """Plans at most one step ahead of the one that runs, and not early; when each is done."""
        ends: list[float] = []
        while len(self.in_flight) < 2 and not self.spare_s(now):
            plan = self.scheduler.plan(now)
            if plan is None:
                break
            load = self.meter.load(plan)
            seconds = self.times.seconds(load)
            if not self.in_flight and not load.decode_rows:
                seconds += self.times.launch_s
            self.free_s = max(now, self.free_s) + seconds
            self.busy_s += seconds
            self.in_flight.append((plan, load, seconds))
            ends.append(self.free_s)
        return ends

    def collect(self, now: float) -> None:
        plan, load, seconds = self.in_flight.popleft()
        drawing = (*(slot for chunk in plan.prefill for slot in chunk.sample), *plan.decode)
        self.scheduler.apply(StepResult(plan.step, tuple(SlotTokens(slot, (7,)) for slot in drawing), seconds), now)
        self.steps += 1
        self.step_s += (0.1 if self.step_s else 1.0) * (seconds - self.step_s)
        if load.rows:
            self.timings.append(
                StepTiming(
                    plan.step, load.prefill_tokens, load.prefill_pairs, load.decode_rows, load.kv_tokens, seconds
                )
            )

    def report(self) -> WorkerState:
        stats = self.scheduler.stats()
        stride = -(-len(self.timings) // 8) or 1
        timings, self.timings = tuple(self.timings[::stride]), []
        computing = sum(load.prefill_tokens for _, load, _ in self.in_flight)
        free = stats.blocks_free + stats.blocks_cached
        return WorkerState(
            *(False, stats.running, stats.waiting, stats.waiting_tokens, free, stats.blocks_cached, self.steps),
            self.step_s,
            timings=timings,
            computing_tokens=computing,
        )
