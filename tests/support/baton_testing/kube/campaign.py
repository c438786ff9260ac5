"""Scenarios under faults: one run without any says where a scenario ends; every run with one has to end there too."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass

from baton_testing.kube.faults import CALM, NO_FAULT, Fault, Plan, Streams
from baton_testing.kube.scenarios import Scenario, create
from baton_testing.kube.store import Json
from baton_testing.kube.world import BrokenPromiseError, Promise, Rest, World
from baton_testing.virtual_time.loop import run_virtual

STREAMS = {
    "late": Streams(late_s=8.0),
    "twice": Streams(twice=0.5),
    "swapped": Streams(swapped=0.3),
    "lost": Streams(lost=0.2),
    "all of it": Streams(late_s=4.0, lost=0.1, twice=0.2, swapped=0.2),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    outcome: Json
    calls: tuple[str, ...]
    first: int
    """The number of the first call that the scenario made."""
    fault_happened: bool
    at_s: float
    """Virtual seconds since the scenario began."""
    writes: int


@functools.cache
def serving() -> Rest:
    """A deployment that serves."""

    async def main() -> Rest:
        world = World(promise=Promise())
        world.start()
        await create(world)
        await world.settle()
        await world.end()
        return world.rest()

    return run_virtual(main())


def run(scenario: Scenario, plan: Plan = NO_FAULT, streams: Streams = CALM, seed: int = 0) -> Ended:
    """One run. Raises BrokenPromiseError, or whatever the operator let out."""

    rest = None if scenario.is_fresh else serving()

    async def main() -> Ended:
        world = World(
            promise=scenario.promise, plan=plan, streams=streams, rest=rest, seed=seed, has_links=scenario.has_links
        )
        try:
            world.start()
            if not scenario.is_fresh:
                await world.settle()
            first, began, version = len(world.kube.made), world.clock(), world.store.version
            await scenario.script(world)
            await world.settle()
        finally:
            await world.end()
        at_s, writes = world.clock() - began, world.store.version - version
        return Ended(world.outcome(), tuple(world.kube.made), first, world.kube.is_done, at_s, writes)

    return run_virtual(main())


def faults(ended: Ended, is_fresh: bool) -> Iterator[Plan]:
    """Every call of a scenario, failing in every way; of one that begins with an empty cluster the first lists too."""
    for call in range(0 if is_fresh else ended.first, len(ended.calls)):
        for fault in Fault:
            is_write = not ended.calls[call].startswith(("get ", "list ", "watch "))
            if is_write or fault not in (Fault.STOPPED_AFTER, Fault.LOST_ANSWER, Fault.CONFLICT):
                yield Plan(call, fault)


def complaint(scenario: Scenario, wanted: Ended, plan: Plan, streams: Streams = CALM, seed: int = 0) -> str | None:
    """The complaint about a run under a fault; None: there is none."""
    try:
        ended = run(scenario, plan, streams, seed)
    except BrokenPromiseError as error:
        return f"{name_of(scenario, wanted, plan)}: {error}"
    if ended.outcome != wanted.outcome:
        return f"{name_of(scenario, wanted, plan)}: {difference(wanted.outcome, ended.outcome)}"
    return None


def name_of(scenario: Scenario, wanted: Ended, plan: Plan) -> str:
    call = wanted.calls[plan.call] if 0 <= plan.call < len(wanted.calls) else "-"
    return f"{scenario.name} | call {plan.call} ({call.strip()}) | {plan.fault.value}"


def difference(wanted: Json, actual: Json) -> str:
    """The first objects that differ, shortly."""
    names = [name for name in sorted({*wanted, *actual}) if wanted.get(name) != actual.get(name)]
    lines = []
    for name in names[:4]:
        one, other = (json.dumps(state.get(name), sort_keys=True, default=str) for state in (wanted, actual))
        at = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
        lines.append(f"{name}: …{one[max(at - 60, 0) : at + 120]}… became …{other[max(at - 60, 0) : at + 120]}…")
    return f"{len(names)} objects differ: " + "; ".join(lines)
