"""Seeded worlds of gateways, prefill and decode workers and the network between them, with faults of every kind."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest

from baton_testing.simulation.process import Violation
from baton_testing.simulation.scenario import Fault, scenario
from baton_testing.simulation.shrink import require_seed, shrink, story
from baton_testing.simulation.world import SimWorld
from baton_testing.simulation.zoo.zoo import ZOO

SEEDS, CHUNK = 150, 25
"""Seeds that run with every change; `make campaign RUN="simulation --seeds 2000"` runs more."""


@dataclass(frozen=True)
class Ran:
    """Results of one world: a seed always gives the same ones, so that no test has to run it twice."""

    faults: Counter[enum.StrEnum]
    placed: Counter[str]
    ends: Counter[str]


@cache
def ran(seed: int) -> Ran:
    world = require_seed(scenario(seed))
    ends = Counter(client.ending.outcome.value for client in world.clients if client.ending)
    return Ran(world.faults, world.placed, ends)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_every_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        ran(seed)


def test_the_same_seed_gives_the_same_trace() -> None:
    hashes = [SimWorld(scenario(11)).run().trace_hash for _ in range(2)]
    assert hashes[0] == hashes[1]
    assert SimWorld(scenario(12)).run().trace_hash != hashes[0]


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Sets of texts and bytes are in another order there."""
    seeds = (5, 7)
    lines = (
        "from baton_testing.simulation.scenario import scenario",
        "from baton_testing.simulation.world import SimWorld",
        f"print(*(SimWorld(scenario(seed)).run().trace_hash for seed in {seeds}))",
    )
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "\n".join(lines)]
    there = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    assert there.split() == [SimWorld(scenario(seed)).run().trace_hash for seed in seeds]


def test_a_gateway_that_is_killed_while_it_is_paused_ends_no_request() -> None:
    """The deadline of a request passed meanwhile, and its links to workers were closed with the process."""
    SimWorld(scenario(77, structured=0.0, flexible=0.0)).run()


def test_every_kind_of_fault_takes_effect_in_some_world() -> None:
    seen: Counter[enum.StrEnum] = Counter()
    for seed in range(40):
        seen += ran(seed).faults
    assert set(seen) == set(Fault)


def test_prompts_and_answers_go_everywhere_in_some_world() -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        seen += ran(seed).placed
    assert set(seen) == {"disaggregated", "decode local", "prefill local"}


def test_requests_are_served_in_spite_of_the_faults() -> None:
    ends: Counter[str] = Counter()
    for seed in range(20):
        ends += ran(seed).ends
    assert ends["finished"] > ends["failed"] * 3


def test_a_failing_seed_shrinks_to_a_world_that_still_fails_and_tells_its_story() -> None:
    mutant = next(defect for defect in ZOO if defect.name == "KeepsBlocksWhenPeerDies")
    wrong = (make_seed for make_seed in range(60) if _fails(mutant.world(make_seed)))
    before = mutant.scenario(next(wrong))

    def make(smaller: object) -> SimWorld:
        return SimWorld(smaller, mutant.built())  # type: ignore[arg-type]

    after = shrink(before, make)
    assert len(after.faults) < len(before.faults)
    assert len(after.requests) < len(before.requests)
    text = story(after, make)
    assert f"seed {before.seed}: I" in text
    assert "trace" in text


def _fails(world: SimWorld) -> bool:
    try:
        world.run()
    except Violation:
        return True
    return False
