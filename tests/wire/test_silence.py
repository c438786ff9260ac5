"""A block that listens to a peer ends by the peer's silence, and by nothing that this process did itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton_testing.virtual_time.event_heap import EventHeap
from baton_testing.virtual_time.loop import VirtualLoop
from baton_wire.liveness import LivenessConfig
from baton_wire.silence import bounded_silence

CONFIG = LivenessConfig(suspect_s=2.0, dead_s=4.0)


def listening(speaks_until_s: float, meanwhile: Callable[[EventHeap, VirtualLoop], None]) -> list[float]:
    """When the block ended by silence, if it did within 100 s; its peer speaks once a second until then."""
    heap = EventHeap(seed=0)
    loop = VirtualLoop(heap)
    ended: list[float] = []

    async def listen() -> None:
        try:
            async with bounded_silence(CONFIG) as liveness:
                while loop.time() < speaks_until_s:
                    await asyncio.sleep(1.0)
                    liveness.heard(loop.time())
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(loop.time())

    with loop.entered():
        loop.create_task(listen())
    meanwhile(heap, loop)
    heap.run(until_s=100.0)
    loop.bury()
    loop.close()
    return ended


def nothing(heap: EventHeap, loop: VirtualLoop) -> None:
    pass


def hold_for_10_s(heap: EventHeap, loop: VirtualLoop) -> None:
    heap.run(until_s=20.5)
    loop.hold()
    heap.run(until_s=30.5)
    loop.let_go()


def test_a_peer_that_falls_silent_ends_it_in_time() -> None:
    assert listening(0.0, nothing) == [pytest.approx(4.0, abs=0.5)]
    assert listening(50.0, nothing) == [pytest.approx(54.0, abs=0.5)]


def test_a_peer_that_speaks_never_does() -> None:
    assert listening(1_000.0, nothing) == []


def test_a_gap_of_this_process_is_not_held_against_the_peer() -> None:
    assert listening(1_000.0, hold_for_10_s) == []
    [ended] = listening(18.0, hold_for_10_s)
    assert ended > 30.5
