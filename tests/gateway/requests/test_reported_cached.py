"""The process that sizes the pools hears what workers have cached of prompts, however long these are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, answer, running_gateway, tokenizer, until
from baton_wire.messages.gateway_link import CachedPlaces
from baton_wire.messages.operator_link import Summary
from baton_wire.messages.values import POOL_ROLES, Role, pack_ids
from baton_wire.rules.prefix_digests import packed_places

BLOCK = 16


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    pool = FakePool(tmp_path, tokenizer(), answer)
    for role in POOL_ROLES * 2:
        await pool.add(role)
    async with running_gateway(pool, "--dead-s=60", "--suspect-s=50") as running:
        await running.until_linked(4)
        yield running
    await pool.stop()


async def send(gateway: RunningGateway, ids: list[int]) -> None:
    body = {"model": "tiny", "prompt": ids, "max_tokens": 2}
    async with aiohttp.ClientSession() as http, http.post(gateway.url("/v1/completions"), json=body) as got:
        assert got.status == 200
        await got.read()


def summary(gateway: RunningGateway, now: float) -> Summary:
    server = gateway.server
    return server.metrics.telemetry.summary(now, 1.0, server.relay.backlog(), (), "")


async def test_a_session_at_home_misses_its_new_tokens_alone(gateway: RunningGateway) -> None:
    context = [5 + number % 20 for number in range(224)]
    prefill = next(worker for worker in gateway.pool.workers if worker.role is Role.PREFILL)
    await prefill.announce_places(CachedPlaces(0, packed_places(pack_ids(context), "", BLOCK), b"", is_first=True))
    await until(lambda: gateway.server.table.cached.places(prefill.epoch) == 14)
    await send(gateway, [*context, 7, 8, 9])
    (shape,) = summary(gateway, 1.0).arrived.sample
    assert (shape.prompt_tokens, shape.cached_tokens) == (227, 224)


async def test_contexts_that_go_on_are_counted_with_their_gap(gateway: RunningGateway) -> None:
    context = [5 + number % 20 for number in range(200)]
    await send(gateway, context)
    await send(gateway, [*context, *range(5, 25)])
    counts = summary(gateway, asyncio.get_running_loop().time()).contexts
    assert counts is not None
    assert counts.prompt_tokens == 420
    assert set(counts.reused) == {192}, "whole blocks of the first, within every window"
