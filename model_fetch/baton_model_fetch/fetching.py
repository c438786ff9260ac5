"""Brings one model into a cache: list the source, make sure of space, download and check its files, publish them at
once.

The program of a cluster's Job and `baton up` call `fetch`; a `Watch` gets its progress.
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
from baton_model_fetch.download import Amend, Sign, download
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
class SourceListing:
    files: tuple[RemoteFile, ...]
    sign: Sign
    amend: Amend


async def list_source(session: web.SourceSession, source: str, credentials: Credentials) -> SourceListing:
    """List the files of a source, and the way to request them. Raises FetchError."""
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
        return SourceListing(
            await hub.list_files(session, part["place"], part["revision"], credentials), _as_is, _unchanged
        )
    if scheme == "s3":
        sign = bucket.signer(credentials, lambda: datetime.datetime.now(datetime.UTC))
        return SourceListing(
            await bucket.list_files(session, part["place"], part["path"], credentials, sign),
            sign,
            bucket.with_reply_hash,
        )
    files = await registry.list_files(session, part["place"], part["path"], part["revision"], credentials)
    return SourceListing(files, _as_is, _unchanged)


class Watch:
    """Callbacks of a fetch. This class writes progress into the log now and then, for readers of a Job's log."""

    every_s: float = 15.0

    def on_listed(self, total: int) -> None:
        """Bytes of the source, before space for them was checked. May raise FetchError."""

    def on_described(self, config: Path) -> None:
        """The model's config.json, before anything large is fetched. May raise: then nothing more comes."""

    def on_progress(self, have: int, total: int, seconds: float) -> None:
        """Bytes on the disk, of `total`, `seconds` after the first look."""
        if have < total:
            _log.info("%.3f of %.3f GiB after %.0f s", have / (1 << 30), total / (1 << 30), seconds)


async def fetch(source: str, cache: ModelFolder, credentials: Credentials, watch: Watch | None = None) -> None:
    """Bring the model into the cache, unless it is there. Raises FetchError, OSError."""
    watch = watch or Watch()
    if cache.is_whole():  # asked without the lock, which a read-only volume cannot have
        _log.info("%s is there already: %s", source, cache.model)
        return
    with cache.alone() as lock:
        if cache.is_whole():
            _log.info("%s is there already: %s", source, cache.model)
            return
        started = time.monotonic()
        credentials.check(source)
        async with web.session(credentials.hosts) as session:
            listing = await list_source(session, source, credentials)
            total = sum(file.size for file in listing.files)
            watch.on_listed(total)
            places = cache.prepare(source, listing.files)
            _log.info("%s: %d files, %.3f GiB", source, len(listing.files), total / (1 << 30))
            async with _watched(watch, places, total):
                first = {file: path for file, path in places.items() if file.path == CONFIG}
                await _download_all(session, first, listing)
                for path in first.values():
                    watch.on_described(path)
                await _download_all(session, places, listing)
        lock.check()
        size = await asyncio.to_thread(cache.publish, source, listing.files)
        took = time.monotonic() - started
        _log.info("%s is at %s: %.3f GiB in %.1f s", source, cache.model, size / (1 << 30), took)


@contextlib.asynccontextmanager
async def _watched(watch: Watch, places: Mapping[RemoteFile, Path], total: int) -> AsyncIterator[None]:
    """Report the bytes on the disk now and then, and once at the end; files of an earlier try count too."""
    began = time.monotonic()

    def report() -> None:
        have = sum(path.stat().st_size for path in places.values() if path.exists())
        watch.on_progress(have, total, time.monotonic() - began)

    async def keep_reporting() -> None:
        while True:
            report()
            await asyncio.sleep(watch.every_s)

    task = asyncio.create_task(keep_reporting())
    try:
        yield
        report()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _download_all(session: web.SourceSession, places: Mapping[RemoteFile, Path], listing: SourceListing) -> None:
    """Download several files at once; the first that fails stops the others."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def download_one(file: RemoteFile, path: Path) -> None:
        async with turns:
            await download(session, file, path, listing.sign, listing.amend)
            _log.info("%s: %d bytes, %s", file.path, file.size, file.hash_kind or "size only")

    try:
        async with asyncio.TaskGroup() as group:
            for file, path in places.items():
                group.create_task(download_one(file, path))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _as_is(url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    return headers


def _unchanged(file: RemoteFile, reply: Mapping[str, str]) -> RemoteFile:
    return file
