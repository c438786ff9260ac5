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
        b"GET /v1/models HTTP/9.9\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_broken_http_is_refused_and_the_connection_closed(gateway: RunningGateway, request_bytes: bytes) -> None:
    head, _ = await _raw(gateway, request_bytes)
    assert head.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")), head
    assert b"Traceback" not in head


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"Authorization: Bearer " + b"y" * 10_000, b"a line of at most 8190 bytes"),
        (b"Cookie: " + b"sso=y; " * 6_000, b"a line of at most 8190 bytes"),
        (b"X" * 9_000 + b": y", b"a line of at most 8190 bytes"),
        (b"\r\n".join(b"X-%d: y" % number for number in range(200)), b"at most 128 header lines"),
    ],
    ids=["token", "cookies", "name", "many"],
)
async def test_a_head_that_is_too_large_is_refused_with_the_limit(
    gateway: RunningGateway, head: bytes, word: bytes
) -> None:
    answer, body = await _raw(gateway, b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
    assert b" 431 " in answer.partition(b"\r\n")[0], answer
    assert word in body
    assert b'"headers_too_large"' in body
    assert b"yyyy" not in body, "what a client sent is not repeated"


async def test_a_target_that_is_too_long_is_refused_with_the_limit(gateway: RunningGateway) -> None:
    answer, body = await _raw(gateway, b"GET /v1/models?" + b"y" * 10_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b" 431 " in answer.partition(b"\r\n")[0], answer
    assert b"8190" in body


async def _raw(gateway: RunningGateway, data: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to raw bytes; the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(data)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body
