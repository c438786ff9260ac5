"""Which of several types of accelerator a pool should have: the one that keeps the percentile for least. Pure.

A change is a rollout: workers of the new type come before those of the old one go. So a type is left only for one that
pays for both during a start, and is cheaper by a margin for the most that the last half hour asked for. While both
types are there, workers are counted in those of the type in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from baton_control.sizing.decision.capacity import Mix, Sizer
from baton_control.sizing.decision.forecast import means
from baton_control.sizing.decision.scaling import TypeChoice
from baton_control.sizing.decision.stabilisation import SPARE
from baton_control.sizing.inputs.memory import HISTORY, PoolMemory, SizingMemory
from baton_control.sizing.inputs.sizing_spec import Bounds
from baton_wire.messages.values import Role

TYPE_REST_S = 3600.0
"""A type stays at least so long, and a change has to pay for itself within it."""
FAST_SHARE = 0.99
"""Of the requests that the fastest type has in time when they are alone: with less, a type is too slow for the target,
and no number of workers helps."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One type, as workers of it are believed to be."""

    type: str
    cost_per_hour: float
    """Of one worker."""
    sizer: Sizer


def peak_per_s(memory: SizingMemory, role: Role, in_force: Sizer, mix: Mix, interval_s: float) -> float | None:
    """The most that the last half hour asked for, as requests of this mix; None: it was not seen in full."""
    work = [interval.workers(role) for interval in memory.history]
    if len(work) < HISTORY:
        return None
    return float(means(work, interval_s).max()) * in_force.most_per_s(role, mix)


def choose(
    role: Role, candidates: Sequence[Candidate], mix: Mix, rate_per_s: float, bounds: Bounds, startup_s: float
) -> TypeChoice:
    """The type to have for this load; the first candidate is in force. `bounds`: of the pool, whatever the type."""
    alone = {each.type: each.sizer.reachable_share(role, mix) for each in candidates}
    fast = {name for name, share in alone.items() if share >= FAST_SHARE * max(alone.values())}
    found = {
        each.type: _workers(role, each, mix, rate_per_s, bounds) if each.type in fast else None for each in candidates
    }
    costs = {
        each.type: inf if (count := found[each.type]) is None else count * each.cost_per_hour for each in candidates
    }
    now = candidates[0].type
    best = min(candidates, key=lambda each: costs[each.type]).type  # of equals the one in force
    pays = costs[best] * max(SPARE, 1.0 + startup_s / TYPE_REST_S) < costs[now]
    chosen = best if pays else now
    told = ", ".join(_told(each.type, found[each.type], costs[each.type]) for each in candidates)
    return TypeChoice(chosen, f"{role.value} on {chosen}: {told}, for the most of half an hour")


def worth(role: Role, other: Sizer, in_force: Sizer, mix: Mix) -> float:
    """How many workers of the type in force one of the other does the work of."""
    return other.most_per_s(role, mix) / in_force.most_per_s(role, mix)


def equivalent(own: int, others: Mapping[str, int], worth_of: Callable[[str], float]) -> int:
    """So many workers of the type in force do what these do together."""
    return own + ceil(sum(count * worth_of(each) for each, count in others.items()) - 1e-9)


def together(wanted: int, routable: int, least_worth: float) -> int:
    """Workers of all types that do what `wanted` of the type in force would, while `routable` of these serve."""
    return routable + max(0, ceil((wanted - routable) / least_worth - 1e-9))


def counted_in(memory: SizingMemory, role: Role, worth_of_former: float) -> SizingMemory:
    """The memory behind a change of type: its workers are counted in those of the new one; what was seen of numbers of
    the former ones says nothing."""
    history = tuple(
        replace(
            each,
            prefill_workers=each.prefill_workers * (worth_of_former if role is Role.PREFILL else 1.0),
            decode_workers=each.decode_workers * (worth_of_former if role is Role.DECODE else 1.0),
        )
        for each in memory.history
    )
    return replace(memory, history=history).with_pool(role, PoolMemory())


def _workers(role: Role, candidate: Candidate, mix: Mix, rate_per_s: float, bounds: Bounds) -> int | None:
    """None: no number of them within the bounds keeps the percentile."""
    workers = max(1, bounds.minimum, candidate.sizer.required(role, mix, rate_per_s))
    return workers if workers <= bounds.maximum else None


def _told(name: str, workers: int | None, cost: float) -> str:
    if workers is None:
        return f"{name} too few or too slow"
    return f"{name} {workers} at {cost:.3g} an hour"
