"""A gateway with a folder of files and batches, and OpenAI's client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from baton_testing.gateway.batch_client import client_of
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway


@pytest.fixture
def batch_folder(tmp_path: Path) -> Path:
    return tmp_path / "batches"


@pytest.fixture
async def batching(pool: FakePool, batch_folder: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(pool, f"--batch-folder={batch_folder}") as gateway:
        yield gateway


@pytest.fixture
async def gpt(batching: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(batching.url("/v1")) as client:
        yield client
