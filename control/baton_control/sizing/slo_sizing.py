"""Mode SLO, connected: what the gateways told in, a decision with its reason out, every interval and when woken.

Implements `scaling.Sizing` for the operator's pass and for `baton up` alike. Between two decisions it repeats the last
one; what it knows of a deployment stays in this process, the part worth keeping over a restart is in `Sized.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from baton_control.names import Key
from baton_control.sizing import sizing_state as states
from baton_control.sizing.deployment import sizing_spec, worker_prior
from baton_control.sizing.readings import Lateness, Observed, PoolSeen, Unknown
from baton_control.sizing.scaling import PoolNow, Sized
from baton_control.sizing.sizing_state import SizingState
from baton_control.sizing.slo import SloDecision
from baton_control.sizing.spec import SizingSpec
from baton_control.sizing.worker_model import WorkerModel
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import TelemetryStore
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.hardware import Accelerator

STARTUP_SAFETY = 1.15
"""A high quantile of start-up times over their median."""
SAVE_EVERY_S = 60.0
"""Between two versions of what is kept over a restart, while the pools stay as they are."""
WAIT_FOR_REPORTS_S = 12.0
"""A decision that is due waits so long for every gateway's next summary; then demand is unknown."""

Prior = Callable[[LLMDeployment, bytes | None], WorkerModel]


@dataclass(slots=True)
class _Deployment:
    """What is known of one deployment."""

    deployment: LLMDeployment
    spec: SizingSpec
    state: SizingState
    config: bytes | None
    decided_s: float
    sized: Sized | None = None
    saved_s: float = float("-inf")
    placement_s: dict[Role, float] = field(default_factory=dict)
    """Last known of each pool: an empty one will need it, too."""

    def startup_s(self, store: TelemetryStore, role: Role) -> float | None:
        """From an order until the worker is ready; None: no worker has started yet."""
        own_s = store.startup_s(role)
        return None if own_s is None else own_s * STARTUP_SAFETY + self.placement_s.get(role, 0.0)


class SloSizing:
    """`stores` gives what a deployment's gateways told. `clock` only goes forward."""

    def __init__(
        self,
        stores: Callable[[Key], TelemetryStore],
        clock: Callable[[], float],
        prior: Prior | None = None,
        accelerator: Callable[[LLMDeployment], Accelerator | None] = lambda deployment: None,
        adjust: Callable[[SizingSpec], SizingSpec] = lambda spec: spec,
    ) -> None:
        """`prior`: a worker's step times before any was seen; by default from the model and the `accelerator`."""
        self._stores, self._clock, self._adjust = stores, clock, adjust
        self._prior: Prior = prior or (lambda each, config: worker_prior(each, config, accelerator(each)))
        self._known: dict[Key, _Deployment] = {}

    def decide(
        self,
        key: Key,
        deployment: LLMDeployment,
        pools: Mapping[Role, PoolNow],
        memory: str | None,
        epoch_s: float,
        gateways: int | None = None,
    ) -> Sized:
        """A decision when one is due, else the last one."""
        now = self._clock()
        store = self._stores(key)
        known = self._of(key, deployment, store, memory, now, epoch_s)
        known.placement_s |= {role: pool.placement_s for role, pool in pools.items() if pool.placement_s is not None}
        gateway = deployment.spec.gateway
        expected = (gateway.replicas_at(0) if gateways is None else gateways) * gateway.processes
        asleep = any(pools[role].workers == 0 for role in POOL_ROLES)
        parked = store.parked if asleep else 0
        if parked and (known.sized is None or not all(known.sized.workers.values())):
            seen = states.unknown("requests wait for a first pair of workers", _observed(known, store, pools))
            return self._decided(known, store, seen, parked, now, epoch_s)
        since = now - known.decided_s
        if since < known.spec.interval_s:
            return known.sized or _first(known.spec, pools, epoch_s)
        if not store.is_complete(now, expected) and since < known.spec.interval_s + WAIT_FOR_REPORTS_S:
            return known.sized or _first(known.spec, pools, epoch_s)
        seen = replace(
            _observed(known, store, pools),
            queued_tokens=store.queued_tokens(now, expected),
            running=store.running(now, expected),
            arrivals=store.take_arrivals(now, expected),
            served=_served(known.spec, store, now),
            late=store.take_late(),
        )
        return self._decided(known, store, seen, 0, now, epoch_s)

    def model(self, key: Key) -> WorkerModel | None:
        """The worker as it is believed to be."""
        known = self._known.get(key)
        return None if known is None else known.state.model

    def forget(self, key: Key) -> None:
        """The deployment is gone."""
        self._known.pop(key, None)

    def _decided(
        self, known: _Deployment, store: TelemetryStore, seen: Observed, parked: int, now: float, epoch_s: float
    ) -> Sized:
        decision, known.state = states.learn_and_size(
            known.spec, known.state, seen, store.take_steps(), now, epoch_s, parked=parked
        )
        known.decided_s = now
        workers = {role: decision.pools[role].workers for role in POOL_ROLES}
        memory = None if known.sized is None or known.sized.workers != workers else known.sized.memory
        if memory is None or now - known.saved_s >= SAVE_EVERY_S:
            memory, known.saved_s = states.saved(known.state, now, epoch_s), now
        known.sized = Sized(
            workers=workers,
            reasons={role: decision.pools[role].reason for role in POOL_ROLES},
            holds=decision.holds,
            inputs=_inputs(decision, store, known, now),
            memory=memory,
        )
        return known.sized

    def _of(
        self,
        key: Key,
        deployment: LLMDeployment,
        store: TelemetryStore,
        memory: str | None,
        now: float,
        epoch_s: float,
    ) -> _Deployment:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._begun(deployment, store, memory, now, epoch_s)
        if known.deployment is not deployment and known.deployment.spec != deployment.spec:
            self._changed(known, deployment, store, now, epoch_s)
        if known.config is None and store.model_config is not None:
            self._changed(known, deployment, store, now, epoch_s)
        capacity = store.kv_capacity_tokens(Role.DECODE)
        if capacity is not None:
            known.state = states.resized(known.spec, known.state, capacity)
        return known

    def _begun(
        self, deployment: LLMDeployment, store: TelemetryStore, memory: str | None, now: float, epoch_s: float
    ) -> _Deployment:
        spec = self._adjust(sizing_spec(deployment))
        prior = self._prior(deployment, store.model_config)
        state = states.fresh(prior, spec) if memory is None else states.restored(memory, prior, spec, now, epoch_s)
        return _Deployment(deployment, spec, state, store.model_config, now)

    def _changed(
        self, known: _Deployment, deployment: LLMDeployment, store: TelemetryStore, now: float, epoch_s: float
    ) -> None:
        """Another manifest, or the model became known: bounds and prior anew; what was learned stays as far as it
        fits.
        """
        kept = states.saved(known.state, now, epoch_s)
        memory = known.state.memory
        if known.deployment.spec != deployment.spec:
            known.sized = None
        known.deployment, known.config = deployment, store.model_config
        known.spec = self._adjust(sizing_spec(deployment))
        known.state = states.restored(kept, self._prior(deployment, known.config), known.spec, now, epoch_s)
        known.state = replace(known.state, memory=memory)


