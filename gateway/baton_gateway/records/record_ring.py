"""The latest records of one process, bounded by their number and their bytes.

A record is kept as bytes: one block, which is small, of no concern to the garbage collector, and too large for Python's
own arenas. Small objects that stay would keep the arenas of all that was busy when they were made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from baton_gateway.records.interruptions import Interruptions
from baton_gateway.records.record_builder import build_record, worker_name
from baton_gateway.records.request_record import RequestRecord
from baton_gateway.records.trail import KeptTrail

MAX_RECORDS = 10_000
MAX_BYTES = 32 << 20
MAX_REFUSED = 1_000
"""Records of requests that were refused before they began: a flood of them pushes no other record out."""
MAX_ADDRESSES = 1_024
"""Workers whose addresses are remembered."""
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(KeptTrail)


class KeptRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A trail as bytes, with what it is found by."""

    id: str
    tenant: str
    duration_s: float
    missed: bool
    trail: msgspec.Raw
    answer: str = ""
    """The digits of its answer's id."""

    def record(self) -> RequestRecord:
        """Build the record."""
        return build_record(_decoder.decode(self.trail))


_kept_decoder = msgspec.msgpack.Decoder(KeptRecord)


def _search(kept: deque[bytes], texts: Iterable[str]) -> Iterator[KeptRecord]:
    """Yield the records that may have these texts as id, answer or tenant, the latest first. To search the bytes takes
    a fraction of the time of decoding them."""
    parts = [text.encode(errors="replace") for text in texts]
    return (_kept_decoder.decode(content) for content in reversed(kept) if all(part in content for part in parts))


def _encode_record(trail: KeptTrail) -> bytes:
    facts = trail.facts
    duration_s = trail.marks[-1].at_s - trail.began_s if trail.marks else 0.0
    return _encode(
        KeptRecord(facts.id, facts.tenant, duration_s, facts.missed, msgspec.Raw(_encode(trail)), facts.answer)
    )


class RecordRing:
    """The latest records; the oldest ones make room."""

    def __init__(self, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES, epoch: str = "") -> None:
        """`max_records` 0: none are kept. `epoch`: this process, in the answers to queries."""
        self._max_records, self._max_bytes, self.epoch = max_records, max_bytes, epoch
        self._kept: deque[bytes] = deque()
        self._refused: deque[bytes] = deque(maxlen=MAX_REFUSED)
        self._bytes = 0
        self._addresses: dict[bytes, str] = {}
        self.interruptions = Interruptions()
        self.fell_out = 0
        """Records that made room for later ones."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_on(self) -> bool:
        """Return whether any records are kept."""
        return self._max_records > 0

    def latest(self, *texts: str) -> Iterator[KeptRecord]:
        """Yield the records that may have these texts, the latest first."""
        return _search(self._kept, texts)

    def refused(self, *texts: str) -> Iterator[KeptRecord]:
        """Yield those of requests that were refused before they began, the latest first."""
        return _search(self._refused, texts)

    def add_refused(self, trail: KeptTrail) -> None:
        """Keep the trail of a request that was refused before it began."""
        if self.is_on:
            self._refused.append(_encode_record(trail))

    def add(self, trail: KeptTrail) -> None:
        """Keep a trail whose request has ended."""
        encoded = _encode_record(trail)
        self._kept.append(encoded)
        self._bytes += len(encoded)
        while len(self._kept) > self._max_records or self._bytes > self._max_bytes:
            self._bytes -= len(self._kept.popleft())
            self.fell_out += 1

    def knows(self, epoch: bytes) -> bool:
        """Return whether the worker's address is remembered."""
        return epoch in self._addresses

    def remember(self, epoch: bytes, address: str) -> None:
        """Remember the address of a worker, also after it is gone."""
        while len(self._addresses) >= MAX_ADDRESSES:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[epoch] = address

    def addresses(self) -> dict[str, str]:
        """Return the remembered addresses by the workers' names in records."""
        return {worker_name(epoch): address for epoch, address in self._addresses.items()}
