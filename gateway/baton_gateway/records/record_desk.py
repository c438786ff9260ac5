"""Answers queries for the records of all processes of a gateway.

Each process listens on a socket in the folder that they share, which only their user may enter. Whichever process a
client's query reaches asks all others; so does the parent, for the admin listener.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from baton_gateway.records.record_query import RecordQuery, RecordsPage, answer_query, merge_pages
from baton_gateway.records.record_ring import RecordRing

_log = logging.getLogger("baton.gateway.records")
ANSWER_S = 2.0
MAX_QUERY_BYTES = 4_096
MAX_PAGE_BYTES = 16 << 20
_PREFIX, _SUFFIX = "records-", ".sock"
_encode = msgspec.json.Encoder().encode


class RecordDesk:
    """The records of this process and of those that share its folder."""

    def __init__(self, ring: RecordRing | None, folder: Path | None, processes: int = 1) -> None:
        """`ring`: None: this process has no records of its own. `folder`: None: there is no other process."""
        self._ring = ring
        self._folder = folder
        self._processes = processes
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the queries of other processes until `stop`."""
        if self._folder is None or self._ring is None:
            return
        try:
            self._server = await asyncio.start_unix_server(
                self._answer_sibling, self._path(os.getpid()), limit=MAX_QUERY_BYTES
            )
        except OSError as error:  # such as a path that is too long for a socket
            _log.warning("other processes of this gateway cannot ask for records: %s", error)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path(os.getpid()).unlink(missing_ok=True)

    async def ask(self, query: RecordQuery) -> RecordsPage:
        """Return the records of all processes that answer in time, and name those that do not."""
        own = [] if self._ring is None else [answer_query(self._ring, query)]
        asked = await asyncio.gather(*(self._ask_sibling(pid, query) for pid in self._siblings()))
        page = merge_pages(query, [*own, *(answer for answer in asked if answer is not None)])
        unknown = self._processes - len(page.processes) - len(page.silent)
        return msgspec.structs.replace(page, silent=[*page.silent, *([0] * max(0, unknown))])

    def _path(self, pid: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{_PREFIX}{pid}{_SUFFIX}"

    def _siblings(self) -> list[int]:
        if self._folder is None:
            return []
        names = [path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in self._folder.glob(f"{_PREFIX}*")]
        return [int(name) for name in names if name.isdigit() and (self._ring is None or int(name) != os.getpid())]

    async def _ask_sibling(self, pid: int, query: RecordQuery) -> RecordsPage | None:
        """Ask another process. None: it has ended, and only its socket is left."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._path(pid), limit=MAX_PAGE_BYTES)
                writer.write(_encode(query) + b"\n")
                return msgspec.json.decode(await reader.read(-1), type=RecordsPage)
        except (ConnectionRefusedError, FileNotFoundError):
            self._path(pid).unlink(missing_ok=True)
            return None
        except (TimeoutError, OSError, msgspec.DecodeError):
            return RecordsPage([], [], [pid])
        finally:
            if writer is not None:
                writer.close()

    async def _answer_sibling(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._ring is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                query = msgspec.json.decode(await reader.readline(), type=RecordQuery)
                writer.write(_encode(answer_query(self._ring, query)))
                await writer.drain()
        except (TimeoutError, OSError, ValueError) as error:
            _log.debug("a query for records was not answered: %s", error)
        finally:
            writer.close()


def encode_page(page: RecordsPage) -> bytes:
    """Encode an answer as JSON."""
    return _encode(page)
