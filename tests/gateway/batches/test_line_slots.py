"""Slots for lines of batches: whatever one tenant's lines do, another tenant's are answered."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

from baton_gateway.batches.line_slots import LineSlots


async def hold(slots: LineSlots, tenant: str, held: Counter[str]) -> None:
    """Hold a slot until cancelled."""
    async with slots.slot(tenant):
        held[tenant] += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            held[tenant] -= 1


async def test_a_tenant_whose_lines_never_end_leaves_slots_for_every_other_one() -> None:
    slots, held = LineSlots(64), Counter[str]()
    tasks = [asyncio.create_task(hold(slots, "bad", held)) for _ in range(200)]
    await asyncio.sleep(0)
    assert held["bad"] == 56
    for tenant in ("worse", "good"):
        tasks += [asyncio.create_task(hold(slots, tenant, held)) for _ in range(200)]
        await asyncio.sleep(0)
        assert held[tenant] > 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert held.total() == 0
    async with slots.slot("bad"):
        assert not slots._waiting


async def test_a_slot_that_comes_free_goes_to_the_tenant_that_holds_the_fewest() -> None:
    slots, held = LineSlots(8), Counter[str]()
    bad = [asyncio.create_task(hold(slots, "bad", held)) for _ in range(20)]
    await asyncio.sleep(0)
    good = [asyncio.create_task(hold(slots, "good", held)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in bad[:4]:
        task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
    assert sorted(held.values()) == [3, 4]
    for task in [*bad, *good]:
        task.cancel()
    await asyncio.gather(*bad, *good, return_exceptions=True)


async def test_a_single_slot_serves_one_line_after_another() -> None:
    slots, order = LineSlots(1), list[str]()

    async def line(name: str) -> None:
        async with slots.slot(name):
            order.append(name)

    await asyncio.wait_for(asyncio.gather(*(line(name) for name in "aabb")), 10)
    assert sorted(order) == list("aabb")


async def test_slots_are_neither_lost_nor_made_whenever_lines_leave() -> None:
    slots, held, draw = LineSlots(5), Counter[str](), random.Random(7)
    tasks: list[asyncio.Task[None]] = []
    for _ in range(2_000):
        if len(tasks) < 20 and draw.random() < 0.6:
            tasks.append(asyncio.create_task(hold(slots, draw.choice("abc"), held)))
        elif tasks:
            tasks.pop(draw.randrange(len(tasks))).cancel()
        if draw.random() < 0.5:
            await asyncio.sleep(0)
        assert 0 <= slots._free <= 5
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert slots._free == 5
    assert not slots._waiting
