"""How many workers a pool needs for a load. The simulator answers, with a small group of workers that stands for the
pool, and each answer is cached.

Pools are searched one at a time, each with the other taken as free. A group of a few workers under its share of the
load stands for the pool. That is exact for small pools and errs on the safe side for large ones, because a smaller
group smooths bursts less; and the cost does not grow with the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_control.sizing.simulator.one_pool import answer_ends, first_tokens
from baton_wire.messages.values import Role

GROUP = {Role.PREFILL: 6, Role.DECODE: 3}
"""Workers of a representative group: prefill gains from sharing a queue, a decode batch is a crowd by itself."""
GRID = 1.06
"""Loads are rounded up to powers of this, so that neighbouring loads share an answer."""
PREFILL_SECONDS = 20.0
"""A queue near saturation needs time to show; with fewer seconds an overloaded pool looks fine."""
PREFILL_REQUESTS = (600, 2500)
DECODE_REQUESTS = (300, 500)
SIMULATED_PLAN_S = 0.2
"""How often the simulated gateway decides which prompts to set aside. Real gateways do it ten times as often, which
takes up to four times as long to simulate and makes as many prompts late, within a point near the limit."""
ALONE_PER_S = {Role.PREFILL: 0.05, Role.DECODE: 1e-6}
"""A load at which requests hardly ever meet."""


@dataclass(slots=True)
class _Answers:
    """The cached answers about one pool and mix."""

    most_per_s: float
    late: dict[tuple[int, int], float] = field(default_factory=dict)
    """The share of requests over the target, by group and by step of the load of each worker."""


class Sizer(Protocol):
    """Answers how many workers a load needs. The real one asks the simulator; tests have a rule of their own."""

    @property
    def model(self) -> WorkerModel:
        """The worker as it is believed to be."""
        ...

    def required(self, role: Role, mix: Mix, rate_per_s: float) -> int: ...

    def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float: ...

    def reachable_share(self, role: Role, mix: Mix) -> float: ...

    def most_per_s(self, role: Role, mix: Mix) -> float: ...


@dataclass(slots=True)
class SimulatedSizer:
    """A `Sizer` that asks the simulator of one deployment, and caches the answers about every mix that is in use."""

    model: WorkerModel
    targets: Targets
    prefix_affinity: float = 0.9
    """The share of a mix's cached tokens that workers find. Traces have what an ideal cache finds."""
    max_workers: int = 1024
    _answers: WeakKeyDictionary[Mix, dict[Role, _Answers]] = field(default_factory=WeakKeyDictionary)

    def required(self, role: Role, mix: Mix, rate_per_s: float) -> int:
        """The fewest workers that meet the pool's percentile at this load; `max_workers` when none do."""
        low = max(1, ceil(rate_per_s / self.most_per_s(role, mix)))
        if low >= self.max_workers:
            return self.max_workers
        wanted = self.reachable_share(role, mix)
        high, stride = low, 1
        while self.share_met(role, mix, rate_per_s, high) < wanted:
            if high >= self.max_workers:
                return self.max_workers
            low = high + 1
            high = min(self.max_workers, high + stride)
            stride *= 2
        while low < high:
            middle = (low + high) // 2
            if self.share_met(role, mix, rate_per_s, middle) >= wanted:
                high = middle
            else:
                low = middle + 1
        return high

    def reachable_share(self, role: Role, mix: Mix) -> float:
        """The wanted share of the requests that meet the target when they are alone: more workers help no others."""
        step = _grid_step(ALONE_PER_S[role])
        return self.targets.share(role) * (1.0 - self._late(role, mix, 1, step))

    def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float:
        """Predicted share of requests within the pool's target."""
        if rate_per_s <= 0:
            return 1.0
        if role is Role.DECODE and rate_per_s > workers * self.most_per_s(role, mix):
            return 0.0  # all slow down until they are late, even where a short simulation ends before
        return 1.0 - self._late(role, mix, min(workers, GROUP[role]), _grid_step(rate_per_s / workers))

    def most_per_s(self, role: Role, mix: Mix) -> float:
        """Requests that one worker can do: prefill at all, decode with as many at once as keep TPOT."""
        return self._answers_for(role, mix).most_per_s

    def _answers_for(self, role: Role, mix: Mix) -> _Answers:
        by_role = self._answers.setdefault(mix, {})
        if role not in by_role:
            by_role[role] = _Answers(_most_per_s(self.model, self.targets.tpot_s, role, mix))
        return by_role[role]

    def _late(self, role: Role, mix: Mix, group: int, step: int) -> float:
        answers = self._answers_for(role, mix).late
        if (group, step) not in answers:
            answers[group, step] = self._simulate(role, mix, group, GRID**step * group)
        return answers[group, step]

    def _simulate(self, role: Role, mix: Mix, group: int, load: float) -> float:
        """The share of requests that is late."""
        if role is Role.PREFILL:
            fewest, most = PREFILL_REQUESTS
            workload = mix.draw(load, int(min(most, max(fewest, load * PREFILL_SECONDS))))
            ttft_s = self.targets.ttft_s
            first_s = first_tokens(self.model, workload, group, self.prefix_affinity, ttft_s, SIMULATED_PLAN_S)
            late = first_s - workload.arrival_s > ttft_s
            return float(np.mean(late[len(late) // 5 :]))
        workload = mix.draw(load, self._decode_requests(mix, load))
        return self._late_answers(workload, group)

    def _late_answers(self, workload: Workload, group: int) -> float:
        seconds = answer_ends(self.model, workload, group) - workload.arrival_s
        outputs = workload.output_tokens
        late = (outputs > 1) & (seconds / np.maximum(1, outputs - 1) > self.targets.tpot_s)
        return float(np.mean(late[len(late) // 2 :]))

    def _decode_requests(self, mix: Mix, load: float) -> int:
        """Enough that the second half starts with as many sequences running as there will be."""
        residence_s = float(np.mean(mix.columns()[1])) * self.targets.tpot_s
        low, high = DECODE_REQUESTS
        return int(min(high, max(low, 4 * load * residence_s)))


def _grid_step(per_worker_s: float) -> int:
    """The power of `GRID` to which the load of one worker is rounded up."""
    return ceil(log(per_worker_s) / log(GRID) - 1e-9)


def _most_per_s(model: WorkerModel, tpot_s: float, role: Role, mix: Mix) -> float:
    prompt, output, cached = mix.columns()
    if role is Role.PREFILL:  # when every step is as full as it can be
        times, fresh = model.prefill, prompt - cached
        seconds = times.per_token_s * fresh + times.per_pair_s * (fresh * (cached + fresh / 2))
        return 1.0 / max(1e-9, float(np.mean(seconds)))
    return _largest_batch(model, tpot_s, float(np.mean(prompt + output / 2))) / (mix.mean_tokens(role) * tpot_s)


def _largest_batch(model: WorkerModel, tpot_s: float, context: float) -> int:
    """The most sequences that a decode worker steps within TPOT, in the middle of their answers; at least one."""
    low, high = 1, max(1, min(model.max_sequences, int(model.kv_capacity_tokens / context)))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if model.decode.seconds(middle, middle * context) <= tpot_s else (low, middle - 1)
    return low
