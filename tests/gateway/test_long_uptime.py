"""A gateway that serves for weeks: tenants, workers, prompts and schemas come and go, and nothing stays.

Every container of the gateway's process is counted after batches of work. What may still grow is a cache with a bound.
"""

from __future__ import annotations

import contextlib
import json
from hashlib import sha256
from pathlib import Path

import aiohttp

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway, until
from baton_testing.held_sizes import held_sizes
from baton_wire.messages.values import Role

BOUNDED = {
    "SentPrompts._runs": "16,384 prompts, until a second after their first tokens",
    "SentPrompts._latest": "some places of each of these",
    "SentPrompts._settled": "the same prompts",
    "ContextReuse._contexts": "16,384 contexts",
    "ModelLoad._slot_s": "twice as many tenants as have requests, and one",
    "FormatCompiler._cache": "by bytes",
    "ParsedPartCache._parts": "by bytes",
    "AnswerLengths._ended": "a few for each length",
    "AnswerLengths._curves": "a few for each length",
    "Sketch.bins": "a few hundred bins",
    "LoadTelemetry._prompts": "a sample",
    "RecentSketch._pieces": "the pieces of a minute",
    "ModelLoad._sent": "tenants of the last ten seconds",
    "RetryBudgets._by_tenant": "1,024 tenants",
    "RecordRing._kept": "10,000 records, and 32 MiB",
    "RecordRing._addresses": "MAX_ADDRESSES workers",
    "Interruptions._latest": "MAX_KEPT of this process and its workers",
    "LoadSeries._slots": "MAX_SLOTS of the last hour",
}
"""Containers that may grow from batch to batch, and their bounds."""


def write_keys(path: Path, batch: int) -> None:
    digests = [(f"tenant-{batch}-{number}", sha256(f"key-{batch}-{number}".encode())) for number in range(4)]
    tenants = [{"name": name, "key_sha256": [digest.hexdigest()]} for name, digest in digests]
    path.write_text(json.dumps({"tenants": tenants}))


async def replace_worker(gateway: RunningGateway) -> None:
    pool = gateway.pool
    former = pool.decode.pop(0)
    await pool.add(Role.DECODE)
    await former.stop()
    epoch = pool.decode[0].epoch
    await until(lambda: {worker.hello.epoch for worker in gateway.server.table.all()} == {pool.prefill[0].epoch, epoch})


async def serve_batch(gateway: RunningGateway, keys: Path, batch: int) -> None:
    write_keys(keys, batch)
    gateway.server.tenants.refresh()
    await replace_worker(gateway)
    async with aiohttp.ClientSession() as http:
        for number in range(12):
            schema = {"type": "object", "properties": {f"f{batch}_{number}": {"type": "string"}}}
            shape = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
            body = {
                "model": "tiny",
                "messages": [{"role": "user", "content": f"batch {batch}, question {number} " * 30}],
                "stream": number % 2 == 0,
                "cache_salt": f"salt {batch} {number}",
                "max_tokens": 3,
                **(shape if number % 4 == 3 else {}),
            }
            headers = {"Authorization": f"Bearer key-{batch}-{number % 4}"}
            async with http.post(gateway.url("/v1/chat/completions"), json=body, headers=headers) as answer:
                await answer.read()
                assert answer.status == 200
        async with http.post(gateway.url("/v1/completions"), json={"model": "tiny", "prompt": "x"}) as answer:
            assert answer.status == 401
    await until(lambda: gateway.server._http is not None and gateway.server._http.num_connections == 0)


async def settled_growth(gateway: RunningGateway, before: dict[str, int]) -> dict[str, int]:
    """Containers that hold more than before, once closed links have ended; they end in tasks of their own."""
    grown: dict[str, int] = {}

    def has_settled() -> bool:
        nonlocal grown
        sizes = held_sizes(gateway.server, closed=BOUNDED)
        grown = {label: size for label, size in sizes.items() if size > before[label]}
        return grown.keys() <= BOUNDED.keys()

    with contextlib.suppress(TimeoutError):  # the caller says what has not ended
        await until(has_settled, 10.0)
    return grown


async def test_nothing_stays_of_tenants_prompts_and_connections_that_came_and_went(
    pool: FakePool, tmp_path: Path
) -> None:
    keys = tmp_path / "tenants.json"
    write_keys(keys, 0)
    async with running_gateway(pool, f"--api-keys={keys}") as gateway:
        await serve_batch(gateway, keys, 1)
        before = held_sizes(gateway.server, closed=BOUNDED)
        for batch in (2, 3):
            await serve_batch(gateway, keys, batch)
        grown = await settled_growth(gateway, before)
    assert grown.keys() <= BOUNDED.keys(), grown
    assert before["ContextReuse._contexts"], "the caches are among what is counted"
