"""A round of the event loop begins few requests, in turns among holders, and nobody loses a turn."""

from __future__ import annotations

import asyncio

import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.http_api import loop_pacing
from baton_gateway.http_api.loop_pacing import LoopPacing


class Handling:
    """Requests that each take the loop for a while of a clock that only they move."""

    def __init__(self, cost_s: float) -> None:
        self.now = 0.0
        self.cost_s = cost_s
        self.begun: list[str] = []
        self.pacing = LoopPacing(lambda: self.now)

    async def request(self, holder: str) -> None:
        await self.pacing.admit(holder)
        self.now += self.cost_s
        self.begun.append(holder)

    def start(self, *holders: str) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.request(holder)) for holder in holders]


async def rounds_until_done(handling: Handling, tasks: list[asyncio.Task[None]]) -> list[int]:
    """Requests begun in each round of the loop until all have ended."""
    begun = []
    while not all(task.done() for task in tasks):
        before = len(handling.begun)
        await asyncio.sleep(0)
        begun.append(len(handling.begun) - before)
    return begun


async def test_few_requests_begin_at_once() -> None:
    handling = Handling(cost_s=0.0001)
    await asyncio.gather(*handling.start("a", "a", "b"))
    assert handling.begun == ["a", "a", "b"]
    assert handling.pacing.num_waiting == 0


async def test_a_newcomer_goes_before_what_a_holder_with_many_has_waiting() -> None:
    handling = Handling(cost_s=0.05)
    flood = handling.start(*["a"] * 60)
    for _ in range(20):
        await asyncio.sleep(0)
    before = len(handling.begun)
    assert before < 60
    newcomer = handling.start("b")
    await asyncio.gather(*flood, *newcomer)
    assert handling.begun[before:].index("b") <= 3


async def test_a_round_begins_fewer_requests_the_longer_they_take() -> None:
    costs = {0.00001: 0, 0.0005: 0, 0.05: 0}
    for cost_s in costs:
        handling = Handling(cost_s)
        await asyncio.gather(*handling.start(*["a"] * 1_000))  # learns what they cost
        begun = await rounds_until_done(handling, handling.start(*["a"] * 200))
        costs[cost_s] = max(begun[1:])
    assert costs == {0.00001: loop_pacing.MAX_PER_ROUND, 0.0005: 4, 0.05: 1}


async def test_a_clock_that_stands_still_stops_nothing() -> None:
    handling = Handling(cost_s=0.0)
    handling.pacing._cost_s = 0.0  # what no time at all fades to
    await asyncio.gather(*handling.start(*["a"] * 200))
    assert len(handling.begun) == 200


async def test_a_client_that_hangs_up_while_it_waits_keeps_no_turn() -> None:
    handling = Handling(cost_s=0.05)
    tasks = handling.start(*["a"] * 40, *["b"] * 40)
    for _ in range(4):
        await asyncio.sleep(0)
    for task in tasks[:20] + tasks[40:60]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert handling.pacing.num_waiting == 0
    await asyncio.wait_for(handling.request("c"), 1.0)
    assert handling.begun.count("c") == 1


async def test_a_turn_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_pacing, "MAX_WAIT_S", 0.0)
    handling = Handling(cost_s=0.05)
    results = await asyncio.gather(*handling.start(*["a"] * 100), return_exceptions=True)
    refused = [result for result in results if isinstance(result, RefusedError)]
    assert {refusal.problem.status for refusal in refused} == {429}
    assert len(refused) + len(handling.begun) == 100
