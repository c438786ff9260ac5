"""HTTP that is broken before it is a request: refused, and the connection closed."""

from __future__ import annotations

import asyncio

import pytest

from baton_testing.gateway.gateway_process import RunningGateway


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}{}",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: b\r\n folded\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nBad Header: b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_broken_http_is_refused_and_the_connection_closed(gateway: RunningGateway, request_bytes: bytes) -> None:
    head, _ = await _raw(gateway, request_bytes)
    assert head.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")), head
    assert b"Traceback" not in head


async def _raw(gateway: RunningGateway, data: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to raw bytes; the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(data)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body
