"""`python -m baton_model_fetch --source=hf://ORG/NAME@COMMIT --cache=/cache --key=NAME [--credentials=FOLDER]`

Exit status: 0 the model is there · 3 refused, trying again will not help · 1 anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import logging
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_model_fetch import bucket, hub, registry, web
from baton_model_fetch.cache_volume import ModelFolder
from baton_model_fetch.credentials import Credentials
from baton_model_fetch.download import Sign, Told, download
from baton_model_fetch.errors import FetchError, SourceRefused
from baton_model_fetch.listing import RemoteFile

_log = logging.getLogger("baton.fetch")

REFUSED = 3
"""Exit status; the Job's failure policy knows it too."""
AT_ONCE = 4
_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
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


async def fetch(source: str, cache: ModelFolder, credentials: Credentials) -> None:
    """Have the model in the cache. Raises FetchError, OSError."""
    with cache.alone():
        if cache.is_whole():
            _log.info("%s is there already: %s", source, cache.model)
            return
        started = time.monotonic()
        credentials.check(source)
        async with web.session(credentials.hosts) as session:
            found = await listed(session, source, credentials)
            places = cache.prepare(source, found.files)
            total = sum(file.size for file in found.files)
            _log.info("%s: %d files, %.3f GiB", source, len(found.files), total / (1 << 30))
            await _download_all(session, places, found)
        size = await asyncio.to_thread(cache.publish, source, found.files)
        took = time.monotonic() - started
        _log.info("%s is at %s: %.3f GiB in %.1f s", source, cache.model, size / (1 << 30), took)


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


def main(arguments: list[str] | None = None) -> int:
    """Fetch one model. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m baton_model_fetch", description=__doc__, allow_abbrev=False)
    parser.add_argument("--source", required=True)
    parser.add_argument("--cache", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--key", required=True, help="the model's folder in the cache")
    parser.add_argument("--credentials", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    if _KEY.fullmatch(options.key) is None:
        parser.error(f"--key: {options.key!r} is not allowed: must be lower-case letters, digits and '-'")
    try:
        asyncio.run(fetch(options.source, ModelFolder(options.cache, options.key), Credentials(options.credentials)))
    except SourceRefused as error:
        _log.error("refused: %s", error)
        return REFUSED
    except (FetchError, OSError) as error:
        _log.error("failed: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
