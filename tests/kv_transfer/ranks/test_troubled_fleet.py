"""Workers of several ranks under cuts, kills, cancels and retargets at random instants: whatever lands is exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_testing.kv_transfer.builders import key_directory
from baton_testing.ranks.troubled_fleet import Shape, Tally, TroubledFleet, Troubles
from baton_wire.keys import KeyDirectory

CALM = Troubles(cancels=0.0, retargets=0.0, cuts=0, kills=0)
SHAPES = [
    Shape(1, (1, 1), 2),
    Shape(2, (1, 4), 1, element_bytes=1),
    Shape(1, (2, 1), 2),
    Shape(4, (2, 8), 8),
    Shape(8, (4, 1), 2),
]


@pytest.fixture
def keys(tmp_path: Path) -> KeyDirectory:
    return key_directory(tmp_path / "keys")


async def run(shape: Shape, troubles: Troubles, seeds: range, keys: KeyDirectory) -> Tally:
    tally = Tally()
    for seed in seeds:
        try:
            tally.add(await TroubledFleet(seed, shape, troubles, keys).run())
        except BaseException as error:
            error.add_note(f"seed {seed}, {shape}")
            raise
    return tally


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_without_trouble_every_request_lands(shape: Shape, keys: KeyDirectory) -> None:
    tally = await run(shape, CALM, range(1), keys)
    assert tally.landed == 8


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_whatever_lands_under_trouble_is_exact_and_everything_ends_once(shape: Shape, keys: KeyDirectory) -> None:
    tally = await run(shape, Troubles(), range(2), keys)
    assert tally.troubles["cut"] == 6
