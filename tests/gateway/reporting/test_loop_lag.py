"""Lag of the event loop: nothing when it is idle, and what held it otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from baton_gateway.reporting.metrics import LAG_EVERY_S, watch_loop_lag
from baton_testing.gateway.gateway_process import RunningGateway
from baton_testing.virtual_time.event_heap import EventHeap
from baton_testing.virtual_time.loop import VirtualLoop


def test_a_loop_that_is_held_fires_late_by_so_much() -> None:
    heap = EventHeap(seed=0)
    loop = VirtualLoop(heap)
    lags: list[float] = []
    with loop.entered():
        loop.create_task(watch_loop_lag(lags.append))
    heap.run(until_s=10 * LAG_EVERY_S)
    assert max(lags) < 1e-3
    loop.hold()
    heap.run(until_s=1.0 + 10 * LAG_EVERY_S)
    loop.let_go()
    heap.run(until_s=1.0 + 12 * LAG_EVERY_S)
    assert max(lags) == pytest.approx(1.0, abs=2 * LAG_EVERY_S)
    loop.bury()


async def test_the_gateway_counts_what_it_sees(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async def count() -> Any:
        async with http.get(gateway.url("/metrics")) as got:
            text = await got.text()
        return float(text.split("baton_gateway_loop_lag_seconds_count ")[1].split()[0])

    before = await count()
    await asyncio.sleep(4 * LAG_EVERY_S)
    assert await count() > before
