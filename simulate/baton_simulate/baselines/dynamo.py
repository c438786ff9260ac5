"""Dynamo's planner, current generation: throughput loop every 180 s, load loop every 5 s. Sources:
docs/sizing.md#baselines.

Throughput: replicas = ceil(predicted rate / best rate of one engine whose mean TTFT (ITL) meets the target), from
means of the last interval and its default kind of predictor (here the local linear trend with its published
noise). Load: +1 when every engine's estimate exceeds the target, -1 when N - 1 engines would stay under 80 % of
it, as each of its evaluations said for 180 s; the throughput answer is a lower bound. A pool that is still scaling
holds its load loop. Lost metrics: the cycle is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_simulate.baselines.signals import PoolSignals, Signals, Sizes
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.step_times import attended_pairs

THROUGHPUT_S, LOAD_S, SENSITIVITY, SUSTAINED_S = 180.0, 5.0, 0.8, 180.0
MAX_CANDIDATES = 128


def prefill_rate(model: WorkerModel, prompt: float, uncached: float, ttft_s: float) -> float:
    """Requests per second of one engine: the best batch whose mean TTFT meets the target, else the best at all."""
    best, best_any = 0.0, 0.0
    for batch in range(1, max(1, floor(model.max_step_tokens / max(1.0, prompt))) + 1):
        seconds = model.prefill.seconds(batch * uncached, batch * attended_pairs(uncached, prompt - uncached))
        best_any = max(best_any, batch / seconds)
        if seconds <= ttft_s:
            best = max(best, batch / seconds)
    return best or best_any


def decode_rate(model: WorkerModel, prompt: float, output: float, tpot_s: float) -> float:
    context = prompt + output / 2
    most = int(min(model.max_sequences, model.kv_capacity_tokens / context))
    best, best_any = 0.0, 0.0
    for step in range(1, MAX_CANDIDATES + 1):
        batch = max(1, most * step // MAX_CANDIDATES)
        seconds = model.decode.seconds(batch, batch * context)
        rate = batch / (max(1.0, output) * seconds)
        best_any = max(best_any, rate)
        if seconds <= tpot_s:
            best = max(best, rate)
    return best or best_any


@dataclass(slots=True)
class Kalman:
    """Local linear trend: F = [[1, 1], [0, 1]], Q = diag(1, 0.1), R = 10."""

    level: float | None = None
    slope: float = 0.0
    p: tuple[float, float, float] = (1000.0, 0.0, 1000.0)

    def update(self, value: float) -> float:
        """Takes a measurement; returns the next one predicted."""
        if self.level is None:
            self.level = value
        a, b, c = self.p
        level, a, b, c = self.level + self.slope, a + 2 * b + c + 1.0, b + c, c + 0.1
        error, total = value - level, a + 10.0
        gain_level, gain_slope = a / total, b / total
        self.level, self.slope = level + gain_level * error, self.slope + gain_slope * error
        self.p = (a - gain_level * a, b - gain_level * b, c - gain_slope * b)
        return max(0.0, self.level + self.slope)


@dataclass(slots=True)
class Dynamo:
    spec: SizingSpec
    model: WorkerModel
    interval_s: float = LOAD_S
    bounds: Sizes = field(default_factory=dict)
    next_throughput_s: float = THROUGHPUT_S
    counts: list[float] = field(default_factory=list)
    down_since: dict[Role, float] = field(default_factory=dict)
    """Since when every evaluation of a pool has asked for fewer."""
    predictors: tuple[Kalman, Kalman, Kalman, Kalman] = field(
        default_factory=lambda: (Kalman(), Kalman(), Kalman(), Kalman())
    )

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        if signals is None or signals.mean_prompt <= 0:
            return None
        self.counts.append(signals.arrivals_per_s)
        if now >= self.next_throughput_s:
            self._throughput(signals)
            self.next_throughput_s = now + THROUGHPUT_S
        sizes = {role: self._load(role, signals, now) for role in POOL_ROLES}
        return self._budgeted(sizes)

    def _throughput(self, signals: Signals) -> None:
        means = (sum(self.counts) / len(self.counts), signals.mean_prompt, signals.mean_uncached, signals.mean_output)
        self.counts.clear()
        rate, prompt, uncached, output = (
            predictor.update(value) for predictor, value in zip(self.predictors, means, strict=True)
        )
        targets = self.spec.targets
        self.bounds = {
            Role.PREFILL: ceil(rate / prefill_rate(self.model, prompt, max(1.0, uncached), targets.ttft_s)),
            Role.DECODE: ceil(rate / decode_rate(self.model, prompt, output, targets.tpot_s)),
        }

    def _load(self, role: Role, signals: Signals, now: float) -> int:
        pool, limits = signals.of(role), self.spec.bounds_of[role]
        wanted = pool.workers
        if pool.ready == pool.workers and pool.ready > 0:
            step = self._prefill_step(pool, signals) if role is Role.PREFILL else self._decode_step(pool)
            wanted += step
        wanted = max(wanted, self.bounds.get(role, 0))
        if wanted >= pool.workers:
            self.down_since.pop(role, None)
        elif now - self.down_since.setdefault(role, now) < SUSTAINED_S:
            wanted = pool.workers
        else:
            del self.down_since[role]  # one worker less, and it is watched anew
        return min(limits.maximum, max(limits.minimum, 1, wanted))

    def _prefill_step(self, pool: PoolSignals, signals: Signals) -> int:
        times, target = self.model.prefill, self.spec.targets.ttft_s
        own = times.seconds(signals.mean_uncached, attended_pairs(signals.mean_uncached, 0.0))
        queue = times.per_token_s * pool.queued_tokens / pool.ready
        if queue + own > target:
            return +1
        if pool.ready > 1 and queue * pool.ready / (pool.ready - 1) < (target - own) * SENSITIVITY:
            return -1
        return 0

    def _decode_step(self, pool: PoolSignals) -> int:
        times, target = self.model.decode, self.spec.targets.tpot_s
        batch, tokens = pool.running / pool.ready, pool.kv_tokens / pool.ready
        if times.seconds(ceil(batch), tokens) > target:
            return +1
        if pool.ready > 1:
            grown = pool.ready / (pool.ready - 1)
            fits = tokens * grown < self.model.kv_capacity_tokens
            if fits and times.seconds(ceil(batch * grown), tokens * grown) < target * SENSITIVITY:
                return -1
        return 0

    def _budgeted(self, sizes: Sizes) -> Sizes:
        budget = self.spec.max_accelerators
        p, d = self.spec.prefill, self.spec.decode
        total = sizes[Role.PREFILL] * p.accelerators + sizes[Role.DECODE] * d.accelerators
        if budget is None or total <= budget:
            return sizes
        room = floor((budget - d.minimum * d.accelerators) / p.accelerators)
        prefill = max(p.minimum, min(room, floor(sizes[Role.PREFILL] * budget / total)))
        decode = max(d.minimum, floor((budget - prefill * p.accelerators) / d.accelerators))
        return {Role.PREFILL: prefill, Role.DECODE: decode}
