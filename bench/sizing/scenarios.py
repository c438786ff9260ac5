"""The scenarios on which scaling policies are compared: traces cut, scaled and spliced, synthetic loads, faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from baton_control.sizing.model_shape import LLAMA_8B, LLAMA_70B
from baton_control.sizing.roofline import worker_model
from baton_control.sizing.spec import Bounds, SizingSpec, Targets
from baton_control.sizing.worker_model import WorkerModel
from baton_control.sizing.workload import Workload
from baton_simulate.synthetic import Shape, synthetic
from baton_simulate.trace_files import read_trace
from baton_wire.messages.values import Role
from baton_wire.rules.hardware import H200

SLOWER = (1.06, 1.04)
"""What workers really take over what policies believe, prefill and decode."""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario without its start-up time."""

    name: str
    workload: Workload
    believed: WorkerModel
    spec: SizingSpec
    lost: tuple[tuple[float, float], ...] = ()
    deaths: tuple[tuple[float, Role], ...] = ()

    @property
    def true(self) -> WorkerModel:
        return self.believed.slowed(*SLOWER)


CHAT = worker_model(LLAMA_70B, H200, 2, max_step_tokens=4096)
CHAT_SPEC = SizingSpec(Bounds(1, 48, 2), Bounds(1, 48, 2), Targets(1.5, 0.05))
LONG = worker_model(LLAMA_8B, H200, max_step_tokens=8192)
LONG_SPEC = SizingSpec(Bounds(1, 48, 1), Bounds(1, 48, 1), Targets(3.0, 0.025))


def cases(traces: Path) -> Iterator[Case]:
    """All scenarios, in a fixed order and from fixed seeds."""
    conv = read_trace(traces / "azure_llm_2023_conv.csv")
    mooncake = read_trace(traces / "mooncake_synthetic.jsonl")
    yield from _conversation(conv)
    yield from _long_prompts(mooncake)
    yield from _synthetic(conv)
    yield from _faults(conv)


def _chat(name: str, workload: Workload) -> Case:
    return Case(name, workload, CHAT, CHAT_SPEC)


def _conversation(conv: Workload) -> Iterator[Case]:
    random = np.random.default_rng(11)
    for start in (0, 700, 1400, 2100):
        part = conv.between(start, start + 1300)
        yield _chat(f"conv {start}s x2", part.rate_scaled(2, random))
    yield _chat("conv 1400s x3", conv.between(1400, 2400).rate_scaled(3, random))
    yield _chat("conv hour in 20 min", conv.time_scaled(1 / 3))
    yield _chat("conv half hour in 15 min x1.5", conv.between(1200, 3000).time_scaled(0.5).rate_scaled(1.5, random))
    yield _chat("conv 40 min", conv.between(600, 3000))
    low, high = conv.between(2900, 3400), conv.between(1700, 2200)
    yield _chat("splice low high low", low.then(high.rate_scaled(3, random)).then(low))
    yield _chat("splice high low high", high.rate_scaled(2, random).then(low).then(high.rate_scaled(2, random)))


def _long_prompts(mooncake: Workload) -> Iterator[Case]:
    random = np.random.default_rng(12)
    yield Case("mooncake", mooncake, LONG, LONG_SPEC)
    yield Case("mooncake x2", mooncake.rate_scaled(2, random), LONG, LONG_SPEC)
    yield Case("mooncake x3", mooncake.rate_scaled(3, random), LONG, LONG_SPEC)
    yield Case("mooncake in half the time, twice", _twice(mooncake.time_scaled(0.5)), LONG, LONG_SPEC)
    low, high = mooncake.between(0, 400), mooncake.between(400, 800).rate_scaled(4, random)
    yield Case("mooncake low high low", low.then(high).then(low), LONG, LONG_SPEC)


def _twice(workload: Workload) -> Workload:
    return workload.then(workload)


def _synthetic(conv: Workload) -> Iterator[Case]:
    random = np.random.default_rng(13)
    for shape in Shape:
        for rate in (10.0, 22.0):
            yield _chat(f"{shape.value} {rate:.0f}/s", synthetic(shape, rate, 1200, random, lengths=conv))
    for shape in (Shape.RAMP, Shape.STEP, Shape.BURST):
        load = synthetic(shape, 12.0, 1200, random, prompt=(2500, 0.8), output=(250, 0.8))
        yield _chat(f"{shape.value} long 12/s", load)


def _faults(conv: Workload) -> Iterator[Case]:
    random = np.random.default_rng(14)
    rise = conv.between(1400, 2600).rate_scaled(2, random)
    yield Case("metrics lost 3 min in a rise", rise, CHAT, CHAT_SPEC, lost=((300.0, 480.0),))
    step = synthetic(Shape.STEP, 20.0, 1200, random, lengths=conv)
    yield Case("metrics lost 4 min over a peak", step, CHAT, CHAT_SPEC, lost=((450.0, 690.0),))
    yield Case("prefill worker dies", rise, CHAT, CHAT_SPEC, deaths=((500.0, Role.PREFILL),))
    yield Case("decode worker dies", rise, CHAT, CHAT_SPEC, deaths=((500.0, Role.DECODE),))
    burst = synthetic(Shape.BURST, 20.0, 1200, random, lengths=conv)
    yield Case("prefill worker dies in bursts", burst, CHAT, CHAT_SPEC, deaths=((420.0, Role.PREFILL),))
