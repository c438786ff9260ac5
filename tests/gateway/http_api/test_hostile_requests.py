"""A small share of the hostile campaign: any bytes get an answer that is meant, and the gateway is as it was."""

from __future__ import annotations

import asyncio

import pytest

from baton_testing.gateway.gateway_process import RunningGateway, until
from baton_testing.gateway.hostile_requests import HostileRequests, Verdicts


@pytest.mark.parametrize("seed", [1, 2])
async def test_hostile_requests_are_answered_as_meant(
    gateway: RunningGateway, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    requests, verdicts = HostileRequests(seed, "tiny"), Verdicts()
    for _ in range(20):
        await asyncio.gather(*(verdicts.judge(requests.draw(), gateway.port) for _ in range(8)))
    assert verdicts.wrong == []
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    await until(lambda: gateway.server.relay.num_live == 0)
    await until(lambda: gateway.server.budget.used_bytes == 0)
    assert all(worker.is_idle for worker in gateway.pool.workers)
