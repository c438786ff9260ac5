"""HTTP for fetching: one session, a deadline on every wait, status codes turned into the errors of this package."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Mapping

import aiohttp

from baton_model_fetch.errors import Damaged, Interrupted, SourceRefused

CONNECT_S, READ_S = 20.0, 60.0
MAX_REPLY_BYTES = 32 << 20
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
_WORDS = {401: "credentials are missing or not accepted", 403: "no access", 404: "not found", 410: "gone"}


@contextlib.asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session that trusts the image's certificates and sends Authorization to no server that it is redirected to."""
    times = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
    async with aiohttp.ClientSession(timeout=times, auto_decompress=False, trust_env=True) as made:
        yield made


@contextlib.asynccontextmanager
async def opened(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], *, allow: frozenset[int] = frozenset()
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A GET whose status is 2xx or allowed. Raises SourceRefused, Interrupted."""
    try:
        async with session.get(url, headers=dict(headers), max_redirects=5) as reply:
            if reply.status not in allow:
                check(reply.status, url)
            yield reply
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_THE_DISK):
            raise
        raise Interrupted(f"{place(url)}: {type(error).__name__}: {error}") from error


async def text(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """A small reply and its headers. Raises SourceRefused, Interrupted, Damaged for one over 32 MiB."""
    async with opened(session, url, {"Accept-Encoding": "identity", **headers}) as reply:
        body = await reply.content.read(MAX_REPLY_BYTES)
        while len(body) < MAX_REPLY_BYTES and (more := await reply.content.read(MAX_REPLY_BYTES)):
            body += more
        if len(body) >= MAX_REPLY_BYTES:
            raise Damaged(f"{place(url)}: the reply is over {MAX_REPLY_BYTES >> 20} MiB")
        return body, reply.headers


def check(status: int, url: str) -> None:
    """Raises SourceRefused or Interrupted for a status that is not 2xx."""
    if 200 <= status < 300:
        return
    if status in _AGAIN:
        raise Interrupted(f"{place(url)}: HTTP {status}")
    raise SourceRefused(f"{place(url)}: HTTP {status}: {_WORDS.get(status, 'refused')}")


def place(url: str) -> str:
    """A URL without its query, which may carry signatures."""
    return url.partition("?")[0]
