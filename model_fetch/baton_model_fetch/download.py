"""Downloads one file to the disk: continues where an earlier try stopped, and checks what is on the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from baton_model_fetch import web
from baton_model_fetch.errors import Damaged, Interrupted
from baton_model_fetch.file_system import sync
from baton_model_fetch.listing import RemoteFile, hasher
from baton_wire.whole_file import with_path

_log = logging.getLogger("baton.fetch")

CHUNK = 4 << 20
TRIES = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STALL_S, LEAST_BYTES = 300.0, 256 << 10

Sign = Callable[[str, Mapping[str, str]], Mapping[str, str]]
Amend = Callable[[RemoteFile, Mapping[str, str]], RemoteFile]


async def download(session: web.SourceSession, file: RemoteFile, path: Path, sign: Sign, amend: Amend) -> None:
    """Have the file's content at `path`, whole and checked. Raises FetchError, OSError."""
    for attempt in range(1, TRIES + 1):
        try:
            known = await _continue(session, file, path, sign, amend)
            await asyncio.to_thread(verify, known, path)
            return
        except (Interrupted, Damaged) as error:
            if isinstance(error, Damaged):
                await asyncio.to_thread(path.unlink, missing_ok=True)  # nothing says which part of it is wrong
            if attempt == TRIES:
                raise
            pause = min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S)
            _log.warning("%s: %s; try %d of %d in %g s", file.path, error, attempt + 1, TRIES, pause)
            await asyncio.sleep(pause)


async def _continue(session: web.SourceSession, file: RemoteFile, path: Path, sign: Sign, amend: Amend) -> RemoteFile:
    have = _size(path)
    if have > file.size:
        raise Damaged(f"{file.path}: {have} bytes came, it has {file.size}")
    if have == file.size and file.hash_kind is not None:
        return file
    wanted = {**file.headers, "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    async with web.opened(session, file.url, sign(file.url, wanted), allow=frozenset({412, 416})) as reply:
        if reply.status in (412, 416):
            raise Damaged(f"{file.path}: HTTP {reply.status}: it changed since it was listed")
        goes_on = reply.status == 206
        if goes_on and not reply.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise Damaged(f"{file.path}: the server sent another range than the one asked for")
        with path.open("ab" if goes_on else "wb") as out:
            size = have if goes_on else 0
            pace = BodyPace(asyncio.get_running_loop().time())
            async for chunk in reply.content.iter_chunked(CHUNK):
                size += len(chunk)
                if pace.is_stalled(len(chunk), asyncio.get_running_loop().time()):
                    raise Interrupted(f"{file.path}: under {LEAST_BYTES >> 10} KiB came in {STALL_S:.0f} s")
                if size > file.size:
                    raise Damaged(f"{file.path}: over {file.size} bytes came")
                await asyncio.to_thread(_write, out, chunk, path)
        if size < file.size:
            raise Interrupted(f"{file.path}: {size} of {file.size} bytes came")
        return amend(file, reply.headers)


class BodyPace:
    """The speed of a body: one that only trickles is asked for again, which often helps with a server behind others.
    `now`: seconds of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._since, self._bytes = now, 0

    def is_stalled(self, size: int, now: float) -> bool:
        """Count `size` bytes; True if fewer than LEAST_BYTES came in STALL_S."""
        self._bytes += size
        if now - self._since < STALL_S:
            return False
        is_slow = self._bytes < LEAST_BYTES
        self._since, self._bytes = now, 0
        return is_slow


def _write(out: IO[bytes], chunk: bytes, path: Path) -> None:
    """Raises OSError with the file's name, which tells it from errors of the network."""
    try:
        out.write(chunk)
        out.flush()
    except OSError as error:
        raise with_path(error, path) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def verify(file: RemoteFile, path: Path) -> None:
    """Compare size and hash of the file on the disk, and flush it. Raises Damaged, OSError."""
    digest = hasher(file)
    with path.open("rb") as content:
        while digest is not None and (chunk := content.read(CHUNK)):
            digest.update(chunk)
        sync(content.fileno())
    size = path.stat().st_size
    if size != file.size:
        raise Damaged(f"{file.path}: has {size} bytes, must have {file.size}")
    if digest is not None and digest.hexdigest() != file.digest:
        raise Damaged(f"{file.path}: {file.hash_kind} is {digest.hexdigest()}, must be {file.digest}")
