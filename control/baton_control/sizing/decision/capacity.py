"""How many workers a pool needs for a load: the twin asked with a thinned representative group, each answer
remembered.

Pools are searched apart, each with the other taken as free. A group of a few workers under its share of the load
stands for the pool: that is exact for small pools and errs on the safe side for large ones (a smaller group smooths
bursts less), and makes the cost independent of the pool's size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, log
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_control.sizing.simulator.decode_pool import answers_alone, answers_end
from baton_control.sizing.simulator.prefill_pool import QUESTION_PLAN_S, first_tokens, seldom_meeting
from baton_control.sizing.simulator.simulator import Simulator
from baton_wire.messages.values import Role

GROUP = {Role.PREFILL: 6, Role.DECODE: 3}
"""Workers of a representative group: prefill gains from sharing a queue, a decode batch is a crowd by itself."""
GRID = 1.06
"""Loads are rounded up to powers of this, so that neighbouring questions share an answer."""
PREFILL_SECONDS = 20.0
"""A queue near saturation needs time to show; with fewer seconds an overloaded pool looks fine."""
PREFILL_REQUESTS = (600, 2500)
DECODE_REQUESTS = (300, 500)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Mix:
    """Requests as they were lately, to draw from.

    Compared by identity: whoever keeps a mix keeps the answers that were computed for it.
    """

    shapes: tuple[RequestShape, ...]
    dispersion: float = 1.0
    """Variance over mean of arrivals per window. 1: Poisson, as decisions take it."""

    def tokens(self, role: Role) -> Floats:
        """What each request is to the pool: tokens of its prompt to compute, or of its answer."""
        prompt, output, cached = _columns(self)
        return (prompt - cached if role is Role.PREFILL else output).astype(np.float64)

    def mean_tokens(self, role: Role) -> float:
        return _mean_tokens(self, role)


@dataclass(slots=True)
class _Known:
    """Of one pool and mix."""

    most_per_s: float
    late: dict[tuple[int, int], float] = field(default_factory=dict)
    """By group and step of the load of each worker, the share of requests over the target."""
    late_alone: float | None = None


class Sizer(Protocol):
    """Answers how many workers a load needs. The real one asks the twin; tests take a rule of their own."""

    def required(self, role: Role, mix: Mix, rate_per_s: float) -> int: ...

    def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float: ...

    def late_between(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> tuple[float, float]: ...

    def reachable_share(self, role: Role, mix: Mix) -> float: ...

    def most_per_s(self, role: Role, mix: Mix) -> float: ...


@dataclass(slots=True)
class SimulatedSizer:
    """The twin of one deployment as a Sizer; remembers what it was asked of each mix that somebody still has."""

    model: WorkerModel
    targets: Targets
    prefix_affinity: float = 0.9
    max_workers: int = 1024
    _answers: WeakKeyDictionary[Mix, dict[Role, _Known]] = field(default_factory=WeakKeyDictionary)

    def required(self, role: Role, mix: Mix, rate_per_s: float) -> int:
        """The fewest workers that meet the pool's percentile at this load; `max_workers` when none do."""
        low = max(1, ceil(rate_per_s / self.most_per_s(role, mix)))
        if low >= self.max_workers:
            return self.max_workers
        high, stride = low, 1
        while not self._keeps(role, mix, rate_per_s, high):
            if high >= self.max_workers:
                return self.max_workers
            low = high + 1
            high = min(self.max_workers, high + stride)
            stride *= 2
        while low < high:
            middle = (low + high) // 2
            if self._keeps(role, mix, rate_per_s, middle):
                high = middle
            else:
                low = middle + 1
        return high

    def reachable_share(self, role: Role, mix: Mix) -> float:
        """The wanted share of those requests that meet the target when they are alone: more workers help no others."""
        known = self._known(role, mix)
        if known.late_alone is None:
            known.late_alone = self._late_alone(role, mix)
        return self.targets.share(role) * (1.0 - known.late_alone)

    def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float:
        """Predicted share of requests within the pool's target."""
        least, most = self.late_between(role, mix, rate_per_s, workers)
        if least < most:
            group, step = _question(role, rate_per_s, workers)
            most = self._known(role, mix).late[group, step] = self._simulate(role, mix, group, GRID**step * group)
        return 1.0 - most

    def late_between(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> tuple[float, float]:
        """The share of requests that are late, at least and at most, as far as other answers tell: no fewer are at more
        load, nor with fewer workers at that of each."""
        if rate_per_s <= 0:
            return 0.0, 0.0
        known = self._known(role, mix)
        if role is Role.DECODE and rate_per_s > workers * known.most_per_s:
            return 1.0, 1.0  # all get slower until they are; where answers are short, what is played ends before
        group, step = _question(role, rate_per_s, workers)
        asked = known.late.get((group, step))
        if asked is not None:
            return asked, asked
        least, most = 0.0, 1.0
        for (other, at), late in known.late.items():
            if other <= group and at >= step:
                most = min(most, late)
            elif other >= group and at <= step:
                least = max(least, late)
        return min(least, most), most

    def _keeps(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> bool:
        """Whether the percentile is met."""
        may_be_late = 1.0 - self.reachable_share(role, mix)
        least, most = self.late_between(role, mix, rate_per_s, workers)
        if least <= may_be_late < most:
            most = 1.0 - self.share_met(role, mix, rate_per_s, workers)
        return most <= may_be_late

    def most_per_s(self, role: Role, mix: Mix) -> float:
        """Requests that one worker can do: prefill at all, decode with as many at once as keep TPOT."""
        return self._known(role, mix).most_per_s

    def _known(self, role: Role, mix: Mix) -> _Known:
        found = self._answers.setdefault(mix, {})
        if role not in found:
            found[role] = _Known(_most_per_s(self.model, self.targets.tpot_s, role, mix))
        return found[role]

    def _simulate(self, role: Role, mix: Mix, group: int, load: float) -> float:
        """The share of requests that is late."""
        if role is Role.PREFILL:
            fewest, most = PREFILL_REQUESTS
            workload = draw(mix, load, int(min(most, max(fewest, load * PREFILL_SECONDS))))
            ttft_s, affinity = self.targets.ttft_s, self.prefix_affinity
            first_s = first_tokens(self.model, workload, group, affinity, ttft_s, QUESTION_PLAN_S)
            return self._late_prompts(workload, first_s)
        workload = draw(mix, load, self._decode_requests(mix, load))
        return self._late_answers(workload, answers_end(self.model, workload, group) - workload.arrival_s)

    def _late_alone(self, role: Role, mix: Mix) -> float:
        """The same of requests of which hardly any two meet."""
        if role is Role.PREFILL:
            workload = draw(mix, GRID ** _question(role, 0.05, 1)[1], PREFILL_REQUESTS[0])
            return self._late_prompts(workload, seldom_meeting(self.model, workload, self.targets.ttft_s))
        workload = draw(mix, 1.0, DECODE_REQUESTS[0])
        return self._late_answers(workload, answers_alone(self.model, workload))

    def _late_prompts(self, workload: Workload, first_s: Floats) -> float:
        late = first_s - workload.arrival_s > self.targets.ttft_s
        return float(np.mean(late[len(late) // 5 :]))

    def _late_answers(self, workload: Workload, seconds: Floats) -> float:
        outputs = workload.output_tokens
        late = (outputs > 1) & (seconds / np.maximum(1, outputs - 1) > self.targets.tpot_s)
        return float(np.mean(late[len(late) // 2 :]))

    def _decode_requests(self, mix: Mix, load: float) -> int:
        """Enough that the second half starts with as many sequences running as there will be."""
        residence_s = float(np.mean(_columns(mix)[1])) * self.targets.tpot_s
        low, high = DECODE_REQUESTS
        return int(min(high, max(low, 4 * load * residence_s)))


def _question(role: Role, rate_per_s: float, workers: int) -> tuple[int, int]:
    """The group that stands for so many workers, and the load of each in steps of `GRID`."""
    return min(workers, GROUP[role]), ceil(log(rate_per_s / workers) / log(GRID) - 1e-9)


@lru_cache(maxsize=256)
def _mean_tokens(mix: Mix, role: Role) -> float:
    return max(1.0, float(mix.tokens(role).mean()))


def _most_per_s(model: WorkerModel, tpot_s: float, role: Role, mix: Mix) -> float:
    prompt, output, cached = _columns(mix)
    if role is Role.PREFILL:  # when every step is as full as it can be
        times, fresh = model.prefill, prompt - cached
        each_s = times.per_token_s * fresh + times.per_pair_s * (fresh * (cached + fresh / 2))
        return 1.0 / max(1e-9, float(np.mean(each_s)))
    return _batch(model, tpot_s, float(np.mean(prompt + output / 2))) / (mix.mean_tokens(role) * tpot_s)


def _batch(model: WorkerModel, tpot_s: float, context: float) -> int:
    """The most sequences that a decode worker steps within TPOT, in the middle of their answers; at least one."""
    low, high = 1, max(1, min(model.max_sequences, int(model.kv_capacity_tokens / context)))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if model.decode.seconds(middle, middle * context) <= tpot_s else (low, middle - 1)
    return low


def draw(mix: Mix, rate_per_s: float, count: int) -> Workload:
    """`count` requests at a mean rate; the same draw for the same mix, so that answers differ by the load alone."""
    gaps, index = _unit_draw(mix, count)
    arrival_s = gaps / rate_per_s
    prompt, output, cached = _columns(mix)
    return Workload(arrival_s, prompt[index], output[index], cached[index])


@lru_cache(maxsize=32)
def _unit_draw(mix: Mix, count: int) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Arrival times at a mean rate of one; gaps are gamma, with the mix's dispersion."""
    random = np.random.default_rng(7)
    shape = 1.0 / min(max(mix.dispersion, 1.0), 20.0)
    return np.cumsum(random.gamma(shape, 1.0 / shape, count)), random.integers(0, len(mix.shapes), count)


@lru_cache(maxsize=32)
def _columns(mix: Mix) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    columns = np.array([(s.prompt_tokens, s.output_tokens, s.cached_tokens) for s in mix.shapes], dtype=np.int64)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def latencies(twin: Simulator, workload: Workload) -> tuple[Floats, Floats]:
    """TTFT and TPOT of each request in seconds; infinite for what never ended. One token has no gap: 0."""
    first = np.array(twin.first_s)
    ttft = np.where(np.isnan(first), np.inf, first - workload.arrival_s)
    gaps = np.maximum(1, workload.output_tokens - 1)
    tpot = (np.array(twin.done_s) - first) / gaps
    return ttft, np.where(np.isnan(tpot), np.inf, np.where(workload.output_tokens > 1, tpot, 0.0))
