"""Policies by name: mode SLO, static pools, an oracle, and the baselines with thresholds tuned to the scenario.

A baseline's published defaults are kept; thresholds that its user has to choose are set from the same step times
as ours, at 70 % of what one worker can hold within the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from baton_control.pool_flips import Flips
from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.decision.sizing_state import SizingState, fresh, learn_and_size
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Measurements, ObservedPool, ObservedStep, Unknown
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_simulate.baselines.apa import Apa
from baton_simulate.baselines.dynamo import Dynamo
from baton_simulate.baselines.hpa import Hpa
from baton_simulate.baselines.kpa import UTILISATION, Kpa
from baton_simulate.baselines.llmd import QUEUE_LIMIT, UP_SHARE, LlmdV1, LlmdV2
from baton_simulate.baselines.plain import HELD_S, Plain
from baton_simulate.baselines.signals import Policy, Sizes
from baton_simulate.deployed_slo import DeployedSlo
from baton_simulate.simulator_metrics import SimulatorMetrics
from baton_wire.messages.values import POOL_ROLES, Role

PEERS = ("hpa-queue", "hpa-kv", "kpa", "dynamo", "llmd-v1", "llmd-v2", "apa", "plain")
POLICIES = ("slo", "static", "oracle", *PEERS)
KNOWING = ("static", "oracle")
"""They know the arrivals of the whole workload."""
MOST_FIXED = 1024
TUNED_SHARE = 0.7
QUEUE_SHARE = 0.35
"""Little's law at the edge of the target: 0.8 of a worker's rate times a mean TTFT of 0.4 of its 95th percentile."""
LOOK_S = 10.0
KNOBS = {
    "slo": 0.95,
    "hpa-queue": TUNED_SHARE,
    "hpa-kv": TUNED_SHARE,
    "kpa": UTILISATION,
    "dynamo": 1.0,
    "llmd-v1": QUEUE_LIMIT,
    "llmd-v2": UP_SHARE,
    "apa": TUNED_SHARE,
    "plain": HELD_S,
}
"""The one knob that a user would turn first, and its default. Mode SLO: the percentile that is asked for. HPA, KPA
and APA: the share of a worker that is used. Dynamo: the part of both targets that it works with. llm-d: prompts queued,
and the share of supply at which it grows. The plain rule: seconds that a need is held."""


@dataclass(slots=True)
class Slo:
    """Mode SLO in a replay: the production decision, its memory and its fit of step times."""

    spec: SizingSpec
    state: SizingState
    reasons: dict[Role, str] = field(default_factory=dict)
    last: Sizes = field(default_factory=dict)
    flips: Flips | None = None
    """The flips of the last decision."""

    @property
    def interval_s(self) -> float:
        return self.spec.interval_s

    def decide_from(self, metrics: SimulatorMetrics | None, now: float) -> Sizes | None:
        if metrics is None:
            if not self.last:
                return None
            prefill, decode = (ObservedPool(self.last[role], None) for role in POOL_ROLES)
            seen = Measurements(Unknown("no report"), prefill, decode)
        else:
            seen = metrics.measure()
        return self.decide(seen, [] if metrics is None else metrics.steps(), now)

    def decide(self, seen: Measurements, steps: list[ObservedStep], now: float) -> Sizes:
        decision, self.state = learn_and_size(self.spec, self.state, seen, steps, now, epoch_s=now)
        self.reasons = {role: pool.reason for role, pool in decision.pools.items()}
        self.last = {role: pool.workers for role, pool in decision.pools.items()}
        self.flips = decision.flips
        return self.last


@dataclass(slots=True)
class Baseline:
    """A baseline in a replay."""

    policy: Policy
    reasons: dict[Role, str] = field(default_factory=dict)
    flips: None = None

    @property
    def interval_s(self) -> float:
        return self.policy.interval_s

    def decide_from(self, metrics: SimulatorMetrics | None, now: float) -> Sizes | None:
        return self.policy.decide(None if metrics is None else metrics.signals(), now)


@dataclass(slots=True)
class Scripted:
    """Sizes by time: static pools and the oracle."""

    sizes: Callable[[float], Sizes]
    interval_s: float = LOOK_S
    reasons: dict[Role, str] = field(default_factory=dict)
    flips: None = None

    def decide_from(self, metrics: SimulatorMetrics | None, now: float) -> Sizes | None:
        return self.sizes(now)


Player = Slo | Baseline | Scripted | DeployedSlo


def player(
    name: str, spec: SizingSpec, believed: WorkerModel, needs: Needs, startup_s: float, knob: float | None = None
) -> Player:
    """The policy of that name; `3+2` is a fixed pool of 3 prefill and 2 decode workers.

    `needs`: what the workload needs when. `static` and `oracle` read all of it (`KNOWING`), others its mean lengths.
    `knob`: of the policies that have one (`KNOBS`), its value instead of the default.
    """
    assert knob is None or name in KNOBS, f"{name} has no knob"
    fixed = fixed_sizes(name)
    if fixed is not None:
        return Scripted(lambda now: fixed)
    value = KNOBS.get(name, 0.0) if knob is None else knob
    tuned_share = value if name in ("hpa-queue", "hpa-kv", "apa") else TUNED_SHARE
    if name == "slo" and knob is not None:
        spec = replace(spec, targets=replace(spec.targets, ttft_share=value, tpot_share=value))
    concurrency = tuned_concurrency(believed, spec, needs.mean_shape)
    share = min(0.8, concurrency[Role.DECODE] * needs.context / believed.kv_capacity_tokens)
    tuned = {role: max(1.0, tuned_share * concurrency[role]) for role in POOL_ROLES}
    makers: dict[str, Callable[[], Player]] = {
        "slo": lambda: Slo(spec, fresh(believed, spec)),
        "static": lambda: Scripted(lambda now: needs.most()),
        "oracle": lambda: Scripted(lambda now: needs.between(now, now + 1.3 * startup_s + 2 * LOOK_S)),
        "hpa-queue": lambda: Baseline(Hpa(spec, tuned)),
        "hpa-kv": lambda: Baseline(Hpa(spec, tuned, kv_target=max(0.02, tuned_share * share))),
        "kpa": lambda: Baseline(Kpa(spec, concurrency, value)),
        "dynamo": lambda: Baseline(Dynamo(_tighten(spec, value), believed)),
        "llmd-v1": lambda: Baseline(LlmdV1(spec, value)),
        "llmd-v2": lambda: Baseline(LlmdV2(spec, believed, value)),
        "apa": lambda: Baseline(Apa(spec, tuned[Role.PREFILL], max(0.02, tuned_share * share))),
        "plain": lambda: Baseline(Plain(spec, believed, value)),
    }
    return makers[name]()


def _tighten(spec: SizingSpec, part: float) -> SizingSpec:
    """The spec with a `part` of both targets."""
    targets = replace(spec.targets, ttft_s=part * spec.targets.ttft_s, tpot_s=part * spec.targets.tpot_s)
    return replace(spec, targets=targets)


def fixed_sizes(name: str) -> Sizes | None:
    """The pools of a policy such as `3+2`, which never change; None: it is another policy."""
    counts = [int(part) for part in name.split("+") if part.isdecimal() and 1 <= int(part) <= MOST_FIXED]
    return dict(zip(POOL_ROLES, counts, strict=True)) if len(counts) == 2 and name.count("+") == 1 else None


def tuned_concurrency(model: WorkerModel, spec: SizingSpec, shape: RequestShape) -> dict[Role, float]:
    """Requests that one worker can have at once within the targets, for requests of mean length."""
    own = model.prefill.prompt_s(shape.prompt_tokens - shape.cached_tokens, shape.cached_tokens)
    context = shape.prompt_tokens + shape.output_tokens / 2
    batch = 1
    while batch < model.max_sequences and model.decode.seconds(batch + 1, (batch + 1) * context) <= spec.targets.tpot_s:
        batch += 1
    prefill = QUEUE_SHARE * (spec.targets.ttft_s - model.prefill.fixed_s) / own
    return {Role.PREFILL: max(1.0, prefill), Role.DECODE: float(batch)}


@dataclass(frozen=True, slots=True)
class Needs:
    """The workers that a workload needs in each interval of `LOOK_S`, when everything is known."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    mean_shape: RequestShape

    @property
    def context(self) -> float:
        return self.mean_shape.prompt_tokens + self.mean_shape.output_tokens / 2

    def between(self, start_s: float, end_s: float) -> Sizes:
        low = min(max(0, int(start_s // LOOK_S) - 1), len(self.prefill) - 1)
        high = max(low + 1, int(end_s // LOOK_S) + 1)
        return {Role.PREFILL: max(self.prefill[low:high]), Role.DECODE: max(self.decode[low:high])}

    def most(self) -> Sizes:
        return {Role.PREFILL: max(self.prefill), Role.DECODE: max(self.decode)}


def needs_of(workload: Workload, spec: SizingSpec, sizer: SimulatedSizer, mix_s: float = 300.0) -> Needs:
    """Needs from the true arrivals: rates over 30 s around each interval, lengths over `mix_s`."""
    edges = np.arange(0.0, workload.duration_s + LOOK_S, LOOK_S)
    counts = np.histogram(workload.arrival_s, edges)[0].astype(np.float64)
    work = np.histogram(workload.arrival_s, edges, weights=workload.prompt_tokens - workload.cached_tokens)[0]
    mixes: dict[int, Mix] = {}
    sizes: dict[Role, list[int]] = {role: [] for role in POOL_ROLES}
    smooth = np.convolve(np.pad(counts, 1, mode="edge"), np.ones(3) / 3, "valid") / LOOK_S
    tokens = np.convolve(np.pad(work, 1, mode="edge"), np.ones(3) / 3, "valid") / LOOK_S
    for place in range(len(counts)):
        part = int(place * LOOK_S // mix_s)
        if part not in mixes:
            mixes[part] = mix_of(workload.between(part * mix_s, (part + 1) * mix_s) or workload)
        mix = mixes[part]
        mean = max(1.0, float(np.mean([s.prompt_tokens - s.cached_tokens for s in mix.shapes])))
        loads = {Role.PREFILL: float(tokens[place]) / mean, Role.DECODE: float(smooth[place])}
        for role in POOL_ROLES:
            bounds = spec.bounds_of[role]
            needed = sizer.required(role, mix, loads[role]) if loads[role] > 0 else 1
            sizes[role].append(min(bounds.maximum, max(1, bounds.minimum, needed)))
    mean_shape = RequestShape(
        int(workload.prompt_tokens.mean()), int(workload.output_tokens.mean()), int(workload.cached_tokens.mean())
    )
    return Needs(tuple(sizes[Role.PREFILL]), tuple(sizes[Role.DECODE]), mean_shape)


def mix_of(workload: Workload, limit: int = 256) -> Mix:
    """An even sample of a workload's requests."""
    stride = max(1, len(workload) // limit)
    rows = zip(
        workload.prompt_tokens[::stride].tolist(),
        workload.output_tokens[::stride].tolist(),
        workload.cached_tokens[::stride].tolist(),
        strict=True,
    )
    return Mix(tuple(RequestShape(p, o, c) for p, o, c in rows)[: 2 * limit], 1.5)
