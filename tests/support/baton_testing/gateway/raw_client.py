"""Requests as bytes, each on a connection of its own: for clients that count, hurry or hang up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

ANSWER_S = 60.0
LOOPBACK = "127.0.0.1"


def posted(path: str, body: bytes, key: str | None = None) -> bytes:
    """A whole POST; the gateway is to close the connection after its answer."""
    return head(path, len(body), key) + body


def head(path: str, length: int, key: str | None = None) -> bytes:
    """The head of a POST whose body has this many bytes."""
    bearer = "" if key is None else f"Authorization: Bearer {key}\r\n"
    lines = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n{bearer}"
    return f"{lines}Content-Length: {length}\r\n\r\n".encode()


def got(path: str, key: str | None = None) -> bytes:
    """A whole GET."""
    bearer = "" if key is None else f"Authorization: Bearer {key}\r\n"
    return f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{bearer}\r\n".encode()


async def exchange(port: int, sent: bytes, within_s: float = ANSWER_S) -> tuple[int, bytes]:
    """Status and body; status 0 where no answer came in time."""
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(sent)
                answer = await reader.read()
            finally:
                writer.close()
    except (TimeoutError, OSError):
        return 0, b""
    first, _, body = answer.partition(b"\r\n\r\n")
    return status_of(first), body


def status_of(answer: bytes) -> int:
    """The status in an answer's first line; 0: it has none."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.") and answer[9:12].isdigit() else 0


def error_code(body: bytes) -> str:
    """The code of an error object; empty where there is none."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
