"""Mode SLO, connected: what the gateways told in, a decision with its reason out, every interval and when woken.

Implements `scaling.Sizing` for the operator's pass and for `baton up` alike. Between two decisions it repeats the last
one; what it knows of a deployment stays in this process, the part worth keeping over a restart is in `Sized.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from baton_control.accelerator_types import in_force, types_of
from baton_control.names import Key
from baton_control.sizing.decision import sizing_state as states
from baton_control.sizing.decision.accelerator_choice import (
    TYPE_REST_S,
    Candidate,
    choose,
    counted_in,
    equivalent,
    peak_per_s,
    together,
    worth,
)
from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.decision.demand import MIX_REFRESH_S
from baton_control.sizing.decision.scaling import PoolNow, Sized, TypeChoice
from baton_control.sizing.decision.sizing_state import SizingState
from baton_control.sizing.decision.slo import SloDecision
from baton_control.sizing.inputs.deployment import sizing_spec, worker_prior
from baton_control.sizing.inputs.observations import Lateness, Observed, PoolSeen, Unknown
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import TelemetryStore
from baton_control.worker_specs import pool_spec
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
    types: dict[Role, TypeChoice] = field(default_factory=dict)
    """Of pools that may choose what they compute on."""
    compared_s: float = float("-inf")
    typed_s: dict[Role, float] = field(default_factory=dict)
    """When the type of a pool changed last, since this process began."""
    mixed: dict[Role, int] = field(default_factory=dict)
    """Of pools with workers of two types, what was decided last, in workers of the one in force."""
    others: dict[tuple[Role, str], SimulatedSizer] = field(default_factory=dict)
    """The twins of types that are not in force, with the step times of `others_of`."""
    others_of: WorkerModel | None = None

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
        known = self._of(key, deployment, store, memory, now, epoch_s, any(each.others for each in pools.values()))
        known.placement_s |= {role: pool.placement_s for role, pool in pools.items() if pool.placement_s is not None}
        gateway = deployment.spec.gateway
        expected = (gateway.replicas_at(0) if gateways is None else gateways) * gateway.processes
        asleep = any(pools[role].workers == 0 for role in POOL_ROLES)
        parked = store.parked if asleep else 0
        if parked and (known.sized is None or not all(known.sized.workers.values())):
            seen = states.unknown("requests wait for a first pair of workers", self._observed(known, store, pools))
            return self._decided(known, store, seen, pools, parked, now, epoch_s)
        since = now - known.decided_s
        if since < known.spec.interval_s:
            return known.sized or _first(known.spec, pools, epoch_s)
        if not store.is_complete(now, expected) and since < known.spec.interval_s + WAIT_FOR_REPORTS_S:
            return known.sized or _first(known.spec, pools, epoch_s)
        seen = replace(
            self._observed(known, store, pools),
            queued_tokens=store.queued_tokens(now, expected),
            running=store.running(now, expected),
            arrivals=store.take_arrivals(now, expected),
            served=_served(known.spec, store, now),
            late=store.take_late(),
        )
        return self._decided(known, store, seen, pools, 0, now, epoch_s)

    def model(self, key: Key) -> WorkerModel | None:
        """The worker as it is believed to be."""
        known = self._known.get(key)
        return None if known is None else known.state.model

    def forget(self, key: Key) -> None:
        """The deployment is gone."""
        self._known.pop(key, None)

    def _decided(
        self,
        known: _Deployment,
        store: TelemetryStore,
        seen: Observed,
        pools: Mapping[Role, PoolNow],
        parked: int,
        now: float,
        epoch_s: float,
    ) -> Sized:
        # Workers of two types have steps of two kinds; those of the one in force are learned from when it is alone.
        steps = [step for step in store.take_steps() if not pools[step.role].others]
        decision, known.state = states.learn_and_size(known.spec, known.state, seen, steps, now, epoch_s, parked=parked)
        known.decided_s = now
        known.mixed = {role: decision.pools[role].workers for role in POOL_ROLES if pools[role].others}
        workers = {role: self._of_all_types(known, role, decision, pools[role]) for role in POOL_ROLES}
        self._compare(known, store, pools, decision.holds, now)
        memory = None if known.sized is None or known.sized.workers != workers else known.sized.memory
        if memory is None or now - known.saved_s >= SAVE_EVERY_S:
            memory, known.saved_s = states.saved(known.state, now, epoch_s), now
        known.sized = Sized(
            workers=workers,
            reasons={role: decision.pools[role].reason for role in POOL_ROLES},
            holds=decision.holds,
            inputs=_inputs(decision, store, known, now),
            memory=memory,
            types=dict(known.types),
        )
        return known.sized

    def _of_all_types(self, known: _Deployment, role: Role, decision: SloDecision, pool: PoolNow) -> int:
        """Workers to have while some are on another type than the one in force: those go as the others come."""
        wanted, mix = decision.pools[role].workers, known.state.memory.mix
        if not pool.others or mix is None:
            return wanted
        if decision.holds:
            return known.spec.bounds_of[role].clamped(pool.workers)
        own = max(0, (pool.routable or 0) - pool.others_routable)
        least = min(self._worth(known, role, each) for each in pool.others)
        return known.spec.bounds_of[role].clamped(together(wanted, min(own, wanted), least))

    def _compare(
        self, known: _Deployment, store: TelemetryStore, pools: Mapping[Role, PoolNow], holds: bool, now: float
    ) -> None:
        """Choose the types of accelerators anew, where a manifest names several and enough was seen."""
        mix = known.state.memory.mix
        if holds or mix is None or now - known.compared_s < MIX_REFRESH_S:
            return
        known.compared_s = now
        for role in POOL_ROLES:
            types, pool = types_of(pool_spec(known.deployment, role)), pools[role]
            peak = peak_per_s(known.state.memory, role, known.state.sizer, mix, known.spec.interval_s)
            rests = now - known.typed_s.get(role, float("-inf")) < TYPE_REST_S
            if not types or peak is None or rests or pool.others or not pool.workers:
                continue
            bounds, each = _affordable(known.spec, role, pools), known.spec.bounds_of[role].accelerators
            candidates = [
                Candidate(kind.type.value, kind.cost_per_hour * each, self._sizer(known, role, kind.type))
                for kind in types
            ]
            startup_s = known.startup_s(store, role) or known.spec.startup_s
            known.types[role] = choose(role, candidates, mix, peak, bounds, startup_s)

    def _sizer(self, known: _Deployment, role: Role, name: str) -> SimulatedSizer:
        """The twin of a pool on that type. What was learned of the steps of the one in force is believed of it, too."""
        types = types_of(pool_spec(known.deployment, role))
        state = known.state
        if not any(each.type == name for each in types[1:]):
            return state.sizer
        if known.others_of is not state.model:
            known.others, known.others_of = {}, state.model
        if (role, name) not in known.others:
            chosen = {role: name} | {
                each: kinds[0].type.value
                for each in POOL_ROLES
                if each is not role and (kinds := types_of(pool_spec(known.deployment, each)))
            }
            prior = self._prior(in_force(known.deployment, chosen), known.config)
            own = self._prior(known.deployment, known.config)
            room = prior.kv_capacity_tokens * state.model.kv_capacity_tokens / own.kv_capacity_tokens
            model = states.like(state, replace(prior, kv_capacity_tokens=int(room)))
            known.others[role, name] = SimulatedSizer(model, known.spec.targets, max_workers=state.sizer.max_workers)
        return known.others[role, name]

    def _worth(self, known: _Deployment, role: Role, name: str) -> float:
        mix = known.state.memory.mix
        return 1.0 if mix is None else worth(role, self._sizer(known, role, name), known.state.sizer, mix)

    def _observed(self, known: _Deployment, store: TelemetryStore, pools: Mapping[Role, PoolNow]) -> Observed:
        """The pools as they are, in workers of the types in force; demand is filled in by whoever takes it."""
        prefill, decode = (self._seen(known, store, role, pools[role]) for role in POOL_ROLES)
        return Observed(Unknown("not taken yet"), prefill, decode)

    def _seen(self, known: _Deployment, store: TelemetryStore, role: Role, pool: PoolNow) -> PoolSeen:
        startup_s = known.startup_s(store, role)
        if not pool.others:
            return PoolSeen(pool.workers, pool.routable, startup_s)
        own = pool.workers - sum(pool.others.values())
        workers = known.mixed.get(role)  # counted anew each time, what is rounded up would add up
        if workers is None:
            workers = equivalent(own, pool.others, lambda each: self._worth(known, role, each))
        # Which of the others are routable is not asked: until they are gone nobody else is sent away.
        return PoolSeen(workers, None, startup_s)

    def _of(
        self,
        key: Key,
        deployment: LLMDeployment,
        store: TelemetryStore,
        memory: str | None,
        now: float,
        epoch_s: float,
        is_mixed: bool,
    ) -> _Deployment:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._begun(deployment, store, memory, now, epoch_s)
        if known.deployment is not deployment and known.deployment.spec != deployment.spec:
            self._changed(known, deployment, store, now, epoch_s)
        if known.config is None and store.model_config is not None:
            self._changed(known, deployment, store, now, epoch_s)
        capacity = store.kv_capacity_tokens(Role.DECODE)
        if capacity is not None and not is_mixed:
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
        for role in POOL_ROLES:
            before, after = (_type(each, role) for each in (known.deployment, deployment))
            if before != after and before is not None and after is not None:
                known.typed_s[role], known.types = now, {}
                known.mixed.pop(role, None)
                if memory.mix is not None and any(
                    each.type == after for each in types_of(pool_spec(known.deployment, role))
                ):
                    memory = counted_in(memory, role, 1.0 / self._worth(known, role, after))
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


def _served(spec: SizingSpec, store: TelemetryStore, now: float) -> dict[Role, Lateness]:
    """Of pools that clients saw something of in the last minute."""
    lately = store.latencies(now)
    met = {role: lately.share_met(role, spec.targets.limit_s(role)) for role in POOL_ROLES}
    return {role: Lateness(each[1], (1.0 - each[0]) * each[1]) for role, each in met.items() if each is not None}


def _affordable(spec: SizingSpec, role: Role, pools: Mapping[Role, PoolNow]) -> Bounds:
    """The bounds of a pool beside what the other has of the budget: more workers of a slower type would be cut."""
    bounds = spec.bounds_of[role]
    if spec.max_accelerators is None or not bounds.accelerators:
        return bounds
    taken = sum(pools[each].workers * spec.bounds_of[each].accelerators for each in POOL_ROLES if each is not role)
    most = max(bounds.minimum, (spec.max_accelerators - taken) // bounds.accelerators)
    return replace(bounds, maximum=min(bounds.maximum, most))


def _type(deployment: LLMDeployment, role: Role) -> str | None:
    accelerator = pool_spec(deployment, role).accelerator
    return None if accelerator is None or accelerator.type is None else accelerator.type.value


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
