"""Clients that hang up, read slowly, come without a key or too many at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.openai_api import streaming_writer as streaming_sink
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, ids_of, running_gateway, until
from baton_wire.messages.gateway_link import Cancel, Prefill, Reserve

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


def is_idle(gateway: RunningGateway) -> bool:
    return gateway.server.relay.num_live == 0 and all(worker.is_idle for worker in gateway.pool.workers)


async def send(gateway: RunningGateway, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection with a request on it, that the test can cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=4_096)
    body = json.dumps(BODY | fields).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("moment", ["reserved", "first token", "decoding"])
async def test_a_client_that_hangs_up_frees_both_workers(gateway: RunningGateway, moment: str, stream: bool) -> None:
    prefill, decode = gateway.pool.workers
    decode.script = prefill.script = lambda request: ids_of("word " * 300)
    decode.step_s = 0.01
    prefill.hold = moment == "reserved"
    decode.hold = moment == "first token"
    _, writer = await send(gateway, stream=stream)
    if moment == "reserved":
        await until(lambda: bool(decode.reserved) and bool(prefill.of_type(Prefill)))
    else:
        least = 2 if moment == "decoding" else 0
        await until(lambda: any(sequence.index >= least for sequence in decode.running.values()))
    writer.transport.abort()
    await until(lambda: is_idle(gateway))
    cancelled = [message for worker in (prefill, decode) for message in worker.of_type(Cancel)]
    assert len(cancelled) == (1 if moment == "decoding" else 2) or moment == "first token"
    assert cancelled


@pytest.mark.parametrize("ending", ["abort", "close"])
async def test_a_client_that_hangs_up_in_its_body_is_no_failure(
    gateway: RunningGateway, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 400\r\n\r\n"
    writer.write(head.encode() + b'{"model"')
    await asyncio.sleep(0.05)
    getattr(writer.transport, ending)()
    await asyncio.sleep(0.1)
    assert not [record for record in caplog.records if record.exc_info]
    assert (await _status(gateway, http))[0] == 200
    writer.close()


async def test_many_clients_that_hang_up_at_once_leave_nothing(gateway: RunningGateway) -> None:
    for worker in gateway.pool.workers:
        worker.script = lambda request: ids_of("word " * 300)
    gateway.pool.decode[0].step_s = 0.05
    writers = [(await send(gateway, stream=True))[1] for _ in range(100)]
    await until(lambda: len(gateway.pool.decode[0].of_type(Reserve)) == 100)
    for writer in writers:
        writer.transport.abort()
    await until(lambda: is_idle(gateway))
    assert len(gateway.pool.decode[0].of_type(Cancel)) == 100, "none ran to its end"


async def test_a_pipelined_second_request_waits_for_the_first(gateway: RunningGateway) -> None:
    reader, writer = await send(gateway, max_tokens=2)
    body = json.dumps(BODY | {"max_tokens": 1}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answers = await reader.read()
    writer.close()
    assert answers.count(b"HTTP/1.1 200") == 2
    assert b'"completion_tokens":1' in answers


async def test_http_1_0_clients_get_their_stream_without_chunks(gateway: RunningGateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = json.dumps(BODY | {"stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.0\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    async with asyncio.timeout(60):
        text = (await reader.read()).decode()
    writer.close()
    assert "chunked" not in text
    assert text.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ANSWER


async def test_a_client_that_stops_reading_is_cancelled_and_its_memory_bounded(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(streaming_sink, "STALL_S", 0.5)
    decode = gateway.pool.decode[0]
    for worker in gateway.pool.workers:
        worker.script = lambda request: ids_of("word " * 2_000)
        worker.max_context_tokens = 2_048
    decode.tokens_per_step = 8
    reader, writer = await send(gateway, stream=True, n=16, max_tokens=2_000, logprobs=True, top_logprobs=20)
    await until(lambda: bool(decode.running))
    # Three quarters of the answer are more than the sockets hold. The rest waits, so that a slow gateway is not outrun.
    await until(lambda: not decode.running or decode.state().steps > 185, 120.0)
    decode.hold = True
    await until(lambda: is_idle(gateway), 120.0)
    assert decode.of_type(Cancel), "it did not run to its end"
    records = gateway.server.relay.records
    await until(lambda: len(records) == 1)
    [record] = [kept.record() for kept in records.latest()]
    assert (record.outcome, record.code) == ("cancelled", "slow_client")
    [line] = [json.loads(entry.message) for entry in caplog.records if entry.name == "baton.gateway.access"]
    assert (line["status"], line["code"]) == (499, "slow_client")
    writer.transport.abort()
    del reader


async def test_a_client_that_reads_slowly_still_gets_everything(gateway: RunningGateway) -> None:
    for worker in gateway.pool.workers:
        worker.script = lambda request: ids_of("word " * 1_000)
    gateway.pool.decode[0].tokens_per_step = 2
    reader, writer = await send(gateway, stream=True, max_tokens=900, n=2)
    await until(lambda: gateway.server.relay.num_live == 0)
    await reader.readuntil(b"\r\n\r\n")
    text = b""
    while b"[DONE]" not in text:
        text += await reader.read(1_000)
    writer.close()
    assert text.count(b'"finish_reason":"length"') == 2


# Keys -----------------------------------------------------------------------------------------------------------------


def key_file(folder: Path, **tenants: str) -> str:
    entries = [
        {"name": name, "key_sha256": [hashlib.sha256(key.encode()).hexdigest()]} for name, key in tenants.items()
    ]
    path = folder / "tenants.json"
    path.write_text(json.dumps({"tenants": entries}))
    return f"--api-keys={path}"


async def test_every_path_but_probes_and_metrics_needs_a_known_key(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, key_file(tmp_path, a="secret-a", b="secret-b")) as gateway:
        statuses = {}
        for header in (None, "Bearer wrong", "Basic secret-a", "Bearer secret-a", "bearer secret-b", "Bearer ", "ééé"):
            headers = {} if header is None else {"Authorization": header}
            async with http.post(gateway.url(CHAT), json=BODY, headers=headers) as got:
                statuses[header] = (got.status, (await got.json()).get("error", {}).get("code"))
        refused = (401, "invalid_api_key")
        assert statuses == {
            None: refused, "Bearer wrong": refused, "Basic secret-a": refused, "Bearer ": refused, "ééé": refused,
            "Bearer secret-a": (200, None), "bearer secret-b": (200, None),
        }  # fmt: skip
        for path, status in [("/v1/models", 401), ("/health/live", 200), ("/health/ready", 200), ("/metrics", 200)]:
            async with http.get(gateway.url(path)) as got:
                assert got.status == status, path


async def test_keys_change_with_their_file_and_a_broken_file_changes_nothing(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, key_file(tmp_path, a="old")) as gateway:

        async def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            async with http.get(gateway.url("/v1/models"), headers=headers) as got:
                return got.status

        assert (await status("old"), await status("new")) == (200, 401)
        (tmp_path / "tenants.json").write_text("{")
        await asyncio.sleep(1.1)
        assert await status("old") == 200
        key_file(tmp_path, a="new")
        async with asyncio.timeout(60):
            while await status("new") != 200:  # noqa: ASYNC110 - the gateway looks at the file once in a while
                await asyncio.sleep(0.05)
        assert await status("old") == 401


async def test_tenants_and_salts_have_prefix_caches_of_their_own(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, key_file(tmp_path, a="ka", b="kb")) as gateway:
        for key, salt in [("ka", ""), ("ka", ""), ("ka", "x"), ("kb", ""), ("kb", "x")]:
            body = BODY | {"cache_salt": salt, "max_tokens": 1}
            async with http.post(gateway.url(CHAT), json=body, headers={"Authorization": f"Bearer {key}"}) as got:
                assert got.status == 200
    salts = [message.salt for message in pool.prefill[0].received if isinstance(message, Prefill)]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 4
    assert all(len(salt) <= 128 for salt in salts)


async def test_a_single_open_tenant_shares_its_cache(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async with http.post(gateway.url(CHAT), json=BODY | {"max_tokens": 1}) as got:
        assert got.status == 200
    message = gateway.pool.prefill[0].of_type(Prefill)[0]
    assert isinstance(message, Prefill)
    assert message.salt == ""


# Overload -------------------------------------------------------------------------------------------------------------


async def test_requests_beyond_the_limit_wait_and_beyond_the_queue_are_refused(
    pool: FakePool, http: aiohttp.ClientSession
) -> None:
    pool.prefill[0].hold = True
    async with running_gateway(pool, "--max-running=1", "--max-queued=1") as gateway:
        first = asyncio.create_task(_status(gateway, http))
        await until(lambda: bool(pool.decode[0].reserved))
        second = asyncio.create_task(_status(gateway, http))
        await until(lambda: gateway.server.relay.num_live == 2)
        status, headers = await _status(gateway, http)
        assert status == 429
        assert int(headers["Retry-After"]) >= 1
        pool.prefill[0].hold = False
        first.cancel()
        assert (await second)[0] == 200


async def test_a_request_that_waits_too_long_for_its_turn_is_told(pool: FakePool, http: aiohttp.ClientSession) -> None:
    pool.prefill[0].hold = True
    async with running_gateway(pool, "--max-running=1", "--max-queue-s=0.2") as gateway:
        first = asyncio.create_task(_status(gateway, http))
        await until(lambda: bool(pool.decode[0].reserved))
        status, headers = await _status(gateway, http)
        assert status == 429, "full is not an outage"
        assert "Retry-After" in headers
        first.cancel()
        await until(lambda: is_idle(gateway))


async def _status(gateway: RunningGateway, http: aiohttp.ClientSession) -> tuple[int, Any]:
    async with http.post(gateway.url(CHAT), json=BODY) as got:
        await got.read()
        return got.status, got.headers


async def test_a_body_that_comes_too_slowly_is_given_up(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baton_gateway.http_api import request_body

    monkeypatch.setattr(request_body, "BODY_IDLE_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    writer.write(head.encode() + b"{")
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        await reader.read()
    writer.close()


async def test_a_connection_that_sends_no_whole_head_is_closed(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baton_wire.listening import bounded_server

    monkeypatch.setattr(bounded_server, "HEAD_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-Slow: ")
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