def _first(spec: SizingSpec, pools: Mapping[Role, PoolNow], epoch_s: float) -> Sized:
    """Before anything could be told: what runs, inside the bounds."""
    workers = {role: spec.clamped(role, pools[role].workers, epoch_s) for role in POOL_ROLES}
    return Sized(workers, {role: f"{role.value} {workers[role]}: nothing told yet" for role in POOL_ROLES}, holds=True)


def _observed(known: _Deployment, store: TelemetryStore, pools: Mapping[Role, PoolNow]) -> Observed:
    """The pools as they are; demand is filled in by whoever takes it."""
    prefill, decode = (_seen(known, store, role, pools[role]) for role in POOL_ROLES)
    return Observed(Unknown("not taken yet"), prefill, decode)


def _served(spec: SizingSpec, store: TelemetryStore, now: float) -> dict[Role, Lateness]:
    """Of pools that clients saw something of in the last minute."""
    lately = store.latencies(now)
    met = {role: lately.share_met(role, spec.targets.limit_s(role)) for role in POOL_ROLES}
    return {role: Lateness(each[1], (1.0 - each[0]) * each[1]) for role, each in met.items() if each is not None}


def _seen(known: _Deployment, store: TelemetryStore, role: Role, pool: PoolNow) -> PoolSeen:
    return PoolSeen(pool.workers, pool.routable, known.startup_s(store, role))


def _inputs(decision: SloDecision, store: TelemetryStore, known: _Deployment, now: float) -> str:
    """What was weighed, short enough for a status."""
    seen = store.latencies(now)
    parts = [f"{name} {value:.4g}" for name, value in sorted(decision.inputs.items())]
    for name, sketch, target in (
        ("ttft", seen.ttft, known.spec.targets.ttft_share),
        ("tpot", seen.tpot, known.spec.targets.tpot_share),
    ):
        value = sketch.quantile(target)
        if value is not None:
            parts.append(f"{name}_p{100 * target:g}_ms {value * 1e3:.4g}")
    cost = known.spec.cost_per_hour({role: pool.workers for role, pool in decision.pools.items()})
    if cost is not None:
        parts.insert(0, f"cost_per_hour {cost:.4g}")
    for role in POOL_ROLES:
        startup_s = known.startup_s(store, role)
        if startup_s is not None:
            parts.append(f"{role.value}_startup_s {startup_s:.3g}")
    parts.append(f"oldest_wait_s {store.oldest_s():.3g}")
    steps = known.state.prefill.steps, known.state.decode.steps
    parts.append(f"steps_fitted {steps[0]}+{steps[1]}")
    return ", ".join(parts)[:1024]
