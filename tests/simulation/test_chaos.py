"""Worlds of three tenants, of which one is innocent, one at its quota and one hostile; whatever fails around them."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from functools import cache

import pytest

from baton_testing.simulation.chaos.plan import APART, LIES, Await, Neighbour, Weather, chaos_scenario
from baton_testing.simulation.chaos.world import ChaosWorld, chaos_world
from baton_testing.simulation.shrink import require_seed
from baton_testing.simulation.zoo.neighbours import NEIGHBOURS
from baton_testing.simulation.zoo.zoo import Mutant, hunt

SEEDS = {Weather.CALM: 9, Weather.APART: 11, Weather.LIES: 14, Weather.STORM: 0}
"""Seeds that run with every change; `make campaign RUN="chaos simulated"` runs more."""


@cache
def ran(weather: Weather) -> tuple[Counter[StrEnum], Counter[Await], Counter[tuple[Neighbour, str]]]:
    """Faults that took effect, hang-ups and ends of requests."""
    world = require_seed(chaos_scenario(SEEDS[weather], weather), chaos_world)
    assert isinstance(world, ChaosWorld)
    return world.faults, world.hang_ups, world.outcomes()


@pytest.mark.parametrize("weather", Weather)
def test_nobody_stops_the_innocent_tenant(weather: Weather) -> None:
    _, _, ends = ran(weather)
    assert ends[Neighbour.INNOCENT, "finished"] >= 5
    assert ends.total() > 40


def test_every_fault_of_processes_apart_and_every_lie_takes_effect() -> None:
    assert set(ran(Weather.APART)[0]) >= set(APART)
    assert set(ran(Weather.LIES)[0]) >= set(LIES)


def test_clients_hang_up_wherever_a_request_waits() -> None:
    seen: Counter[Await] = Counter()
    for weather in Weather:
        seen += ran(weather)[1]
    assert set(Await) - set(seen) <= {Await.HELD, Await.PARKED}, "rare ones: left to the campaign"


@pytest.mark.parametrize("mutant", NEIGHBOURS, ids=lambda mutant: mutant.name)
def test_what_one_tenant_could_do_to_another_is_caught_by_an_invariant(mutant: Mutant) -> None:
    catch, crashes = hunt(mutant, 3)
    assert catch is not None, f"{mutant.name} passed; other errors: {crashes}"
