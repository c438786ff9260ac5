"""Background work of a rig: repairs, and tasks that run until they are cancelled."""

from __future__ import annotations

import asyncio

import pytest

from baton_testing.background_tasks import cancel
from baton_testing.processes.child_process import NotReadyError
from baton_testing.processes.repairs import Repairs


async def test_a_repair_that_failed_begins_again_and_is_counted() -> None:
    repairs, attempts = Repairs(), list[int]()

    async def start() -> None:
        attempts.append(1)
        await asyncio.sleep(0)
        if len(attempts) == 1:
            raise NotReadyError("it was killed while it started")

    for _ in range(2):
        repairs.begin("gateway", start)
        repairs.begin("gateway", start)  # one is under way
        assert repairs.are_open
        await repairs.stop(60.0)
    assert not repairs.are_open
    assert len(attempts) == repairs.begun == 2
    assert repairs.failures == {"gateway: NotReadyError: it was killed while it started": 1}


async def test_an_error_that_ended_a_background_task_is_raised_where_the_tasks_are_cancelled() -> None:
    async def probe() -> None:
        raise ValueError("not a status")

    tasks = [asyncio.create_task(probe()), asyncio.create_task(asyncio.sleep(600))]
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="not a status"):
        await cancel(tasks)
    assert all(task.done() for task in tasks)


async def test_background_tasks_that_still_run_are_cancelled_without_an_error() -> None:
    task = asyncio.create_task(asyncio.sleep(600))
    await cancel([task])
    assert task.cancelled()
