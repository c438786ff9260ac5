"""A small share of the campaigns `neighbours` and `hang_ups`: a tenant at its worst, and one that asks steadily."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton_testing.gateway.bad_neighbours import BEHAVIOURS, Victim, misbehave, server_errors
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway, until
from baton_testing.gateway.hang_ups import HangUps
from baton_testing.gateway.steady_client import SteadyClient, shorts
from baton_testing.gateway.three_tenants import BAD, GOOD, LIMITED, key_file

MODEL = "tiny"
EACH_S = 0.1
SHARE = 0.05
HANG_UPS, LANES = 300, 30


@pytest.fixture
async def shared(pool: FakePool, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway of three tenants, whose workers report as real ones do."""

    async def report() -> None:
        while True:
            await asyncio.sleep(0.1)
            for worker in pool.workers:
                worker.received.clear()
                await worker.report()

    async with running_gateway(pool, f"--api-keys={key_file(tmp_path)}") as gateway:
        reports = asyncio.create_task(report())
        yield gateway
        reports.cancel()


@contextlib.asynccontextmanager
async def served_well(gateway: RunningGateway) -> AsyncIterator[None]:
    """A good tenant asks meanwhile and gets every answer; afterwards nothing is held."""
    client = SteadyClient(gateway.port, GOOD, shorts(MODEL, "Hello"), 10.0)
    async with client:
        yield
        await client.settle()
    assert client.seen.ttft_s
    assert client.seen.problems() == []

    def is_idle() -> bool:
        report = gateway.server.report()
        held = report.requests_running, report.requests_waiting, report.held_bytes
        return held == (0, 0, 0) and all(worker.is_idle for worker in gateway.pool.workers)

    await until(is_idle)


async def test_a_bad_neighbour_costs_nobody_an_answer_and_leaves_nothing_held(shared: RunningGateway) -> None:
    answers: Counter[str] = Counter()
    victim = Victim(shared.port, MODEL, 2_048, 390, BAD, LIMITED)
    async with served_well(shared):
        for seed, behaviour in enumerate(BEHAVIOURS):
            bad = asyncio.create_task(misbehave(victim, [behaviour], seed, answers, SHARE))
            await asyncio.sleep(EACH_S)
            bad.cancel()
            await asyncio.gather(bad, return_exceptions=True)
    assert answers["200"] > 0
    assert server_errors(answers) == 0


async def test_hang_ups_at_any_instant_cost_nobody_an_answer_and_leave_nothing_held(shared: RunningGateway) -> None:
    hang_ups = HangUps(shared.port, MODEL, BAD, 1)
    tasks = len(asyncio.all_tasks())
    async with served_well(shared):
        await asyncio.gather(*(hang_ups.lane(number, HANG_UPS) for number in range(LANES)))
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert hang_ups.answered.total() > 0
    assert hang_ups.errors.total() == 0
