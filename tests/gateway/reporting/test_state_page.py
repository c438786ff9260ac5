"""The tasks and bytes of a process in `/state`."""

from __future__ import annotations

import asyncio

import aiohttp

from baton_testing.gateway.gateway_process import RunningGateway, until


async def test_held_bytes_and_tasks_are_back_once_nothing_is_at_work(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    before, worker = gateway.server.report(), gateway.pool.prefill[0]
    worker.hold = True
    body = {"model": "tiny", "prompt": "Hello", "stream": True}
    asked = asyncio.create_task(http.post(gateway.url("/v1/completions"), json=body).__aenter__())
    await until(lambda: bool(worker.received))
    at_work = gateway.server.report()
    assert at_work.held_bytes > 0 == before.held_bytes
    assert at_work.tasks > before.tasks
    asked.cancel()
    await until(lambda: gateway.server.report().held_bytes == 0)
    await until(lambda: gateway.server.report().tasks <= before.tasks)
