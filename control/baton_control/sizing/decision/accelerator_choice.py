"""Which of several types of accelerator a pool should have: the one that keeps the percentile for least. Pure.

A change is a rollout: workers of the new type start before those of the old one stop. So a type is left only for one
that pays for both during a start, and is cheaper by a margin for the most that the last half hour asked for. While
workers of both types serve, they are counted in workers of the type in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from baton_control.accelerator_types import in_force, types_of
from baton_control.sizing.decision.budget import affordable_bounds
from baton_control.sizing.decision.capacity import SimulatedSizer, Sizer
from baton_control.sizing.decision.demand import MIX_REFRESH_S
from baton_control.sizing.decision.forecast import means
from baton_control.sizing.decision.pool_sizer import SPARE
from baton_control.sizing.decision.scaling import PoolNow, TypeChoice
from baton_control.sizing.decision.sizing_state import SizingState, believed_worker
from baton_control.sizing.inputs.deployment import Prior
from baton_control.sizing.inputs.memory import HISTORY, PoolMemory, SizingMemory
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.api import LLMDeployment
from baton_control.worker_specs import pool_spec
from baton_wire.messages.values import POOL_ROLES, Role

TYPE_REST_S = 3600.0
"""How long a type stays at least, and within which a change has to pay for itself."""
FAST_SHARE = 0.99
"""The share of the fastest type's requests in time, alone, that a type needs: with less it is too slow for the target,
and no number of workers helps."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One type, as workers of it are believed to be."""

    type: str
    cost_per_hour: float
    """Per worker."""
    sizer: Sizer


@dataclass(slots=True)
class KnownDeployment:
    """One deployment as sizing knows it."""

    deployment: LLMDeployment
    spec: SizingSpec
    state: SizingState
    config: bytes | None
    """The model's config.json."""


class TypeComparison:
    """The accelerator types of one deployment's pools: which one each pool should have, and what workers of another
    type count for while one replaces the other."""

    def __init__(self, known: KnownDeployment, prior: Prior) -> None:
        self.choices: dict[Role, TypeChoice] = {}
        """The present choices, of pools that may choose."""
        self._known, self._prior = known, prior
        self._compared_s = -inf
        self._typed_s: dict[Role, float] = {}
        """When the type of a pool changed last, since this process began."""
        self._counted: dict[Role, int] = {}
        """The size decided last of pools with workers of two types, in workers of the type in force."""
        self._sizers: dict[tuple[Role, str], SimulatedSizer] = {}
        """The sizers of types that are not in force, with the step times of `_sizers_of`."""
        self._sizers_of: WorkerModel | None = None

    def compare(self, pools: Mapping[Role, PoolNow], startup_s: Callable[[Role], float], now: float) -> None:
        """Choose the types anew, where a manifest names several and enough was observed."""
        known, memory = self._known, self._known.state.memory
        if memory.mix is None or now - self._compared_s < MIX_REFRESH_S:
            return
        self._compared_s = now
        for role in POOL_ROLES:
            types, pool = types_of(pool_spec(known.deployment, role)), pools[role]
            peak = peak_per_s(memory, role, known.state.sizer, memory.mix, known.spec.interval_s)
            rests = now - self._typed_s.get(role, -inf) < TYPE_REST_S
            if not types or peak is None or rests or pool.others or not pool.workers:
                continue
            bounds = affordable_bounds(known.spec, role, pools[role.partner].workers)
            candidates = [
                Candidate(kind.type.value, kind.cost_per_hour * bounds.accelerators, self._sizer(role, kind.type))
                for kind in types
            ]
            self.choices[role] = choose(role, candidates, memory.mix, peak, bounds, startup_s(role))

    def count(self, role: Role, pool: PoolNow) -> int:
        """The workers of a pool with two types, in those of the type in force."""
        if role in self._counted:  # counted anew each time, what is rounded up would add up
            return self._counted[role]
        own = pool.workers - sum(pool.others.values())
        return equivalent(own, pool.others, lambda name: self._worth(role, name))

    def remember(self, workers: Mapping[Role, int], pools: Mapping[Role, PoolNow]) -> None:
        """A decision was made, in workers of the types in force."""
        self._counted = {role: workers[role] for role in POOL_ROLES if pools[role].others}

    def total(self, role: Role, wanted: int, pool: PoolNow) -> int:
        """Workers to have while some are on another type than the one in force: those stop as the new ones serve."""
        if not pool.others or self._known.state.memory.mix is None:
            return wanted
        own = max(0, (pool.routable or 0) - pool.others_routable)
        least_worth = min(self._worth(role, name) for name in pool.others)
        return self._known.spec.bounds_of[role].clamp(total_of_types(wanted, min(own, wanted), least_worth))

    def change(self, deployment: LLMDeployment, now: float) -> SizingMemory:
        """The memory for another manifest, perhaps with other types in force. Called while the old one is known."""
        before, memory = self._known.deployment, self._known.state.memory
        for role in POOL_ROLES:
            old, new = _type(before, role), _type(deployment, role)
            if old == new or old is None or new is None:
                continue
            self._typed_s[role], self.choices = now, {}
            self._counted.pop(role, None)
            is_named = any(kind.type == new for kind in types_of(pool_spec(before, role)))
            if memory.mix is not None and is_named:
                memory = counted_in(memory, role, 1.0 / self._worth(role, new))
        return memory

    def _sizer(self, role: Role, name: str) -> SimulatedSizer:
        """Asks the simulator of a pool on that type. It is believed to differ from its data sheet as the type in force
        does."""
        known, state = self._known, self._known.state
        if not any(kind.type == name for kind in types_of(pool_spec(known.deployment, role))[1:]):
            return state.sizer
        if self._sizers_of is not state.model:
            self._sizers, self._sizers_of = {}, state.model
        if (role, name) not in self._sizers:
            partner_types = types_of(pool_spec(known.deployment, role.partner))
            chosen = {role: name} | ({role.partner: partner_types[0].type.value} if partner_types else {})
            prior = self._prior(in_force(known.deployment, chosen), known.config)
            own = self._prior(known.deployment, known.config)
            capacity = prior.kv_capacity_tokens * state.model.kv_capacity_tokens / own.kv_capacity_tokens
            model = believed_worker(state, prior.with_kv_capacity(int(capacity)))
            self._sizers[role, name] = SimulatedSizer(
                model, known.spec.targets, state.sizer.prefix_affinity, state.sizer.max_workers
            )
        return self._sizers[role, name]

    def _worth(self, role: Role, name: str) -> float:
        mix = self._known.state.memory.mix
        return 1.0 if mix is None else worth(role, self._sizer(role, name), self._known.state.sizer, mix)


