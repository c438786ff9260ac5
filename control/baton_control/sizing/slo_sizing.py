"""Mode SLO, connected: reports of the gateways in, a decision with its reason out, every interval and when woken.

Implements `scaling.Sizing` for the operator's pass and for `baton up` alike. Between two decisions it repeats the last
one. What it knows of a deployment stays in this process; the part worth keeping over a restart is in `Sized.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from baton_control.names import Key
from baton_control.sizing.decision import sizing_state as states
from baton_control.sizing.decision.accelerator_choice import KnownDeployment, TypeComparison
from baton_control.sizing.decision.scaling import PoolNow, Sized, SizingRequest
from baton_control.sizing.decision.slo import SloDecision
from baton_control.sizing.inputs.context_use import ContextUse
from baton_control.sizing.inputs.deployment import Prior, sizing_spec, worker_prior
from baton_control.sizing.inputs.observations import Lateness, Measurements, ObservedPool, Unknown
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import TelemetryStore
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.hardware import Accelerator

STARTUP_SAFETY = 1.15
"""A high quantile of start-up times over their median."""
SAVE_EVERY_S = 60.0
"""The time between two versions of what is kept over a restart, while the pools keep their size."""
WAIT_FOR_REPORTS_S = 12.0
"""How long a decision that is due waits for every gateway's next summary; then demand is unknown."""


@dataclass(slots=True)
class _Deployment:
    """One deployment, and what was decided for it."""

    known: KnownDeployment
    store: TelemetryStore
    types: TypeComparison
    decided_s: float
    sized: Sized | None = None
    saved_s: float = float("-inf")
    placement_s: dict[Role, float] = field(default_factory=dict)
    """Last known of each pool: an empty one will need it, too."""

    def startup_s(self, role: Role) -> float | None:
        """From an order until the worker is ready; None: no worker has started yet."""
        own_s = self.store.startup_s(role)
        return None if own_s is None else own_s * STARTUP_SAFETY + self.placement_s.get(role, 0.0)


