"""Seeded worlds of gateways, prefill and decode workers and the network between them, with faults of every kind."""

from __future__ import annotations

import pytest

from baton_testing.sim_scenario import scenario
from baton_testing.sim_world import SimWorld

CHUNK = 20


@pytest.mark.parametrize("first", range(0, 40, CHUNK))
def test_every_seed_keeps_every_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        SimWorld(scenario(seed)).run()
