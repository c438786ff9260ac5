"""A configuration file that changes under a running gateway: applied when right, refused whole when wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import aiohttp

from baton_gateway.server import GatewayServer
from baton_gateway.settings import config_hash, parse_settings
from baton_testing.gateway.gateway_process import until
from baton_wire.keys import write_new_key
from baton_wire.listening.sockets import bind


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


async def _status(port: int) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        body = {"model": "m", "prompt": "x"}
        async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response:
            return response.status, (await response.json())["error"]["code"]


async def _waited(port: int) -> float:
    began = time.monotonic()
    assert (await _status(port))[0] == 503
    return time.monotonic() - began
