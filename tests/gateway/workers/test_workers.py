"""Links to workers: who is let in, who is suspected, who is given up; and what clients see of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from baton_gateway.server import GatewayServer
from baton_gateway.settings import parse_settings
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.fake_worker import FakeWorker
from baton_testing.gateway.gateway_process import (
    ANSWER,
    RunningGateway,
    answer,
    ids_of,
    running_gateway,
    tokenizer,
    until,
)
from baton_testing.gateway.made_tokenizers import sentencepiece
from baton_wire.deployment_history import DeploymentHistory, encode_history
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.listening.sockets import bind
from baton_wire.messages.gateway_link import Hello
from baton_wire.messages.values import POOL_ROLES, Role

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
QUICK = ("--suspect-s=1", "--dead-s=2.5")
SUSPICIOUS = ("--suspect-s=1", "--dead-s=60")
"""Fake workers beat five times a second: who is late on a busy machine is not silent."""


async def status(gateway: RunningGateway, path: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(gateway.url(path)) as got:
        return got.status


async def ask(gateway: RunningGateway, **fields: Any) -> tuple[int, dict[str, Any], Any]:
    async with aiohttp.ClientSession() as http, http.post(gateway.url(CHAT), json=BODY | fields) as got:
        return got.status, await got.json(), got.headers


def linked(gateway: RunningGateway) -> list[FakeWorker]:
    epochs = {worker.hello.epoch for worker in gateway.server.table.all()}
    return [worker for worker in gateway.pool.workers if worker.epoch in epochs]


async def test_a_gateway_that_has_just_started_lets_requests_wait_for_its_links(tmp_path: Path) -> None:
    """Found by kill -9 of a gateway process: its successor answered clients that there were no workers."""
    pool = FakePool(tmp_path, tokenizer(), answer)
    for role in POOL_ROLES:
        await pool.add(role)
    listening = bind("127.0.0.1", 0)
    listening.listen()
    server = GatewayServer(parse_settings([*pool.flags, "--listen=127.0.0.1:0", "--drain-s=0"]))
    gateway = RunningGateway(server, pool, listening.getsockname()[1])
    try:
        asking = asyncio.create_task(ask(gateway))  # waits in the socket's backlog, as after a restart
        await asyncio.sleep(0.05)
        await server.start(listening)
        assert (await asking)[0] == 200
    finally:
        await server.stop()
        await pool.stop()


async def test_a_gateway_that_lost_all_its_links_at_once_dials_again_before_it_says_that_nobody_is_there(
    pool: FakePool,
) -> None:
    """Found by SIGSTOP of a gateway process: when it woke up, it answered clients that there were no workers."""
    async with running_gateway(pool) as gateway:
        for worker in pool.workers:
            worker.cut()
        await until(lambda: not linked(gateway))
        assert (await ask(gateway))[0] == 200


async def test_before_the_first_pair_is_ready_a_refusal_says_that_workers_start(tmp_path: Path) -> None:
    """Found: while workers start, clients read that no fitting pair is available, as after a loss of workers."""
    pool = FakePool(tmp_path, tokenizer(), answer)
    pool.announce()
    async with running_gateway(pool, "--prefill-unavailable=fail", "--park-s=0.3") as gateway:
        code, content, headers = await ask(gateway)
        assert (code, content["error"]["code"]) == (503, "no_routable_workers")
        assert content["error"]["message"] == "The workers are still starting (0 ready); try again."
        assert headers["Retry-After"] == "5"
        gateway.server._take_history(encode_history(DeploymentHistory(wanted={"prefill": 1, "decode": 2})))
        await pool.add(Role.PREFILL)
        await gateway.until_linked(1)
        assert "still starting (1 of 3 ready)" in (await ask(gateway))[1]["error"]["message"]
        decode = await pool.add(Role.DECODE)
        await gateway.until_linked(2)
        assert (await ask(gateway))[0] == 200
        await decode.report(draining=True)
        await until(lambda: gateway.server.table.num_usable() == 1)
        code, content, _ = await ask(gateway)
        assert (code, content["error"]["code"]) == (503, "no_routable_workers")
        assert "No fitting pair" in content["error"]["message"], "it is lost, not starting"
    await pool.stop()


async def test_health_says_alive_ready_and_routable_apart(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, tokenizer(), answer)
    pool.announce()
    async with running_gateway(pool, "--prefill-unavailable=fail", "--park-s=0.3") as gateway:
        paths = ("/health/live", "/health/ready", "/health/routable")
        assert [await status(gateway, path) for path in paths] == [200, 200, 503]
        code, content, headers = await ask(gateway)
        assert (code, content["error"]["code"]) == (503, "no_routable_workers")
        assert int(headers["Retry-After"]) >= 1
        await pool.add(Role.PREFILL)
        await gateway.until_linked(1)
        assert await status(gateway, "/health/routable") == 503
        await pool.add(Role.DECODE)
        await gateway.until_linked(2)
        assert await status(gateway, "/health/routable") == 200
        assert (await ask(gateway))[0] == 200
    await pool.stop()


async def test_models_are_those_of_the_linked_workers(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async with http.get(gateway.url("/v1/models")) as got:
        models = await got.json()
    assert [model["id"] for model in models["data"]] == ["tiny"]
    async with http.get(gateway.url("/v1/models/tiny")) as got:
        assert (await got.json()) == models["data"][0]
        assert set(models["data"][0]) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}


async def test_without_a_prefill_worker_decode_workers_serve_unless_told_otherwise(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, tokenizer(), answer)
    await pool.add(Role.DECODE)
    async with running_gateway(pool) as gateway:
        assert (await ask(gateway))[0] == 200
    async with running_gateway(pool, "--prefill-unavailable=fail", "--park-s=0") as gateway:
        assert (await ask(gateway))[0] == 503
    await pool.stop()


async def test_the_last_decode_worker_may_restart_while_requests_wait(pool: FakePool) -> None:
    async with running_gateway(pool) as gateway:
        for worker in pool.decode:
            await worker.stop()
        await until(lambda: not [worker for worker in linked(gateway) if worker.role is Role.DECODE])
        asking = [asyncio.create_task(ask(gateway)) for _ in range(3)]
        await until(lambda: gateway.server.relay.num_parked == 3)
        for worker in pool.decode:
            await worker.restart()
        assert [(await answer)[0] for answer in asking] == [200, 200, 200]


async def test_what_is_parked_is_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, tokenizer(), answer)
    pool.announce()
    async with running_gateway(pool, "--max-queued=2") as gateway:
        first = [asyncio.create_task(ask(gateway)) for _ in range(2)]
        await until(lambda: gateway.server.relay.num_parked == 2)
        code, content, headers = await ask(gateway)
        assert (code, content["error"]["code"]) == (503, "no_routable_workers")
        assert int(headers["Retry-After"]) >= 1
        for asking in first:
            asking.cancel()
        await until(lambda: gateway.server.relay.num_live == 0)
    async with running_gateway(pool) as gateway:
        relay = gateway.server.relay
        relay.reconfigure(replace(relay._rules, max_parked_bytes=9))
        large = [{"role": "user", "content": "x" * 99}]
        first = [asyncio.create_task(ask(gateway, messages=large))]
        await until(lambda: relay.num_parked == 1)
        assert (await ask(gateway))[0] == 503, "one may always wait, a second one has no room"
        first[0].cancel()
        await until(lambda: relay.num_live == 0)
    await pool.stop()


async def test_a_parked_request_is_served_when_a_pair_appears(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, tokenizer(), answer)
    await pool.add(Role.PREFILL)
    async with running_gateway(pool) as gateway:
        asking = asyncio.create_task(ask(gateway))
        await until(lambda: gateway.server.relay.num_live == 1)
        await pool.add(Role.DECODE)
        assert (await asking)[0] == 200
    await pool.stop()


async def test_a_draining_worker_gets_no_new_request_and_finishes_its_old_ones(gateway: RunningGateway) -> None:
    old = gateway.pool.decode[0]
    old.step_s = 0.02
    asking = asyncio.create_task(ask(gateway))
    await until(lambda: bool(old.running))
    new = await gateway.pool.add(Role.DECODE)
    await gateway.until_linked(3)
    await old.report(draining=True)
    await until(lambda: any(view.is_draining for view in gateway.server.table.views()))
    for _ in range(3):
        assert (await ask(gateway, max_tokens=3))[0] == 200
    assert len([message for message in new.received if type(message).__name__ == "Reserve"]) == 3
    assert (await asking)[1]["choices"][0]["message"]["content"] == ANSWER


async def test_a_silent_worker_is_suspected_then_given_up_and_its_requests_go_on_elsewhere(pool: FakePool) -> None:
    async with running_gateway(pool, *QUICK) as gateway:
        silent = pool.decode[0]
        for worker in pool.workers:
            worker.script = lambda request: ids_of("word " * 40)
            worker.step_s = 0.01
        asking = asyncio.create_task(ask(gateway, max_tokens=40))
        await until(lambda: any(sequence.index > 3 for sequence in silent.running.values()))
        silent.silent = True
        other = await pool.add(Role.DECODE)
        other.script = silent.script
        await until(lambda: any(view.is_suspect for view in gateway.server.table.views()))
        await until(lambda: silent not in linked(gateway))
        code, content, _ = await asking
        assert code == 200
        text = content["choices"][0]["message"]["content"]
        assert text == tokenizer().tokenizer.decode(ids_of("word " * 40)[:40])


async def test_a_worker_that_was_suspected_and_speaks_again_is_routable_again(pool: FakePool) -> None:
    async with running_gateway(pool, *SUSPICIOUS) as gateway:
        pool.decode[0].silent = True
        await until(lambda: any(view.is_suspect for view in gateway.server.table.views()))
        assert await status(gateway, "/health/routable") == 503
        pool.decode[0].silent = False
        await until(lambda: not any(view.is_suspect for view in gateway.server.table.views()))
        assert (await ask(gateway))[0] == 200


async def test_a_request_waits_while_perhaps_it_was_the_gateway_that_stood_still(pool: FakePool) -> None:
    """Found by SIGSTOP and SIGCONT of a gateway process: all its workers were suspect for a moment, and it said 503."""
    async with running_gateway(pool, *SUSPICIOUS) as gateway:
        for worker in pool.workers:
            worker.silent = True
        await until(lambda: all(view.is_suspect for view in gateway.server.table.views()))
        asking = asyncio.create_task(ask(gateway))
        await asyncio.sleep(0.1)
        assert not asking.done()
        for worker in pool.workers:
            worker.silent = False
        assert (await asking)[0] == 200


async def test_discovery_that_fails_drops_no_live_link(gateway: RunningGateway, pool: FakePool) -> None:
    for name in ("prefill.json", "decode.json"):
        (pool.root / name).write_text("{")
    await asyncio.sleep(1.2)
    (pool.root / "prefill.json").unlink()
    (pool.root / "decode.json").write_text("[]")
    await asyncio.sleep(1.2)
    assert (await ask(gateway))[0] == 200


async def test_a_worker_with_another_key_is_not_linked(gateway: RunningGateway, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_new_key(tmp_path / "other", "k1")
    pool = gateway.pool
    stranger = FakeWorker(Role.DECODE, tokenizer(), KeyDirectory(tmp_path / "other"), answer)
    await stranger.start()
    pool.decode.append(stranger)
    pool.announce()
    with pytest.raises(TimeoutError):
        await until(lambda: stranger in linked(gateway), 2.0)
    assert (await ask(gateway))[0] == 200


async def test_keys_rotate_without_a_restart(gateway: RunningGateway) -> None:
    pool = gateway.pool
    write_new_key(pool.root / "keys", "k2")
    (pool.root / "keys" / "k1").unlink()
    assert (await ask(gateway))[0] == 200
    await pool.prefill[0].restart()
    await until(lambda: len(linked(gateway)) == 2)
    assert (await ask(gateway))[0] == 200


def _of_another_role(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, role=Role.PREFILL, pair_port=None)


def _of_another_epoch(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, epoch=b"x" * 16)


def _with_another_bundle(hello: Hello) -> Hello:
    fingerprint = msgspec.structs.replace(hello.fingerprint, tokenizer="0" * 64)
    return msgspec.structs.replace(hello, bundle_hash="0" * 64, fingerprint=fingerprint)


def _with_an_unequal_bundle(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, fingerprint=msgspec.structs.replace(hello.fingerprint, tokenizer="0" * 64))


def _without_pair_port(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, pair_port=None)


def _with_a_smaller_bundle(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, bundle_bytes=10)


@pytest.mark.parametrize(
    "change",
    [
        _of_another_role,
        _of_another_epoch,
        _with_another_bundle,
        _with_an_unequal_bundle,
        _without_pair_port,
        _with_a_smaller_bundle,
    ],
)
async def test_a_worker_that_says_what_cannot_be_is_not_linked(
    gateway: RunningGateway, change: Callable[[Hello], Hello]
) -> None:
    liar = await _lying(gateway.pool, change)
    await until(lambda: liar.greeted >= 2)
    assert liar not in linked(gateway)
    assert (await ask(gateway))[0] == 200


class _Liar(FakeWorker):
    greeted = 0
    change: Callable[[Hello], Hello]

    def hello(self) -> Hello:
        self.greeted += 1
        return self.change(super().hello())


async def _lying(pool: FakePool, change: Callable[[Hello], Hello]) -> _Liar:
    liar = _Liar(Role.DECODE, tokenizer(), pool.keys, answer)
    liar.change = change
    await liar.start()
    pool.decode.append(liar)
    pool.announce()
    return liar


async def test_unfitting_workers_never_pair_and_each_revision_has_its_own_tokenizer(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, tokenizer(), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE, model_hash="cd" * 32)
    async with running_gateway(pool, "--prefill-unavailable=fail", "--park-s=0") as gateway:
        assert (await ask(gateway))[0] == 503
        other = sentencepiece()
        for role in POOL_ROLES:
            worker = await pool.add(role, model_hash="ef" * 32)
            worker.tokenizer = other
            worker.script = lambda request: list(other.tokenizer.encode("the fox", add_special_tokens=False).ids)
        await gateway.until_linked(4)
        _, content, _ = await ask(gateway)
        assert content["choices"][0]["message"]["content"] == "the fox"
        assert content["system_fingerprint"] == "fp_" + "ef" * 6
    await pool.stop()


async def test_the_state_page_names_workers_and_latencies(gateway: RunningGateway) -> None:
    assert (await ask(gateway))[0] == 200
    from baton_gateway.reporting.state_page import state_body

    state = json.loads(state_body([gateway.server.report()]))
    roles = {worker["role"]: worker for worker in state["workers"]}
    assert set(roles) == {"prefill", "decode"}
    assert roles["decode"]["epoch"] == gateway.pool.decode[0].epoch.hex()
    assert roles["decode"]["state"] == "live"
    assert roles["decode"]["blocks_free"] == 1_024
    assert state["latency"]["ttft"]["sketch"]["count"] == 1
    assert state["latency"]["tpot"]["p50_s"] > 0
    assert state["latency"]["ttft"]["last_minute"]["sketch"]["count"] == 1
    assert state["latency"]["tpot"]["last_minute"]["p50_s"] > 0
