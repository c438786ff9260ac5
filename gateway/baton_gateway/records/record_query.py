"""Questions for records, and their answers: one record by its id, the slowest ones, those that missed a target."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Annotated
from urllib.parse import parse_qsl

import msgspec

from baton_gateway.records.record_ring import KeptRecord, RecordRing
from baton_gateway.records.request_record import RequestRecord

MAX_ANSWERED = 100
"""Records in one answer."""
_FIELDS = ("id", "tenant", "slowest", "missed")


class RecordQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which records are wanted. Without an id and a number of slowest ones: the latest."""

    id: str | None = None
    tenant: str | None = None
    missed: bool = False
    """Only those that missed a target, failed or were refused."""
    slowest: Annotated[int, msgspec.Meta(ge=1, le=MAX_ANSWERED)] | None = None

    def fits(self, kept: KeptRecord) -> bool:
        """Return whether a record is wanted, but for their number."""
        is_tenant = self.tenant is None or kept.tenant == self.tenant
        return is_tenant and (self.id is None or self._is_named(kept, self.id)) and (kept.missed or not self.missed)

    def texts(self) -> list[str]:
        """Return texts that every wanted record has."""
        named = [] if self.id is None else [answer_digits(self.id) or self.id]
        return named if self.tenant is None else [*named, self.tenant]

    def _is_named(self, kept: KeptRecord, id_: str) -> bool:
        """Return whether an id is the record's: its request's, or the one that its answer has."""
        return kept.id == id_ or (kept.answer != "" and answer_digits(id_) == kept.answer)


_ANSWER_ID = re.compile(r"[a-z]+[-_]([0-9a-f]{24})")


def answer_digits(id_: str) -> str | None:
    """The digits in the id of an answer of any of the APIs; None: it is none.

    >>> answer_digits("chatcmpl-0123456789abcdef01234567"), answer_digits("msg_0123456789abcdef01234567")
    ('0123456789abcdef01234567', '0123456789abcdef01234567')
    >>> answer_digits("nonsense")
    """
    match = _ANSWER_ID.fullmatch(id_)
    return None if match is None else match[1]


class ProcessRecords(msgspec.Struct, frozen=True):
    """How many records a gateway process keeps."""

    pid: int
    kept: int
    fell_out: int
    """Older records that made room since the process started."""
    epoch: str = ""
    """The process: replicas may have processes of the same pid. Empty: unknown."""


class RecordsPage(msgspec.Struct, frozen=True):
    """The answer of one or several processes."""

    records: list[RequestRecord]
    processes: list[ProcessRecords]
    silent: list[int] = []
    """Processes that did not answer, by pid; 0: it is not known which."""


def parse_query(text: str) -> RecordQuery:
    """Parse the query of a URL. Raises ValueError that names the parameter, its value and what is allowed."""
    fields: dict[str, object] = {}
    for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=16):
        if name not in _FIELDS:
            raise ValueError(f"{name[:64]!r} is not a parameter: one of {', '.join(_FIELDS)}")
        if name == "slowest":
            if not (value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= MAX_ANSWERED):
                raise ValueError(f"slowest: {value[:64]!r} is not an integer from 1 to {MAX_ANSWERED}")
            fields[name] = int(value)
        elif name == "missed":
            if value not in ("", "true", "false"):
                raise ValueError(f"missed: {value[:64]!r} is neither true nor false")
            fields[name] = value != "false"
        else:
            fields[name] = value[:128]
    return msgspec.convert(fields, RecordQuery)


def answer_query(ring: RecordRing, query: RecordQuery) -> RecordsPage:
    """Answer a query from the records of this process."""
    addresses = ring.addresses()
    kept_records = ring.latest(*query.texts())
    if query.id is not None or (query.missed and query.slowest is not None):  # the latest would be a flood of refusals
        kept_records = chain(kept_records, ring.refused(*query.texts()))
    wanted: Iterator[KeptRecord] = (kept for kept in kept_records if query.fits(kept))
    if query.slowest is not None:
        wanted = iter(heapq.nlargest(query.slowest, wanted, key=lambda kept: kept.duration_s))
    records = [_with_workers(kept.record(), addresses) for kept in islice(wanted, MAX_ANSWERED)]
    return RecordsPage(records, [ProcessRecords(os.getpid(), len(ring), ring.fell_out, ring.epoch)])


def merge_pages(query: RecordQuery, pages: Sequence[RecordsPage]) -> RecordsPage:
    """Merge the answers of several processes into one. A record that is in two answers is in it once."""
    records = list({(record.id, record.started_at): record for page in pages for record in page.records}.values())
    if query.slowest is not None:
        records = sorted(records, key=lambda record: -record.duration_ns)[: query.slowest]
    else:
        records = sorted(records, key=lambda record: -record.started_at)[:MAX_ANSWERED]
    processes = [process for page in pages for process in page.processes]
    return RecordsPage(records, processes, [pid for page in pages for pid in page.silent])


def for_tenant(page: RecordsPage) -> RecordsPage:
    """Return what a tenant may see of its own records: no addresses, and of the gateway's processes only how many did
    not answer."""
    records = [msgspec.structs.replace(record, workers={}) for record in page.records]
    return RecordsPage(records, [], [0] * len(page.silent))


def _with_workers(record: RequestRecord, addresses: Mapping[str, str]) -> RequestRecord:
    used = {name for name in _names(record) if name in addresses}
    return msgspec.structs.replace(record, workers={name: addresses[name] for name in sorted(used)})


def _names(record: RequestRecord) -> Iterator[str]:
    blamed: Iterable[str] = (attempt.blamed for attempt in record.attempts)
    yield from blamed
    for attempt in record.attempts:
        yield from (attempt.prefill, attempt.decode)