class SloSizing:
    """Sizes deployments from what their gateways report."""

    def __init__(
        self,
        stores: Callable[[Key], TelemetryStore],
        clock: Callable[[], float],
        prior: Prior | None = None,
        accelerator: Callable[[LLMDeployment], Accelerator | None] = lambda deployment: None,
        adjust: Callable[[SizingSpec], SizingSpec] = lambda spec: spec,
    ) -> None:
        """`stores`: the reports of a deployment's gateways; `clock` only goes forward; `prior`: a worker's step times
        before any was observed, by default from the model and the `accelerator`."""
        self._stores, self._clock, self._adjust = stores, clock, adjust
        self._prior: Prior = prior or (
            lambda deployment, config: worker_prior(deployment, config, accelerator(deployment))
        )
        self._deployments: dict[Key, _Deployment] = {}

    def decide(self, request: SizingRequest) -> Sized:
        """A decision when one is due, else the last one."""
        now, pools = self._clock(), request.pools
        entry = self._entry(request, now)
        spec, store = entry.known.spec, entry.store
        gateway = request.deployment.spec.gateway
        gateways = gateway.replicas_at(0) if request.gateways is None else request.gateways
        expected = gateways * gateway.processes
        parked = store.parked if any(pools[role].workers == 0 for role in spec.roles) else 0
        if parked and (entry.sized is None or not all(entry.sized.workers[role] for role in spec.roles)):
            seen = states.unknown("requests wait for a first pair of workers", _observed(entry, pools))
            return self._make_decision(entry, request, seen, parked, now)
        since = now - entry.decided_s
        waits = not store.is_complete(now, expected) and since < spec.interval_s + WAIT_FOR_REPORTS_S
        if since < spec.interval_s or waits:
            return entry.sized or _before_reports(spec, pools, request.epoch_s)
        seen = replace(
            _observed(entry, pools),
            queued_tokens=store.queued_tokens(now, expected),
            running=store.running(now, expected),
            arrivals=store.take_arrivals(now, expected),
            served=_served(spec, store, now),
            contexts=store.contexts(now, expected),
            late=store.take_late(),
        )
        return self._make_decision(entry, request, seen, 0, now)

    def model(self, key: Key) -> WorkerModel | None:
        """The worker as it is believed to be."""
        entry = self._deployments.get(key)
        return None if entry is None else entry.known.state.model

    def forget(self, key: Key) -> None:
        """The deployment is gone."""
        self._deployments.pop(key, None)

    def _make_decision(
        self, entry: _Deployment, request: SizingRequest, seen: Measurements, parked: int, now: float
    ) -> Sized:
        known, pools, epoch_s = entry.known, request.pools, request.epoch_s
        # Workers of two types have steps of two kinds; those of the one in force are learned from when it is alone.
        steps = [step for step in entry.store.take_steps() if not pools[step.role].others]
        decision, known.state = states.learn_and_size(known.spec, known.state, seen, steps, now, epoch_s, parked)
        entry.decided_s = now
        workers = {role: _total(entry, role, decision, pools[role]) for role in POOL_ROLES}
        entry.types.remember({role: decision.pools[role].workers for role in POOL_ROLES}, pools)
        if not decision.holds:
            entry.types.compare(pools, lambda role: entry.startup_s(role) or known.spec.startup_s, now)
        memory = None if entry.sized is None or entry.sized.workers != workers else entry.sized.memory
        if memory is None or now - entry.saved_s >= SAVE_EVERY_S:
            memory, entry.saved_s = states.save(known.state, now, epoch_s), now
        entry.sized = Sized(
            workers=workers,
            reasons={role: decision.pools[role].reason for role in POOL_ROLES},
            holds=decision.holds,
            inputs=_inputs(decision, entry, seen.contexts, now),
            memory=memory,
            types=dict(entry.types.choices),
        )
        return entry.sized

    def _entry(self, request: SizingRequest, now: float) -> _Deployment:
        """The deployment, as its manifest, its model and its workers are now."""
        entry = self._deployments.get(request.key)
        if entry is None:
            entry = self._deployments[request.key] = self._begin(request, now)
        entry.store = self._stores(request.key)
        known, store, pools = entry.known, entry.store, request.pools
        is_new = known.deployment is not request.deployment and known.deployment.spec != request.deployment.spec
        if is_new or (known.config is None and store.model_config is not None):
            self._change(entry, request, now)
        capacity = store.kv_capacity_tokens(Role.DECODE if Role.DECODE in known.spec.roles else Role.PREFILL)
        if capacity is not None and not any(pool.others for pool in pools.values()):
            known.state = states.with_kv_capacity(known.spec, known.state, capacity)
        entry.placement_s |= {role: pool.placement_s for role, pool in pools.items() if pool.placement_s is not None}
        return entry

    def _begin(self, request: SizingRequest, now: float) -> _Deployment:
        store, memory = self._stores(request.key), request.memory
        spec = self._adjust(sizing_spec(request.deployment))
        prior = self._prior(request.deployment, store.model_config)
        if memory is None:
            state = states.fresh(prior, spec)
        else:
            state = states.restore(memory, prior, spec, now, request.epoch_s)
        known = KnownDeployment(request.deployment, spec, state, store.model_config)
        return _Deployment(known, store, TypeComparison(known, self._prior), now)

    def _change(self, entry: _Deployment, request: SizingRequest, now: float) -> None:
        """Another manifest, or the model became known: bounds and prior anew; what was learned stays as far as it
        fits.
        """
        known, config = entry.known, entry.store.model_config
        saved = states.save(known.state, now, request.epoch_s)
        memory = entry.types.change(request.deployment, now)
        if known.deployment.spec != request.deployment.spec:
            entry.sized = None
        known.deployment, known.config = request.deployment, config
        known.spec = self._adjust(sizing_spec(request.deployment))
        prior = self._prior(request.deployment, config)
        known.state = replace(states.restore(saved, prior, known.spec, now, request.epoch_s), memory=memory)


