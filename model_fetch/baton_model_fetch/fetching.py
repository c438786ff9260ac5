"""Brings one model into a cache: what the source holds, room for it, its files, all checked, then published at once.

The program of a cluster's Job and `baton up` call `fetch`; a `Watch` is told how far it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_model_fetch import bucket, hub, registry, web
from baton_model_fetch.cache_volume import CONFIG, ModelFolder
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.download import Sign, Told, download
from baton_model_fetch.errors import SourceRefused
from baton_model_fetch.listing import RemoteFile

_log = logging.getLogger("baton.fetch")

AT_ONCE = 4
_FORMS = {
    "hf": re.compile(r"(?P<place>[^@]+)@(?P<revision>[0-9a-f]{40})"),
    "s3": re.compile(r"(?P<place>[^/]+)/(?P<path>.+)"),
    "oci": re.compile(r"(?P<place>[^/]+)/(?P<path>[^@]+)@(?P<revision>sha256:[0-9a-f]{64})"),
}


@dataclass(frozen=True, slots=True)
class Listed:
    files: tuple[RemoteFile, ...]
    sign: Sign
    told: Told


async def listed(session: web.SourceSession, source: str, credentials: Credentials) -> Listed:
    """What the source holds and how to ask for it. Raises FetchError."""
    scheme, _, rest = source.partition("://")
    match = _FORMS[scheme].fullmatch(rest) if scheme in _FORMS else None
    if match is None:
        raise SourceRefused(
            f"--source: {source!r} is none of hf://ORG/NAME@COMMIT, s3://BUCKET/PATH, oci://IMAGE@sha256:DIGEST"
        )
    if ".." in re.split("[/@]", rest):
        raise SourceRefused(f"--source: {source!r} has '..' in a path")
    part = match.groupdict()
    if scheme == "hf":
        return Listed(await hub.list_files(session, part["place"], part["revision"], credentials), _as_is, _unchanged)
    if scheme == "s3":
        sign = bucket.signer(credentials, lambda: datetime.datetime.now(datetime.UTC))
        return Listed(
            await bucket.list_files(session, part["place"], part["path"], credentials, sign), sign, bucket.told
        )
    files = await registry.list_files(session, part["place"], part["path"], part["revision"], credentials)
    return Listed(files, _as_is, _unchanged)


class Watch:
    """Is told how far a fetch is. This one writes it into the log now and then, for whoever reads a Job's."""

    every_s: float = 15.0

    def listed(self, total: int) -> None:
        """Bytes that the source holds, before there is room for them. May raise FetchError."""

    def described(self, config: Path) -> None:
        """The model's config.json, before anything large is fetched. May raise: then nothing more comes."""

    def progressed(self, have: int, total: int, seconds: float) -> None:
        """Bytes that lie on the disk, of how many, `seconds` after the first look."""
        if have < total:
            _log.info("%.3f of %.3f GiB after %.0f s", have / (1 << 30), total / (1 << 30), seconds)


async def fetch(source: str, cache: ModelFolder, credentials: Credentials, watch: Watch | None = None) -> None:
    """Have the model in the cache. Raises FetchError, OSError."""
    watch = watch or Watch()
    with cache.alone():
        if cache.is_whole():
            _log.info("%s is there already: %s", source, cache.model)
            return
        started = time.monotonic()
        credentials.check(source)
        async with web.session(credentials.hosts) as session:
            found = await listed(session, source, credentials)
            total = sum(file.size for file in found.files)
            watch.listed(total)
            places = cache.prepare(source, found.files)
            _log.info("%s: %d files, %.3f GiB", source, len(found.files), total / (1 << 30))
            async with _watched(watch, places, total):
                first = {file: path for file, path in places.items() if file.path == CONFIG}
                await _download_all(session, first, found)
                for path in first.values():
                    watch.described(path)
                await _download_all(session, places, found)
        size = await asyncio.to_thread(cache.publish, source, found.files)
        took = time.monotonic() - started
        _log.info("%s is at %s: %.3f GiB in %.1f s", source, cache.model, size / (1 << 30), took)


@contextlib.asynccontextmanager
async def _watched(watch: Watch, places: Mapping[RemoteFile, Path], total: int) -> AsyncIterator[None]:
    """Tell now and then, and once at the end, what lies on the disk: what an earlier try brought counts too."""
    began = time.monotonic()

    def tell() -> None:
        have = sum(path.stat().st_size for path in places.values() if path.exists())
        watch.progressed(have, total, time.monotonic() - began)

    async def telling() -> None:
        while True:
            tell()
            await asyncio.sleep(watch.every_s)

    task = asyncio.create_task(telling())
    try:
        yield
        tell()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _download_all(session: web.SourceSession, places: Mapping[RemoteFile, Path], found: Listed) -> None:
    """Several files at once; the first that cannot be had stops the others."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(file: RemoteFile, path: Path) -> None:
        async with turns:
            await download(session, file, path, found.sign, found.told)
            _log.info("%s: %d bytes, %s", file.path, file.size, file.hash_kind or "size only")

    try:
        async with asyncio.TaskGroup() as group:
            for file, path in places.items():
                group.create_task(one(file, path))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _as_is(url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    return headers


def _unchanged(file: RemoteFile, reply: Mapping[str, str]) -> RemoteFile:
    return file
