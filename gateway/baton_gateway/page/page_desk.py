"""The desk of the page: asks all processes for their parts, and keeps each document for a second.

So ten viewers cost what one does, a viewer that asks too often gets the same answer again, and without a viewer nothing
is computed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

import msgspec

from baton_gateway.page.page_document import MAX_SHOWN, PageInputs, page_document
from baton_gateway.page.page_part import PagePart, PageQuestion, PartSources
from baton_gateway.page.replica_parts import ReplicaParts
from baton_gateway.page.viewer import Viewer
from baton_gateway.records.record_desk import RecordDesk
from baton_gateway.records.record_query import MAX_ANSWERED, RecordQuery
from baton_gateway.records.request_record import RequestRecord
from baton_gateway.sibling_sockets import SiblingAnswer, SiblingSockets

KEPT_S = 1.0
RECORDS_KEPT_S = 5.0
"""Records are searched this seldom: that reads all of them."""
MAX_KEPT = 64
"""Documents, and as many answers about records."""
T = TypeVar("T")
_log = logging.getLogger("baton.gateway.page")
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Kept(Generic[T]):
    """An answer that is being made, or that is kept until `until_s`."""

    task: asyncio.Task[T]
    until_s: float


class AnswerCache(Generic[T]):
    """Answers that are made once for all who ask at the same time, and kept for a moment. Bounded by their number."""

    def __init__(self, kept_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s, self._clock = kept_s, clock
        self._answers: OrderedDict[tuple[object, ...], _Kept[T]] = OrderedDict()

    async def get(self, key: tuple[object, ...], make: Callable[[], asyncio.Task[T]]) -> T:
        """Return the answer of a key. `make` begins it where there is none; a client that leaves does not end it."""
        kept, now = self._answers.get(key), self._clock()
        if kept is None or (kept.task.done() and (now >= kept.until_s or kept.task.exception() is not None)):
            kept = self._answers[key] = _Kept(make(), now + self._kept_s)
            self._answers.move_to_end(key)
            while len(self._answers) > MAX_KEPT:
                self._answers.popitem(last=False)
        return await asyncio.shield(kept.task)


@dataclass(frozen=True, slots=True)
class _Document:
    """A document as JSON, and what it was made of: with the records of an id it is made anew, but nothing is asked."""

    inputs: PageInputs
    body: bytes


class PageDesk:
    """The page's data over all processes of a gateway. `sources`: None: this process has no part of its own."""

    def __init__(
        self,
        sources: PartSources | None,
        records: RecordDesk,
        folder: Path | None,
        processes: int = 1,
    ) -> None:
        self._sources, self._records, self._processes = sources, records, processes
        self._siblings = SiblingSockets(folder, "page-", None if sources is None else sources.answer, _log)
        self._documents: AnswerCache[_Document] = AnswerCache(KEPT_S)
        self._found: AnswerCache[list[RequestRecord]] = AnswerCache(RECORDS_KEPT_S)

    async def start(self) -> None:
        """Answer the questions of other processes until `stop`."""
        await self._siblings.start()

    async def stop(self) -> None:
        await self._siblings.stop()

    async def document(self, viewer: Viewer, asked: str | None) -> bytes:
        """Return the document for a viewer as JSON. `asked`: the id of a request that is to be found; None: none is."""
        whose = None if viewer.sees_all else viewer.tenant.name
        key = (whose, viewer.may_generate)
        made = await self._documents.get(key, lambda: asyncio.create_task(self._make(viewer, whose)))
        if asked is None:
            return made.body
        matches = await self._ask(RecordQuery(asked, whose))
        return _encode(page_document(replace(made.inputs, matches=matches)))

    async def parts(self) -> bytes:
        """Return the parts of all processes of this replica as JSON, for a page over several replicas."""
        parts, silent = await self._parts(PageQuestion())
        return _encode(ReplicaParts(time.time(), asyncio.get_running_loop().time(), parts, silent))

    async def _make(self, viewer: Viewer, whose: str | None) -> _Document:
        (parts, silent), slowest, missed = await asyncio.gather(
            self._parts(PageQuestion(whose)),
            self._search(RecordQuery(tenant=whose, slowest=MAX_SHOWN)),
            self._search(RecordQuery(tenant=whose, missed=True)),
        )
        wall_s, now_s = time.time(), asyncio.get_running_loop().time()
        inputs = PageInputs(viewer, wall_s, now_s, parts, silent, slowest, missed)
        return _Document(inputs, _encode(page_document(inputs)))

    async def _parts(self, question: PageQuestion) -> tuple[list[PagePart], list[int]]:
        own = [] if self._sources is None else [self._sources.build(question)]
        answers = await self._siblings.ask(_encode(question))
        read = [(answer.pid, _read_part(answer)) for answer in answers]
        parts = [*own, *(part for _, part in read if part is not None)]
        silent = [pid for pid, part in read if part is None]
        return parts, [*silent, *([0] * max(0, self._processes - len(parts) - len(silent)))]

    async def _search(self, query: RecordQuery) -> list[RequestRecord]:
        key = (query.tenant, query.slowest, query.missed)
        return await self._found.get(key, lambda: asyncio.create_task(self._ask(query)))

    async def _ask(self, query: RecordQuery) -> list[RequestRecord]:
        return (await self._records.ask(query)).records[:MAX_ANSWERED]


def parse_page_query(text: str) -> str | None:
    """Return the id of a request that the query of a URL asks for; None: none. Raises ValueError that names what is
    allowed. What else a query has is not repeated: it may be a key by mistake."""
    fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=4))
    if fields.keys() - {"id"}:
        raise ValueError("the only parameter is id; a key goes into the Authorization header, never into a URL")
    return fields.get("id", "")[:128] or None


def _read_part(answer: SiblingAnswer) -> PagePart | None:
    try:
        return msgspec.json.decode(answer.body or b"", type=PagePart)
    except msgspec.DecodeError:
        return None
