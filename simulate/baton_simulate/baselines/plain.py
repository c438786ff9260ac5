"""The plain rule: capacity per worker by step times, a share of it used, the most of a window, without a forecast.

Prefill: seconds of prompts that arrive per second over 30 s, over 0.6; what waits is to be gone within a minute.
Decode: arrivals per second over what a worker finishes at the largest batch within TPOT, over 0.75.
What a more elaborate decision has to beat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_simulate.baselines.signals import Signals, Sizes, Window, window
from baton_wire.messages.values import POOL_ROLES, Role

USED = {Role.PREFILL: 0.6, Role.DECODE: 0.75}
RATE_S, BACKLOG_S, HELD_S = 30.0, 60.0, 60.0


@dataclass(slots=True)
class Plain:
    spec: SizingSpec
    model: WorkerModel
    held_s: float = HELD_S
    """Its one knob: the most of this window is kept."""
    interval_s: float = 10.0
    prompts: Window = field(default_factory=lambda: window(RATE_S))
    requests: Window = field(default_factory=lambda: window(RATE_S))
    wanted: dict[Role, Window] = field(init=False)

    def __post_init__(self) -> None:
        self.wanted = {role: window(self.held_s) for role in POOL_ROLES}

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        if signals is None:
            return None
        prefill = self.model.prefill
        own_s = prefill.prompt_s(signals.mean_uncached)
        self.prompts.add(now, signals.arrivals_per_s * own_s)
        self.requests.add(now, signals.arrivals_per_s)
        waiting_s = signals.prefill.queued_tokens / max(1.0, signals.mean_prompt) * own_s
        backlog = max(0.0, waiting_s - signals.prefill.ready * self.spec.targets.ttft_s) / BACKLOG_S
        loads = {
            Role.PREFILL: self.prompts.mean() + backlog,
            Role.DECODE: self.requests.mean() / self._finished_per_s(signals),
        }
        sizes = {}
        for role in POOL_ROLES:
            self.wanted[role].add(now, ceil(loads[role] / USED[role]))
            sizes[role] = self.spec.bounds_of[role].clamp(max(1, int(self.wanted[role].most())))
        return sizes

    def _finished_per_s(self, signals: Signals) -> float:
        """Requests per second that one decode worker ends at the largest batch within TPOT."""
        context = signals.mean_prompt + signals.mean_output / 2
        room = min(self.model.max_sequences, int(self.model.kv_capacity_tokens / max(1.0, context)))
        batch = 1
        while batch < room and self.model.decode.seconds(batch + 1, (batch + 1) * context) <= self.spec.targets.tpot_s:
            batch += 1
        return batch / max(1.0, signals.mean_output) / self.model.decode.seconds(batch, batch * context)
