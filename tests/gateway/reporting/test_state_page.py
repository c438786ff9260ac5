"""The tasks and bytes of a process in `/state`."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from baton_gateway.reporting.state_page import ProcessReport, state_body
from baton_testing.gateway.gateway_process import RunningGateway, until
from baton_wire.sketch import Sketch


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
    assert (list(at_work.tenants.values()), before.tenants) == ([(1, 0)], {})
    asked.cancel()
    await until(lambda: gateway.server.report().held_bytes == 0)
    await until(lambda: gateway.server.report().tasks <= before.tasks)


def test_unserved_requests_of_all_processes_are_added() -> None:
    nothing = Sketch().data()
    reports = [ProcessReport(pid, "", 0, 0, 0, 0, (), nothing, nothing, unserved_minute=2) for pid in (1, 2)]
    assert json.loads(state_body(reports))["last_minute"] == {"unserved": 4}


def test_tenants_of_all_processes_are_listed_with_the_most_sequences_first() -> None:
    nothing = Sketch().data()
    reports = [
        ProcessReport(1, "", 0, 0, 0, 0, (), nothing, nothing, tenants={"web": (1, 0), "batch": (2, 5)}),
        ProcessReport(2, "", 0, 0, 0, 0, (), nothing, nothing, tenants={"web": (3, 0)}),
    ]
    assert json.loads(state_body(reports))["tenants"] == [
        {"name": "batch", "running": 2, "waiting": 5},
        {"name": "web", "running": 4, "waiting": 0},
    ]
