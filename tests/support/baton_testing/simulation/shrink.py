"""From a failing world to the smallest one that still fails, and to a page that explains what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton_testing.simulation.process import Violation
from baton_testing.simulation.scenario import Scenario
from baton_testing.simulation.world import SimWorld

MOST_RUNS = 120
TRACE_LINES = 80

MakeWorld = Callable[[Scenario], SimWorld]


def fails(scenario: Scenario, make: MakeWorld = SimWorld) -> Violation | None:
    """The violation in the world of this scenario."""
    try:
        make(scenario).run()
    except Violation as violation:
        return violation
    return None


def shrink(scenario: Scenario, make: MakeWorld = SimWorld) -> Scenario:
    """Drop faults, then requests, in halves and then one by one, as long as the same invariant still fails."""
    first = fails(scenario, make)
    if first is None:
        return scenario
    runs = [0]

    def still(smaller: Scenario) -> bool:
        runs[0] += 1
        violation = fails(smaller, make) if runs[0] <= MOST_RUNS else None
        return violation is not None and violation.invariant == first.invariant

    scenario = _drop(scenario, lambda s: s.faults, lambda s, places: s.without(faults=places), still)
    return _drop(scenario, lambda s: s.requests, lambda s, places: s.without(requests=places), still)


def _drop(
    scenario: Scenario,
    parts: Callable[[Scenario], Sequence[object]],
    without: Callable[[Scenario, frozenset[int]], Scenario],
    still: Callable[[Scenario], bool],
) -> Scenario:
    size = max(1, len(parts(scenario)) // 2)
    while True:
        at = 0
        while at < len(parts(scenario)):
            smaller = without(scenario, frozenset(range(at, at + size)))
            if still(smaller):
                scenario = smaller
            else:
                at += size
        if size == 1:
            return scenario
        size //= 2


def story(scenario: Scenario, make: MakeWorld = SimWorld) -> str:
    """The scenario and the end of its trace, for people."""
    world = make(scenario)
    end = "nothing is violated"
    try:
        world.run()
    except Violation as violation:
        end = str(violation)
    faults = (f"  {fault.at_s:7.3f} s  {fault.kind} (pick {fault.pick:.3f})" for fault in scenario.faults)
    asked = (
        f"  {plan.at_s:7.3f} s  request {plan.number}: {len(plan.tokens)} tokens, n {plan.n}, "
        f"{plan.sampling.max_tokens} more"
        for plan in scenario.requests
    )
    trace = world.heap.trace[-TRACE_LINES:]
    lines = [
        f"seed {scenario.seed}: {end}",
        str(scenario.shape),
        "requests",
        *asked,
        "faults",
        *faults,
        "trace",
        *trace,
    ]
    return "\n".join(lines)


def require_seed(scenario: Scenario, make: MakeWorld = SimWorld) -> SimWorld:
    """Run the world; a violation comes with the story of the shrunken scenario."""
    world = make(scenario)
    try:
        return world.run()
    except Violation as violation:
        violation.add_note(story(shrink(scenario, make), make))
        raise
