"""Answers queries for the records of all processes of a gateway.

Each process listens on a socket in the folder that they share, which only their user may enter. Whichever process a
client's query reaches asks all others; so does the parent, for the admin listener.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from baton_gateway.records.record_query import RecordQuery, RecordsPage, answer_query, merge_pages
from baton_gateway.records.record_ring import RecordRing
from baton_gateway.sibling_sockets import SiblingAnswer, SiblingSockets

_log = logging.getLogger("baton.gateway.records")
_encode = msgspec.json.Encoder().encode


class RecordDesk:
    """The records of this process and of those that share its folder."""

    def __init__(self, ring: RecordRing | None, folder: Path | None, processes: int = 1) -> None:
        """`ring`: None: this process has no records of its own. `folder`: None: there is no other process."""
        self._ring = ring
        self._processes = processes
        self._siblings = SiblingSockets(folder, "records-", None if ring is None else self._answer, _log)

    async def start(self) -> None:
        """Answer the queries of other processes until `stop`."""
        await self._siblings.start()

    async def stop(self) -> None:
        await self._siblings.stop()

    async def ask(self, query: RecordQuery) -> RecordsPage:
        """Return the records of all processes that answer in time, and name those that do not."""
        own = [] if self._ring is None else [answer_query(self._ring, query)]
        answers = await self._siblings.ask(_encode(query))
        page = merge_pages(query, [*own, *map(_read_page, answers)])
        unknown = self._processes - len(page.processes) - len(page.silent)
        return msgspec.structs.replace(page, silent=[*page.silent, *([0] * max(0, unknown))])

    def _answer(self, question: bytes) -> bytes:
        assert self._ring is not None
        return _encode(answer_query(self._ring, msgspec.json.decode(question, type=RecordQuery)))


def _read_page(answer: SiblingAnswer) -> RecordsPage:
    """Return the answer of another process; one that cannot be read is silence."""
    try:
        return msgspec.json.decode(answer.body or b"", type=RecordsPage)
    except msgspec.DecodeError:
        return RecordsPage([], [], [answer.pid])


def encode_page(page: RecordsPage) -> bytes:
    """Encode an answer as JSON."""
    return _encode(page)
