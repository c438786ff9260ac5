"""llm-d's autoscaling controller: saturation engine v1 and v2. Sources: docs/sizing.md#baselines.

v1: a replica is saturated at KV ≥ 0.80 or queue ≥ 5; +1 when mean spare KV < 0.10 or mean spare queue < 3; -1 when
the same load over one replica less stays inside these limits, with two unsaturated ones. v2 counts tokens: supply per
replica 0.80 of its KV, or what it held while it queued, and before that what as many sequences hold as its steps of
prompts can renew; +n when demand/0.85 exceeds what runs or starts, -n when supply exceeds demand/0.70. HPA
applies both (300 s window down). Lost metrics read as zero (its issues 360 and 1543).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_simulate.baselines.hpa import DOWN_WINDOW_S, stabilised
from baton_simulate.baselines.signals import PoolSignals, Signals, Sizes, Window, window
from baton_wire.messages.values import POOL_ROLES, Role

KV_LIMIT, QUEUE_LIMIT, SPARE_KV, SPARE_QUEUE = 0.80, 5.0, 0.10, 3.0
UP_SHARE, DOWN_SHARE = 0.85, 0.70
NOTHING = PoolSignals(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


def saturation_v1(workers: int, ready: int, kv_use: float, queue: float, queue_limit: float = QUEUE_LIMIT) -> int:
    """Workers wanted; `kv_use` and `queue` are means per ready replica."""
    if ready == 0:
        return workers
    if KV_LIMIT - kv_use < SPARE_KV or queue_limit - queue < SPARE_QUEUE:
        return workers + 1 if ready == workers else workers
    if ready < 2:
        return workers
    grown = ready / (ready - 1)
    if KV_LIMIT - kv_use * grown >= SPARE_KV and queue_limit - queue * grown >= SPARE_QUEUE:
        return workers - 1
    return workers


def first_supply(model: WorkerModel, prompt: float, output: float) -> float:
    """Tokens that a replica holds before a queue was seen: its sequences, in the middle of their answers."""
    sequences = min(model.max_step_tokens * output / max(1.0, prompt + output), float(model.max_sequences))
    return sequences * (prompt + output / 2)


def saturation_v2(workers: int, demand: float, supply_per_replica: float, up_share: float = UP_SHARE) -> int:
    """Workers wanted; all in tokens, starting replicas counted."""
    required = demand / up_share - workers * supply_per_replica
    if required > 0:
        return workers + ceil(required / supply_per_replica)
    spare = workers * supply_per_replica - demand / (up_share * DOWN_SHARE / UP_SHARE)
    return workers - int(spare // supply_per_replica) if spare > 0 else workers


@dataclass(slots=True)
class LlmdV1:
    spec: SizingSpec
    queue_limit: float = QUEUE_LIMIT
    interval_s: float = 30.0
    proposals: dict[Role, Window] = field(default_factory=lambda: {role: window(DOWN_WINDOW_S) for role in POOL_ROLES})
    last: dict[Role, int] = field(default_factory=dict)

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        sizes = {}
        for role in POOL_ROLES:
            pool = NOTHING if signals is None else signals.of(role)
            workers = self.last.get(role, 1) if signals is None else pool.workers
            ready = workers if signals is None else pool.ready
            wanted = saturation_v1(workers, ready, pool.kv_use, pool.queued / max(1, ready), self.queue_limit)
            sizes[role] = stabilised(self.spec, self.proposals[role], role, workers, wanted, now)
        self.last = sizes
        return sizes


@dataclass(slots=True)
class LlmdV2:
    spec: SizingSpec
    model: WorkerModel
    up_share: float = UP_SHARE
    interval_s: float = 15.0
    proposals: dict[Role, Window] = field(default_factory=lambda: {role: window(DOWN_WINDOW_S) for role in POOL_ROLES})
    queued_use: dict[Role, deque[float]] = field(
        default_factory=lambda: {role: deque(maxlen=10) for role in POOL_ROLES}
    )
    last: dict[Role, int] = field(default_factory=dict)

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        sizes = {}
        for role in POOL_ROLES:
            workers = self.last.get(role, 1) if signals is None else signals.of(role).workers
            demand, supply = (0.0, 1.0) if signals is None else self._balance(role, signals)
            wanted = max(1, saturation_v2(workers, demand, supply, self.up_share))
            sizes[role] = stabilised(self.spec, self.proposals[role], role, workers, wanted, now)
        self.last = sizes
        return sizes

    def _balance(self, role: Role, signals: Signals) -> tuple[float, float]:
        pool = signals.of(role)
        k1 = self.model.kv_capacity_tokens * KV_LIMIT
        per_replica = pool.kv_tokens / max(1, pool.ready)
        if pool.queued / max(1, pool.ready) >= QUEUE_LIMIT and per_replica > 0:
            self.queued_use[role].append(per_replica)
        seen = self.queued_use[role]
        k2 = sum(seen) / len(seen) if seen else k1
        if not seen and signals.mean_output:
            output = signals.mean_output if role is Role.DECODE else 1.0  # a prefill replica answers with one token
            k2 = first_supply(self.model, signals.mean_prompt, output)
        of_queue = signals.mean_prompt + (signals.mean_output if role is Role.DECODE else 0.0)
        return pool.kv_tokens + pool.queued * of_queue, max(1.0, min(k1, k2))
