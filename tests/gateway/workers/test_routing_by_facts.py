"""A gateway process routes by what its workers announce, and a worker that announces nonsense harms nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.fake_worker import FakeWorker
from baton_testing.gateway.gateway_process import RunningGateway, answer, running_gateway, tokenizer, until
from baton_wire.messages.gateway_link import CachedPlaces, Prefill, Reserve
from baton_wire.messages.values import POOL_ROLES, Role, pack_ids
from baton_wire.rules.prefix_digests import packed_places

HEAD = list(range(5, 25)) * 10


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    pool = FakePool(tmp_path, tokenizer(), answer)
    for role in POOL_ROLES * 3:
        await pool.add(role)
    async with running_gateway(pool, "--dead-s=60", "--suspect-s=50") as running:
        await running.until_linked(6)
        yield running
    await pool.stop()


def whole(ids: list[int], generation: int = 0) -> CachedPlaces:
    return CachedPlaces(generation, packed_places(pack_ids(ids), "", 16), b"", is_first=True)


async def complete(gateway: RunningGateway, ids: list[int]) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": ids, "max_tokens": 2}
    async with aiohttp.ClientSession() as http, http.post(gateway.url("/v1/completions"), json=body) as got:
        assert got.status == 200
        result: dict[str, Any] = await got.json()
        return result


def prefills(worker: FakeWorker) -> list[Prefill]:
    return [message for message in worker.received if isinstance(message, Prefill)]


def are_idle(gateway: RunningGateway, *epochs: bytes) -> bool:
    views = gateway.server.table.views()
    return not any(view.load_sequences for view in views if view.epoch in epochs)


async def announced(gateway: RunningGateway, worker: FakeWorker, *messages: CachedPlaces, places: int | None) -> None:
    await worker.announce_places(*messages)
    await until(lambda: gateway.server.table.cached.places(worker.epoch) == places)


async def test_a_session_goes_to_the_workers_that_announce_its_context(gateway: RunningGateway) -> None:
    prefill = [worker for worker in gateway.pool.workers if worker.role is Role.PREFILL][1]
    decode = gateway.pool.decode[2]
    await announced(gateway, prefill, whole(HEAD), places=12)
    await announced(gateway, decode, whole(HEAD[:160]), places=10)
    prefill.cached_tokens = 100
    homes = (prefill.epoch, decode.epoch)
    for turn in range(4):
        await complete(gateway, [*HEAD, *[30 + turn] * 40])
        await until(lambda: prefill.is_idle and decode.is_idle)
        await prefill.report()
        await decode.report()
        await until(lambda: are_idle(gateway, *homes))
    assert len(prefills(prefill)) == 4
    assert len([message for message in decode.received if isinstance(message, Reserve)]) == 4
    assert {message.missing_tokens for message in prefills(prefill)} == {240 - 192}
    use = gateway.server.metrics.cache_use
    assert (use.cached_tokens, use.cacheable_tokens) == (4 * 100, 4 * 192)


async def test_a_restarted_worker_is_forgotten_with_its_link(gateway: RunningGateway) -> None:
    worker = next(worker for worker in gateway.pool.workers if worker.role is Role.PREFILL)
    await announced(gateway, worker, whole(HEAD), places=12)
    old = worker.epoch
    await worker.restart()
    gateway.pool.announce()
    await until(lambda: gateway.server.table.get(worker.epoch) is not None)
    book = gateway.server.table.cached
    assert (book.places(old), book.places(worker.epoch)) == (None, None)
    assert book.longest(packed_places(pack_ids(HEAD), "", 16)) == {}


async def test_nonsense_about_a_cache_costs_neither_the_link_nor_an_answer(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    liar = next(worker for worker in gateway.pool.workers if worker.role is Role.PREFILL)
    sound = await complete(gateway, HEAD)
    await announced(gateway, liar, whole(HEAD), places=12)
    nonsense = [whole(HEAD, 5), CachedPlaces(4, b"x" * 64, b""), CachedPlaces(1 << 40, b"y" * 7, b"")] * 20
    await announced(gateway, liar, *nonsense, places=None)
    assert "what a worker says of its cache is not believed" in caplog.text
    assert caplog.text.count("generation 4 came after 5") == 1
    assert gateway.server.table.get(liar.epoch) is not None
    for _ in range(3):
        assert (await complete(gateway, HEAD))["choices"][0]["text"] == sound["choices"][0]["text"]
    assert gateway.server.table.get(liar.epoch) is not None


async def test_a_gateway_that_missed_a_change_asks_the_worker(gateway: RunningGateway) -> None:
    worker = gateway.pool.decode[0]
    await announced(gateway, worker, whole(HEAD, 1), places=12)
    await announced(gateway, worker, CachedPlaces(3, b"", b""), places=None)
    await until(lambda: worker.asked_for_places == 1)
    await announced(gateway, worker, whole(HEAD, 3), places=12)
