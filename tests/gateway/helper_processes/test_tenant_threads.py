"""Threads that tenants share: each has its turn, and a caller that leaves costs nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import baton_gateway
from baton_gateway.helper_processes.tenant_threads import TenantThreads
from baton_testing.gateway.gateway_process import until


async def test_a_tenant_that_brings_much_is_one_piece_ahead_of_another() -> None:
    threads, first, order = TenantThreads("test"), threading.Event(), list[str]()

    def work(name: str) -> None:
        assert first.wait(30)
        order.append(name)

    bad = [asyncio.create_task(threads.run("bad", work, "bad")) for _ in range(20)]
    await asyncio.sleep(0.01)
    good = asyncio.create_task(threads.run("good", work, "good"))
    await asyncio.sleep(0.01)
    first.set()
    await asyncio.wait_for(asyncio.gather(good, *bad), 30)
    assert order.index("good") == 1
    assert not threads._users
    assert not threads._turns


async def test_callers_that_leave_give_their_tenant_no_more_threads() -> None:
    threads, opened, entered = TenantThreads("test", 8, 2), threading.Event(), list[int]()

    def work() -> None:
        entered.append(1)
        assert opened.wait(30)

    for _ in range(5):
        tasks = [asyncio.create_task(threads.run("bad", work)) for _ in range(5)]
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(entered) == 2
    opened.set()
    await threads.run("bad", lambda: None)
    await until(lambda: not threads._users)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_work_returns_is_freed_where_its_caller_left(fails: bool) -> None:
    threads, opened, freed = TenantThreads("test"), threading.Event(), list[str]()

    def work() -> str:
        assert opened.wait(30)
        if fails:
            raise OSError("nothing was opened")
        return "descriptor"

    task = asyncio.create_task(threads.run("a", work, undo=freed.append))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    opened.set()
    await threads.run("a", lambda: None)
    await until(lambda: not threads._users)
    await threads.free(lambda: None)
    assert freed == ([] if fails else ["descriptor"])


def test_no_work_of_clients_is_done_in_threads_that_everything_shares() -> None:
    """The default executor has six threads on two cores. One tenant's work on a disk that hangs, or on large answers,
    would take all of them."""
    rooms = (Path(baton_gateway.__file__).parent / name for name in ("http_api", "batches"))
    files = [file for room in rooms for file in room.rglob("*.py")]
    assert len(files) > 20
    assert [file.name for file in files if "to_thread(" in file.read_text()] == []