def _observed(entry: _Deployment, pools: Mapping[Role, PoolNow]) -> Measurements:
    """The pools as they are, in workers of the types in force; the caller fills in the demand."""
    prefill, decode = (_pool_seen(entry, role, pools[role]) for role in POOL_ROLES)
    return Measurements(Unknown("not taken yet"), prefill, decode)


def _pool_seen(entry: _Deployment, role: Role, pool: PoolNow) -> ObservedPool:
    if not pool.others:
        return ObservedPool(pool.workers, pool.routable, entry.startup_s(role))
    # Which of the others are routable is not asked: until they are gone no further worker is stopped.
    return ObservedPool(entry.types.count(role, pool), None, entry.startup_s(role))


def _total(entry: _Deployment, role: Role, decision: SloDecision, pool: PoolNow) -> int:
    """Workers of all types."""
    if pool.others and decision.holds and entry.known.state.memory.mix is not None:
        return entry.known.spec.bounds_of[role].clamp(pool.workers)
    return entry.types.total(role, decision.pools[role].workers, pool)


def _before_reports(spec: SizingSpec, pools: Mapping[Role, PoolNow], epoch_s: float) -> Sized:
    """Before any report: what runs, inside the bounds."""
    workers = {role: spec.clamp(role, pools[role].workers, epoch_s) for role in POOL_ROLES}
    return Sized(workers, {role: f"{role.value} {workers[role]}: no report yet" for role in POOL_ROLES}, holds=True)


def _served(spec: SizingSpec, store: TelemetryStore, now: float) -> dict[Role, Lateness]:
    """The last minute of each pool as clients saw it; pools without a request are left out."""
    lately = store.latencies(now)
    served = {}
    for role in POOL_ROLES:
        met = lately.share_met(role, spec.targets.limit_s(role))
        if met is not None:
            share, requests = met
            sketch = lately.ttft if role is Role.PREFILL else lately.tpot
            reached_s = sketch.quantile(spec.targets.share(role))
            served[role] = Lateness(requests, (1.0 - share) * requests, reached_s, lately.unserved)
    return served


def _inputs(decision: SloDecision, entry: _Deployment, contexts: ContextUse | None, now: float) -> str:
    """The figures that were weighed, short enough for a status."""
    known, store = entry.known, entry.store
    lately, targets = store.latencies(now), known.spec.targets
    parts = [f"{name} {value:.4g}" for name, value in sorted(decision.inputs.items())]
    for name, sketch, share in (
        ("ttft", lately.ttft, targets.ttft_share),
        ("tpot", lately.tpot, targets.tpot_share),
    ):
        value = sketch.quantile(share)
        if value is not None:
            parts.append(f"{name}_p{100 * share:g}_ms {value * 1e3:.4g}")
    cost = known.spec.cost_per_hour({role: pool.workers for role, pool in decision.pools.items()})
    if cost is not None:
        parts.insert(0, f"cost_per_hour {cost:.4g}")
    for role in POOL_ROLES:
        startup_s = entry.startup_s(role)
        if startup_s is not None:
            parts.append(f"{role.value}_startup_s {startup_s:.3g}")
    if contexts is not None and contexts.hit_share is not None:
        parts.append(f"cached_share {contexts.hit_share:.3g}")
        parts.append(f"evicted_share {contexts.evicted_share:.3g}")
        parts.append(f"cached_elsewhere_share {contexts.elsewhere_share:.3g}")
    parts.append(f"oldest_wait_s {store.oldest_s():.3g}")
    parts.append(f"steps_fitted {known.state.prefill.steps}+{known.state.decode.steps}")
    return ", ".join(parts)[:1024]
