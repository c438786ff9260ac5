"""Workers that flip, as gateways see them: they have the role reported last, over unchanged links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.fake_worker import FakeWorker
from baton_testing.gateway.gateway_process import RunningGateway, answer, running_gateway, tokenizer, until
from baton_wire.messages.gateway_link import Prefill, Reserve
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import Address, Role

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
async def nobody(tmp_path: Path) -> AsyncIterator[FakePool]:
    """A pool without a worker; those that a test adds are stopped."""
    pool = FakePool(tmp_path, tokenizer(), answer)
    yield pool
    await pool.stop()


async def ask(gateway: RunningGateway) -> None:
    async with aiohttp.ClientSession() as http, http.post(gateway.url("/v1/chat/completions"), json=BODY) as got:
        assert got.status == 200


def linked(gateway: RunningGateway) -> list[FakeWorker]:
    return [worker for worker in gateway.pool.workers if role_of(gateway, worker) is not None]


def flip(gateway: RunningGateway, worker: FakeWorker, number: int, role: Role) -> None:
    gateway.server._flip(FlipOrder(worker.epoch, number, role))


def role_of(gateway: RunningGateway, worker: FakeWorker) -> Role | None:
    linked = gateway.server.table.get(worker.epoch)
    return None if linked is None else linked.role


async def test_a_worker_that_flips_is_what_it_said_last_wherever_it_was_found(nobody: FakePool) -> None:
    """And it takes the next requests in that role, over unchanged links."""
    pool = nobody
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    flexible = await pool.add(Role.DECODE, flips=True)
    async with running_gateway(pool) as gateway:
        table = gateway.server.table
        await until(lambda: len(linked(gateway)) == 3)
        link = next(iter(flexible._links))
        flip(gateway, flexible, 4, Role.PREFILL)
        await until(lambda: role_of(gateway, flexible) is Role.PREFILL)
        view = next(view for view in table.views() if view.epoch == flexible.epoch)
        assert (view.role, view.pair_address) == (Role.PREFILL, Address("127.0.0.1", 7_000))
        pool.decode[0].received.clear()
        await asyncio.gather(*(ask(gateway) for _ in range(8)))
        assert flexible.of_type(Prefill)
        assert not flexible.of_type(Reserve)
        pool.prefill.append(flexible)  # discovery follows
        pool.decode.remove(flexible)
        pool.announce()
        await asyncio.sleep(1.2)
        assert list(flexible._links) == [link], "it is neither dialled again nor let go"
        flip(gateway, flexible, 3, Role.DECODE)
        flip(gateway, pool.prefill[0], 5, Role.DECODE)
        await asyncio.sleep(0.1)
        assert role_of(gateway, flexible) is Role.PREFILL, "a late order is not even passed on"
        assert role_of(gateway, pool.prefill[0]) is Role.PREFILL, "nor any to a worker of one role"


async def test_a_flipped_worker_is_linked_anew_under_the_role_that_it_was_found_with_before(nobody: FakePool) -> None:
    pool = nobody
    await pool.add(Role.PREFILL)
    flexible = await pool.add(Role.DECODE, flips=True)
    await pool.add(Role.DECODE)
    flexible.role, flexible.flip = Role.PREFILL, 1
    async with running_gateway(pool) as gateway:
        await until(lambda: len(linked(gateway)) == 3)
        assert role_of(gateway, flexible) is Role.PREFILL