def peak_per_s(memory: SizingMemory, role: Role, in_force: Sizer, mix: Mix, interval_s: float) -> float | None:
    """The most that the last half hour asked for, as requests of this mix; None: it was not observed in full."""
    work = [interval.workers(role) for interval in memory.history]
    if len(work) < HISTORY:
        return None
    return float(means(work, interval_s).max()) * in_force.most_per_s(role, mix)


def choose(
    role: Role, candidates: Sequence[Candidate], mix: Mix, rate_per_s: float, bounds: Bounds, startup_s: float
) -> TypeChoice:
    """The type to have for this load; the first candidate is in force. `bounds`: of the pool, whatever the type."""
    alone = {candidate.type: candidate.sizer.reachable_share(role, mix) for candidate in candidates}
    fast = {name for name, share in alone.items() if share >= FAST_SHARE * max(alone.values())}
    workers: dict[str, int | None] = {}
    costs: dict[str, float] = {}
    for candidate in candidates:
        name = candidate.type
        count = max(1, bounds.minimum, candidate.sizer.required(role, mix, rate_per_s)) if name in fast else inf
        workers[name] = int(count) if count <= bounds.maximum else None
        costs[name] = count * candidate.cost_per_hour if count <= bounds.maximum else inf
    now = candidates[0].type
    best = min(costs, key=lambda name: costs[name])  # of equals the one in force
    pays = costs[best] * max(SPARE, 1.0 + startup_s / TYPE_REST_S) < costs[now]
    chosen = best if pays else now
    figures = ", ".join(_figures(name, workers[name], cost) for name, cost in costs.items())
    return TypeChoice(chosen, f"{role.value} on {chosen}: {figures}, for the most of half an hour")


def worth(role: Role, other: Sizer, in_force: Sizer, mix: Mix) -> float:
    """How many workers of the type in force do the work of one worker of the other type."""
    return other.most_per_s(role, mix) / in_force.most_per_s(role, mix)


def equivalent(own: int, others: Mapping[str, int], worth_of: Callable[[str], float]) -> int:
    """The workers of the type in force that do what `own` and `others` do together."""
    return own + ceil(sum(count * worth_of(name) for name, count in others.items()) - 1e-9)


def total_of_types(wanted: int, routable: int, least_worth: float) -> int:
    """Workers of all types that do what `wanted` of the type in force would, while `routable` of these serve."""
    return routable + max(0, ceil((wanted - routable) / least_worth - 1e-9))


def counted_in(memory: SizingMemory, role: Role, worth_of_former: float) -> SizingMemory:
    """The memory after a change of type: its workers are counted in those of the new type; what was observed with
    numbers of the former one says nothing."""
    prefill, decode = (worth_of_former if pool is role else 1.0 for pool in POOL_ROLES)
    history = tuple(
        replace(
            interval,
            prefill_workers=interval.prefill_workers * prefill,
            decode_workers=interval.decode_workers * decode,
        )
        for interval in memory.history
    )
    return replace(memory, history=history).with_pool(role, PoolMemory())


def _figures(name: str, workers: int | None, cost: float) -> str:
    if workers is None:
        return f"{name} too few or too slow"
    return f"{name} {workers} at {cost:.3g} an hour"


def _type(deployment: LLMDeployment, role: Role) -> str | None:
    accelerator = pool_spec(deployment, role).accelerator
    return None if accelerator is None or accelerator.type is None else accelerator.type.value
