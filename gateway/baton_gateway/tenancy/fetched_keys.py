"""The public keys of an identity provider by URL: fetched at times and for an unknown key, kept while it is away.

No request waits for the provider, but the one whose token has a key that is new. Such a fetch is rare, so that made-up
ids of keys make this process no flood of requests. Redirects are refused: they could lead to keys of anybody.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from baton_gateway.tenancy.jwks import MAX_JWKS_BYTES, PublicKey, find_key, parse_keys

_log = logging.getLogger("baton.gateway.tenants")
FETCH_S = 5.0
"""Deadline of one fetch, from the look-up of the name to the last byte."""
EVERY_S = 300.0
"""The time between two fetches; a key that the provider removes is accepted for that long."""
UNKNOWN_S = 10.0
"""The least time between two fetches for unknown keys."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0


class FetchedKeys:
    """The keys of the last good answer. `ca`: a file with the certificate authorities of the provider; None: those of
    the system."""

    def __init__(self, url: str, ca: Path | None = None) -> None:
        """Raises ValueError that says what a URL must be."""
        check_url(url)
        self._url, self._ca = url, ca
        self._keys: dict[str, PublicKey] = {}
        self._fetching: asyncio.Task[bool] | None = None
        self._fetched_s = float("-inf")
        self.problem = ""
        """Why the last fetch failed; empty: it did not."""

    @property
    def is_known(self) -> bool:
        """False until the provider answered once."""
        return bool(self._keys)

    def refresh(self) -> bool:
        """Keys come from the network alone: `run` fetches them."""
        return False

    def find(self, key_id: object, now_s: float) -> PublicKey | None:
        """Find a key among those of the last good answer; None: there is none."""
        return find_key(self._keys, key_id)

    async def look_again(self) -> bool:
        """Fetch the keys because one is unknown, or wait for the fetch under way; returns whether there was one. Not
        more often than every `UNKNOWN_S`."""
        if self._fetching is None and asyncio.get_running_loop().time() - self._fetched_s < UNKNOWN_S:
            return False
        await self._fetch()
        return True

    async def run(self) -> None:
        """Fetch the keys now and then, until cancelled."""
        delay_s = FIRST_RETRY_S
        try:
            while True:
                is_good = await self._fetch()
                delay_s = EVERY_S if is_good else min(LAST_RETRY_S, delay_s * 2)
                await asyncio.sleep(delay_s * random.uniform(0.8, 1.0))
                delay_s = FIRST_RETRY_S if is_good else delay_s
        finally:
            if self._fetching is not None:
                self._fetching.cancel()

    async def _fetch(self) -> bool:
        """Fetch the keys once, however many wait for them; returns whether they came."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_once(), name="keys of the identity provider")
        return await asyncio.shield(self._fetching)

    async def _fetch_once(self) -> bool:
        try:
            async with asyncio.timeout(FETCH_S):
                keys = parse_keys(await self._download(), self._url)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
            if problem != self.problem:
                _log.error("keys of the identity provider stay as they were: %s: %s", self._url, problem)
            self.problem = problem
            return False
        else:
            if keys.keys() != self._keys.keys():
                _log.info("the identity provider has %d keys", len(keys))
            self._keys, self.problem = keys, ""
            return True
        finally:
            self._fetched_s = asyncio.get_running_loop().time()
            self._fetching = None

    async def _download(self) -> bytes:
        """The document's bytes. Raises ValueError for an answer that is none."""
        context = await asyncio.to_thread(
            ssl.create_default_context, cafile=None if self._ca is None else str(self._ca)
        )
        headers = {"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"}
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.get(self._url, headers=headers, allow_redirects=False) as response,
        ):
            if 300 <= response.status < 400:
                raise ValueError("redirects are refused: name the URL that has the keys")
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise ValueError("a compressed answer is refused")
            content = bytearray()
            async for piece in response.content.iter_any():
                content += piece
                if len(content) > MAX_JWKS_BYTES:
                    raise ValueError(f"must be at most {MAX_JWKS_BYTES} bytes")
            return bytes(content)


def check_url(url: str) -> None:
    """Raises ValueError unless keys may be fetched from a URL."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme == "https" and bool(parts.hostname) and parts.username is None and not parts.fragment
        is_good = is_good and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError("must be a URL such as https://id.example.com/jwks.json, without user and fragment")
