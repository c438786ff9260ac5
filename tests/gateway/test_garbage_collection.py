"""Full garbage collections happen in quiet moments of the event loop, not while much arrives."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from baton_gateway import garbage_collection
from baton_gateway.garbage_collection import DUE, MIDDLE, OLD, YOUNG, collect_when_quiet, settle


class Cycle:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "LOOK_S", 0.01)


def old_garbage(middle_collections: int) -> weakref.ref[Cycle]:
    """Garbage of the oldest generation, and collections of the middle one since."""
    cycle = Cycle()
    gc.collect()
    gc.set_threshold(0)
    for _ in range(middle_collections):
        gc.collect(1)
    assert gc.get_count()[2] == middle_collections
    return weakref.ref(cycle)


async def collected_within(garbage: weakref.ref[Cycle], seconds: float) -> bool:
    collecting = asyncio.create_task(collect_when_quiet())
    deadline = time.monotonic() + seconds
    while garbage() is not None and time.monotonic() < deadline:  # noqa: ASYNC110 - a collection sets no event
        await asyncio.sleep(0.005)
    collecting.cancel()
    return garbage() is None


@pytest.mark.usefixtures("short_looks")
async def test_a_quiet_loop_collects_what_a_busy_time_left() -> None:
    assert await collected_within(old_garbage(DUE), 60.0)


@pytest.mark.usefixtures("short_looks")
async def test_a_busy_loop_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", time.monotonic)
    garbage = old_garbage(10 * DUE)
    assert not await collected_within(garbage, 0.2)
    gc.collect()
    assert garbage() is None


@pytest.mark.usefixtures("short_looks")
async def test_a_loop_that_was_never_busy_collects_nothing() -> None:
    assert not await collected_within(old_garbage(DUE - 1), 0.2)


def test_start_up_is_frozen_and_young_objects_are_collected_as_before() -> None:
    settle()
    assert gc.get_threshold() == (YOUNG, MIDDLE, OLD)
    assert gc.get_freeze_count() > 0
