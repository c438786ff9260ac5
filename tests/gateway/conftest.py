"""A gateway in front of one prefill and one decode worker without engines, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import settings

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.forked_helpers import helpers_are_forked
from baton_testing.gateway.gateway_process import RunningGateway, answer, running_gateway, tokenizer
from baton_testing.gateway.http_client import HttpClient
from baton_wire.messages.values import Role

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session", autouse=True)
def _helper_processes() -> Iterator[None]:
    with helpers_are_forked():
        yield


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    pool = FakePool(tmp_path, tokenizer(), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    yield pool
    await pool.stop()


@pytest.fixture
async def gateway(pool: FakePool) -> AsyncIterator[RunningGateway]:
    async with running_gateway(pool) as gateway:
        yield gateway


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def client(gateway: RunningGateway, http: aiohttp.ClientSession) -> HttpClient:
    return HttpClient(gateway, http)
