"""The memory of all requests: shared fairly, refused before more is read, and given back at every end."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.http_api.memory_budget import MemoryBudget
from baton_gateway.http_api.request_body import RequestBody
from baton_gateway.openai_api.answer_writers import CollectingWriter
from baton_gateway.openai_api.streaming_writer import StreamingWriter
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway, until
from baton_testing.gateway.http_client import COMPLETIONS, HttpClient

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "x"}]
MIB = 1 << 20


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400)), max_size=40))
def test_the_budget_is_never_exceeded_and_nobody_holds_more_than_is_free(steps: list[tuple[str, int]]) -> None:
    budget, held = MemoryBudget(1_000), dict.fromkeys("abc", 0)
    for holder, size in steps:
        if budget.take(holder, size):
            held[holder] += size
            assert held[holder] <= 1_000 - sum(held.values())
        else:
            assert held[holder] + size > 1_000 - sum(held.values()) - size
        assert budget.used_bytes == sum(held.values()) <= 1_000
    for holder, size in held.items():
        budget.give_back(holder, size)
    assert budget.used_bytes == 0
    assert budget.take("a", 500)


def test_one_alone_gets_half_and_the_next_still_gets_some() -> None:
    budget = MemoryBudget(900)
    assert budget.take("a", 450)
    assert not budget.take("a", 1)
    assert budget.take("b", 225)
    assert budget.take("c", 112)
    assert not budget.take("a", 1)


async def begun(
    gateway: RunningGateway, sent: int, address: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request of whose body of 1,000,000 bytes so many are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, local_addr=(address, 0))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    writer.write(head.encode() + b" " * sent)
    await writer.drain()
    return reader, writer


@pytest.fixture
async def small(pool: FakePool) -> AsyncIterator[RunningGateway]:
    async with running_gateway(pool, "--max-request-memory-mib=16") as gateway:
        yield gateway


async def test_bodies_beyond_the_budget_are_refused_before_they_are_read_on(small: RunningGateway) -> None:
    budget = small.server.budget
    open_bodies = [await begun(small, 900_000) for _ in range(10)]
    refused = 0
    for reader, _ in open_bodies:
        try:
            async with asyncio.timeout(0.3):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            continue
        refused += 1
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in head
        assert json.loads(await reader.readuntil(b"}}"))["error"]["code"] == "out_of_memory"
    assert refused == 1
    assert 8 * 900_000 < budget.used_bytes <= 8 * MIB
    other = await begun(small, 1_000_000, "127.0.0.2")
    async with asyncio.timeout(60):
        assert (await other[0].readline()).startswith(b"HTTP/1.1 400 "), "another address is still read"
    for _, writer in [*open_bodies, other]:
        writer.close()
    await until(lambda: budget.used_bytes == 0)


@pytest.mark.parametrize(
    "body",
    [
        b"{", b'{"model":"tiny"}', b'{"model":"none","messages":[{"role":"user","content":"x"}]}',
        json.dumps({"model": "tiny", "messages": USER}).encode(),
        json.dumps({"model": "tiny", "messages": USER, "stream": True}).encode(),
        b'{"model":"tiny","metadata":[' + b"[]," * 160_000 + b"1]}",
    ],
)  # fmt: skip
async def test_every_end_of_a_request_gives_back(
    gateway: RunningGateway, http: aiohttp.ClientSession, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.post(gateway.url(CHAT), data=body, headers=headers) as answer:
        await answer.read()
    await until(lambda: gateway.server.budget.used_bytes == 0)


async def test_a_request_holds_its_bytes_while_it_is_at_work(small: RunningGateway) -> None:
    small.pool.decode[0].hold = small.pool.prefill[0].hold = True
    prompt = [5] * 1_000
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 5}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", small.port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "
    writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
    await until(lambda: small.server.relay.num_live == 1)
    assert small.server.budget.used_bytes > len(body) + 64 * len(prompt)
    writer.close()
    await until(lambda: small.server.budget.used_bytes == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_ended_request_leaves_nothing_to_the_garbage_collector(client: HttpClient, stream: bool) -> None:
    async def ask() -> None:
        await (client.stream if stream else client.ask)(COMPLETIONS, max_tokens=2)
        await until(lambda: client.gateway.server.budget.used_bytes == 0)

    def count_objects() -> int:
        counted = (RequestBody, CollectingWriter, StreamingWriter)
        return sum(issubclass(type(value), counted) for value in gc.get_objects())  # `isinstance` asks lazy proxies

    gc.collect()
    gc.disable()
    try:
        before = count_objects()  # of other tests in this process
        for _ in range(5):
            await ask()
        assert count_objects() <= before + 1, "only the connection's last request may still be there"
    finally:
        gc.enable()


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(gateway: RunningGateway) -> None:
    body = json.dumps({"model": "tiny", "messages": USER, "max_tokens": 2}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    async with asyncio.timeout(60):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
