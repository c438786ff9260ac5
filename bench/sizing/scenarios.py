"""The settings of a replay: the workers as they are believed to be and as they are, and the spec of sizing."""

from __future__ import annotations

from dataclasses import dataclass

from baton_control.sizing.inputs.model_shape import LLAMA_8B, LLAMA_70B
from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec, Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_wire.rules.hardware import H200

SLOWER = (1.06, 1.04)
"""Step times of real workers over those that policies believe, prefill and decode."""


@dataclass(frozen=True, slots=True)
class Case:
    """A load, without the start-up time of workers."""

    name: str
    workload: Workload
    believed: WorkerModel
    spec: SizingSpec

    @property
    def true(self) -> WorkerModel:
        return self.believed.slowed(*SLOWER)


CHAT = worker_model(LLAMA_70B, H200, 2, max_step_tokens=4096)
CHAT_SPEC = SizingSpec(Bounds(1, 48, 2), Bounds(1, 48, 2), Targets(1.5, 0.05))
LONG = worker_model(LLAMA_8B, H200, max_step_tokens=8192)
LONG_SPEC = SizingSpec(Bounds(1, 48, 1), Bounds(1, 48, 1), Targets(3.0, 0.025))
