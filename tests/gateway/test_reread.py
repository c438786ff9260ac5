"""A configuration file that changes under a running gateway: applied when right, refused whole when wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import aiohttp

from baton_gateway.server import GatewayServer
from baton_gateway.settings import config_hash, parse_settings
from baton_gateway.tenancy.tenant_meters import Charge, Cost
from baton_testing.gateway.gateway_process import until
from baton_wire.keys import write_new_key
from baton_wire.listening.sockets import bind
from baton_wire.messages.operator_link import LimitOrder
from baton_wire.tenant_table import TenantLimits, TenantRow, TenantShard, encode_shard


async def test_a_changed_file_is_applied_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    write_new_key(keys, "k")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"park_s": 0, "max_queued": 5}))
    discovery = f"file:{tmp_path / 'none.json'}"
    argv = [
        f"--keys={keys}",
        f"--config={config}",
        f"--prefill-discovery={discovery}",
        f"--decode-discovery={discovery}",
        "--drain-s=0",
    ]
    settings = parse_settings(argv)
    server = GatewayServer(settings, lambda: parse_settings(argv))
    listening = bind("127.0.0.1", 0)
    listening.listen()
    await server.start(listening)
    port = listening.getsockname()[1]
    try:
        assert await _status(port) == (503, "no_routable_workers"), "no request waits while park_s is 0"
        config.write_text(json.dumps({"park_s": 0.2, "max_queued": 5}))
        wanted = config_hash(parse_settings(argv))
        await until(lambda: server.applied == wanted)
        loop_s = await _waited(port)
        assert loop_s >= 0.2, "a request is parked now"
        config.write_text(json.dumps({"park_s": -1}))
        await until(lambda: server.complaint != "")
        assert "park-s" in server.complaint
        assert server.applied == wanted
    finally:
        await server.stop()


async def test_a_changed_file_leaves_the_parts_of_limits_that_the_operator_gave(tmp_path: Path) -> None:
    keys, config, tenants = tmp_path / "keys", tmp_path / "config.json", tmp_path / "tenants"
    for folder in (keys, tenants):
        folder.mkdir()
    write_new_key(keys, "k")
    limits = TenantLimits(requests_per_minute=64, max_concurrent=64)
    shard = TenantShard(0, 1, (TenantRow("a", limits=limits), TenantRow("b", limits=limits)))
    (tenants / "tenants-0.json").write_bytes(encode_shard(shard))
    config.write_text(json.dumps({"replicas": 2}))
    discovery = f"file:{tmp_path / 'none.json'}"
    argv = [
        f"--keys={keys}",
        f"--config={config}",
        f"--prefill-discovery={discovery}",
        f"--decode-discovery={discovery}",
        f"--tenants={tenants}",
        "--drain-s=0",
    ]
    server = GatewayServer(parse_settings(argv), lambda: parse_settings(argv))
    listening = bind("127.0.0.1", 0)
    listening.listen()
    await server.start(listening)

    async def limits_after(name: str, **fields: int) -> tuple[int | None, int]:
        config.write_text(json.dumps(fields))
        wanted = config_hash(parse_settings(argv))
        await until(lambda: server.applied == wanted)
        tenant = server.tenants.named(name)
        assert tenant is not None
        outcomes = [server.limits.meters.charge(tenant, Cost(1, 0, 0), 0.0) for _ in range(100)]
        return tenant.max_running, sum(isinstance(outcome, Charge) for outcome in outcomes)

    try:
        assert await limits_after("a", replicas=4, max_queued=5) == (16, 16), "no operator has divided limits yet"
        server._take_shares(LimitOrder(1, 8, ()))
        assert await limits_after("b", replicas=2, max_queued=6) == (8, 8)
    finally:
        await server.stop()


async def _status(port: int) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        body = {"model": "m", "prompt": "x"}
        async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response:
            return response.status, (await response.json())["error"]["code"]


async def _waited(port: int) -> float:
    began = time.monotonic()
    assert (await _status(port))[0] == 503
    return time.monotonic() - began
