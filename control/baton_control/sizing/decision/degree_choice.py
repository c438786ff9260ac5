"""The degrees of tensor parallelism for the pools of a model: those that meet the targets on the fewest accelerators.

Each degree is asked what load one worker of it carries within the target, by the simulator that sizes pools. Workers
of every degree stand for a pool of as many accelerators, because a few large workers share a queue worse than many
small ones. Where several degrees are about as good, the smallest is taken: it can be scaled in the finest steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, log

from baton_control.errors import ManifestError
from baton_control.sizing.decision.capacity import GRID, SimulatedSizer
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.model_shape import ModelShape
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.roofline import Degrees, worker_model
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.tensor_parallel import DEGREES
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.hardware import Accelerator

POOL_ACCELERATORS = 8
"""Accelerators of the pool that each degree is judged in."""
AS_GOOD = 1.03
"""A degree that takes at most this many times the accelerators of the best is as good."""
FAST_SHARE = 0.99
"""The share of the fastest degree's requests in time, alone, that a degree needs. With less it is too slow."""
SPREAD = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Lengths of a load of which the mean alone is known, in means."""
LOWEST_STEPS = 48
"""Steps of the grid below a worker's most, down to a sixteenth of it, among which a load is looked for."""


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """The load to choose for, and how workers are to serve it."""

    mix: Mix
    targets: Targets
    max_step_tokens: int
    context_tokens: int
    """Length of a sequence."""


@dataclass(frozen=True, slots=True)
class DegreeCost:
    """One degree in one pool."""

    degree: int
    fits: bool
    share: float
    """Requests within the target when they are alone."""
    accelerator_s: float
    """Accelerators for one request a second; infinite: none is carried within the target."""


@dataclass(frozen=True, slots=True)
class DegreeChoice:
    """The degrees of both pools."""

    degrees: Degrees
    reasons: Mapping[Role, str]
    """Why each pool has its degree: part of a sentence."""
    costs: Mapping[Role, Sequence[DegreeCost]]


def mean_mix(prompt_tokens: int, output_tokens: int) -> Mix:
    """A load of which only the mean lengths are known: every length of the spread with every other."""
    shapes = [
        RequestShape(max(1, round(prompt_tokens * prompt)), max(2, round(output_tokens * output)))
        for prompt in SPREAD
        for output in SPREAD
    ]
    return Mix(tuple(shapes))


def choose_degrees(
    shape: ModelShape,
    accelerator: Accelerator,
    load: PlannedLoad,
    degrees: Iterable[int] = DEGREES,
    roles: Sequence[Role] = POOL_ROLES,
) -> DegreeChoice:
    """The degrees for a load. `degrees`: those that the model's format allows. `roles`: the pools; without a decode
    pool its degree is the other's. Raises ManifestError where the weights fit on no number of accelerators."""
    workers: dict[int, WorkerModel | None] = {}
    too_large: ManifestError | None = None
    for degree in sorted(degree for degree in degrees if shape.admits(degree)):
        try:
            workers[degree] = worker_model(
                shape, accelerator, degree, max_step_tokens=load.max_step_tokens, context_tokens=load.context_tokens
            )
        except ManifestError as error:
            workers[degree], too_large = None, error
    if too_large is not None and not any(workers.values()):
        raise too_large
    costs = {role: [_cost(role, degree, worker, load) for degree, worker in workers.items()] for role in roles}
    chosen = {role: cheapest(costs[role]) for role in roles}
    reasons = {role: _explain(role, chosen[role], costs[role], load.targets) for role in roles}
    prefill = chosen[Role.PREFILL]
    return DegreeChoice(Degrees(prefill.degree, chosen.get(Role.DECODE, prefill).degree), reasons, costs)


def cheapest(costs: Sequence[DegreeCost]) -> DegreeCost:
    """The smallest degree that is as good as the best of those that are fast enough."""
    fast = _fast(costs)
    least = min(cost.accelerator_s for cost in fast)
    if least == inf:
        return fast[-1]
    return next(cost for cost in fast if cost.accelerator_s <= AS_GOOD * least)


def _fast(costs: Sequence[DegreeCost]) -> list[DegreeCost]:
    """The degrees that fit and meet the target alone as often as the fastest one, nearly."""
    fastest = max(cost.share for cost in costs if cost.fits)
    return [cost for cost in costs if cost.fits and cost.share >= FAST_SHARE * fastest]


def _cost(role: Role, degree: int, worker: WorkerModel | None, load: PlannedLoad) -> DegreeCost:
    if worker is None:
        return DegreeCost(degree, fits=False, share=0.0, accelerator_s=inf)
    sizer = SimulatedSizer(worker, load.targets)
    wanted = sizer.reachable_share(role, load.mix)
    share, workers = wanted / load.targets.share(role), max(1, POOL_ACCELERATORS // degree)
    rate_per_s = _carried_per_s(sizer, role, load.mix, workers, wanted) if share > 0 else 0.0
    return DegreeCost(degree, True, share, degree / rate_per_s if rate_per_s > 0 else inf)


def _carried_per_s(sizer: SimulatedSizer, role: Role, mix: Mix, workers: int, wanted: float) -> float:
    """The largest load of one worker of a pool with which the pool keeps its percentile; 0: not even the smallest."""
    high = floor(log(sizer.most_per_s(role, mix)) / log(GRID))
    low, best = high - LOWEST_STEPS, 0.0
    while low <= high:
        step = (low + high) // 2
        rate_per_s = GRID**step
        if sizer.share_met(role, mix, rate_per_s * workers, workers) >= wanted:
            low, best = step + 1, rate_per_s
        else:
            high = step - 1
    return best


def _explain(role: Role, chosen: DegreeCost, costs: Sequence[DegreeCost], targets: Targets) -> str:
    """Why a pool has its degree: what each other one would do."""
    metric, target_s = ("TTFT", targets.ttft_s) if role is Role.PREFILL else ("TPOT", targets.tpot_s)
    fast = _fast(costs)
    notes = []
    for cost in costs:
        if cost is chosen:
            continue
        if not cost.fits:
            notes.append(f"{cost.degree} has too little memory")
        elif cost not in fast or cost.accelerator_s == inf:
            notes.append(f"{cost.degree} misses {metric} {target_s * 1e3:g} ms")
        elif chosen.accelerator_s < inf:
            notes.append(f"{cost.degree} takes {cost.accelerator_s / chosen.accelerator_s:.2f}× the accelerators")
    words = f"{role.value} {chosen.degree} rank{'' if chosen.degree == 1 else 's'}"
    if chosen.accelerator_s == inf:
        notes = [f"the fastest; none keeps {metric} {target_s * 1e3:g} ms"]
    return f"{words} ({', '.join(notes)})" if notes else words
