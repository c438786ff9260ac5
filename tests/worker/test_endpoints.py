"""A worker's HTTP port: what it answers, and that half-sent requests do not stay."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from baton_wire.listening import bounded_server
from baton_worker.config import ListenAddress
from baton_worker.errors import ConfigError
from baton_worker.serving import process
from baton_worker.serving.endpoints import Endpoints


class NoLinks:
    async def accept(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=426)


def endpoints(is_ready: bool = True) -> Endpoints:
    def nothing() -> Any:
        raise AssertionError("not asked here")

    return Endpoints(cast(Any, NoLinks()), cast(Any, None), nothing, nothing, lambda: is_ready)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health/ready", 200), ("GET", "/health/ready?x", 200), ("POST", "/health/ready", 405),
        ("GET", "/link", 426), ("GET", "/", 404), ("GET", "//state", 404), ("PUT", "/state", 405),
    ],
)  # fmt: skip
async def test_only_known_paths_are_answered(method: str, path: str, status: int) -> None:
    listening = process.listening(endpoints().handle, ListenAddress("127.0.0.1", 0))
    async with listening as port, aiohttp.ClientSession() as http:
        assert (await http.request(method, f"http://127.0.0.1:{port}{path}")).status == status


async def test_heads_that_never_end_are_closed_and_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "HEAD_S", 0.2)
    monkeypatch.setattr(process, "MAX_CONNECTIONS", 20)
    async with process.listening(endpoints().handle, ListenAddress("127.0.0.1", 0)) as port:
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for _, writer in streams:
            writer.write(b"GET /health/ready HTTP/1.1\r\nHost: a\r\nX: ")
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*(reader.read() for reader, _ in streams), return_exceptions=True)
        assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/health/ready") as answer:
            assert answer.status == 200
        for _, writer in streams:
            writer.close()


async def test_a_port_that_is_taken_is_refused_by_name() -> None:
    async with process.listening(endpoints().handle, ListenAddress("127.0.0.1", 0)) as port:
        with pytest.raises(ConfigError, match=f"--listen: 127.0.0.1:{port}"):
            async with process.listening(endpoints().handle, ListenAddress("127.0.0.1", port)):
                pass
