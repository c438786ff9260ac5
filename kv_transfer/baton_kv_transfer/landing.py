"""The landing region of a decode worker: permissions to write, and when bytes may be granted again. Pure.

Spans go free → granted → receiving → sealed → scattered → free, or → quarantined when a write that cannot be fenced may
still be in flight. The region knows numbers only; the memory itself belongs to the driver.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from baton_kv_transfer.coverage import Coverage
from baton_kv_transfer.layout import Extent, stream_offset
from baton_wire.errors import LandingFullError
from baton_wire.messages.pair_link import MAX_SPANS, Span

ALIGNMENT_BYTES = 256
REMEMBERED_LINKS = 1_024
"""A hand-over whose link ended this many links ago has long been over."""


class SpanState(enum.StrEnum):
    GRANTED = "granted"
    RECEIVING = "receiving"
    SEALED = "sealed"
    SCATTERED = "scattered"
    QUARANTINED = "quarantined"


class ClaimRefusal(enum.StrEnum):
    """Why bytes may not be written. All but a revoked transfer are breaches of the protocol."""

    UNKNOWN_TRANSFER = "unknown_transfer"
    FOREIGN_PEER = "foreign_peer"
    SEALED = "sealed"
    OUT_OF_SPAN = "out_of_span"
    OVERLAP = "overlap"


@dataclass(slots=True, eq=False)
class LandingWindow:
    """Permission to write [offset, offset + length) once. The writer looks at `is_open` before every single write."""

    transfer: int
    offset: int
    length: int
    is_open: bool = True


@dataclass(slots=True, eq=False)
class _Transfer:
    peer: bytes
    spans: tuple[Span, ...]
    reserved: tuple[Extent, ...]
    claimed: Coverage
    arrived: Coverage
    state: SpanState = SpanState.GRANTED
    windows: set[LandingWindow] = field(default_factory=set)
    is_stopped: bool = False

    @property
    def reserved_bytes(self) -> int:
        return sum(extent.length for extent in self.reserved)


@dataclass(frozen=True, slots=True)
class LandingStats:
    """Bytes of the region by state; alignment counts with the span it serves."""

    total_bytes: int
    free_bytes: int
    by_state: dict[SpanState, int]
    largest_free_bytes: int
    refused_writes: int
    discarded_writes: int
    quarantine_is_full: bool


class LandingRegion:
    """Gives out spans of [start, start + total_bytes) and tracks what arrived in them."""

    def __init__(
        self, total_bytes: int, *, quarantine_share: float = 0.25, alignment: int = ALIGNMENT_BYTES, start: int = 0
    ) -> None:
        if total_bytes < 0 or alignment < 1:
            raise ValueError(f"landing region: {total_bytes} bytes with alignment {alignment}")
        self.total_bytes = total_bytes - total_bytes % alignment
        self._alignment = alignment
        self._quarantine_limit = int(self.total_bytes * quarantine_share)
        self._free: list[Extent] = [Extent(start, self.total_bytes)] if self.total_bytes else []
        self._transfers: dict[int, _Transfer] = {}
        self._revoked: dict[int, bytes] = {}
        self.refused_writes = 0
        self.discarded_writes = 0

    # Giving out ------------------------------------------------------------------------------------------------------

    def grant(self, transfer: int, peer: bytes, length: int, unit_bytes: int) -> tuple[Span, ...]:
        """Reserve `length` bytes (a multiple of `unit_bytes`; no unit crosses a span) for `peer`.

        One span if any hole is long enough, else up to 64. Raises LandingFullError when there is no room now,
        ValueError when the transfer exists or the length is not whole units.
        """
        if transfer in self._transfers or transfer in self._revoked:
            raise ValueError(f"transfer: {transfer} already exists")
        if unit_bytes < 1 or length < 0 or length % unit_bytes:
            raise ValueError(f"length: {length} is not a multiple of the unit of {unit_bytes} bytes")
        spans = self._find(length, unit_bytes)
        if spans is None:
            raise LandingFullError(f"landing region: no room for {length} bytes")
        reserved = tuple(Extent(span.offset, self._rounded(span.length)) for span in spans)
        for extent in reserved:
            self._take(extent)
        self._transfers[transfer] = _Transfer(peer, spans, reserved, Coverage(length), Coverage(length))
        return spans

    def _find(self, length: int, unit_bytes: int) -> tuple[Span, ...] | None:
        if length == 0:
            return ()
        for hole in self._free:
            if hole.length >= self._rounded(length):
                return (Span(offset=hole.offset, length=length),)
        spans: list[Span] = []
        rest = length
        for hole in sorted(self._free, key=lambda extent: -extent.length)[:MAX_SPANS]:
            part = min(rest, hole.length - hole.length % unit_bytes)
            if part and self._rounded(part) <= hole.length:
                spans.append(Span(offset=hole.offset, length=part))
                rest -= part
            if rest == 0:
                return tuple(spans)
        return None

    def _rounded(self, length: int) -> int:
        return -(-length // self._alignment) * self._alignment

    def _take(self, extent: Extent) -> None:
        at = next(i for i, hole in enumerate(self._free) if hole.offset <= extent.offset and extent.end <= hole.end)
        hole = self._free[at]
        parts = (Extent(hole.offset, extent.offset - hole.offset), Extent(extent.end, hole.end - extent.end))
        self._free[at : at + 1] = [part for part in parts if part.length]

    def _give_back(self, extents: tuple[Extent, ...]) -> None:
        merged: list[Extent] = []
        for extent in sorted((*self._free, *extents), key=lambda hole: hole.offset):
            if merged and merged[-1].end == extent.offset:
                merged[-1] = Extent(merged[-1].offset, merged[-1].length + extent.length)
            else:
                merged.append(extent)
        self._free = merged

    # Writing ---------------------------------------------------------------------------------------------------------

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        """Ask to write [offset, offset + length). A closed window means: read the bytes and throw them away."""
        record = self._transfers.get(transfer)
        if record is None:
            return self._claim_revoked(peer, transfer, offset, length)
        if record.peer != peer:
            return self._refuse(ClaimRefusal.FOREIGN_PEER)
        if record.is_stopped:
            self.discarded_writes += 1
            return LandingWindow(transfer, offset, length, is_open=False)
        if record.state not in (SpanState.GRANTED, SpanState.RECEIVING):
            return self._refuse(ClaimRefusal.SEALED)
        start = stream_offset(record.spans, Extent(offset, length)) if length else None
        if start is None:
            return self._refuse(ClaimRefusal.OUT_OF_SPAN)
        if not record.claimed.add(start, start + length):
            return self._refuse(ClaimRefusal.OVERLAP)
        record.state = SpanState.RECEIVING
        window = LandingWindow(transfer, offset, length)
        record.windows.add(window)
        return window

    def _claim_revoked(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        if self._revoked.get(transfer) != peer:
            return self._refuse(ClaimRefusal.UNKNOWN_TRANSFER)
        self.discarded_writes += 1
        return LandingWindow(transfer, offset, length, is_open=False)

    def _refuse(self, refusal: ClaimRefusal) -> ClaimRefusal:
        self.refused_writes += 1
        return refusal

    def arrived(self, window: LandingWindow) -> None:
        """All bytes of the window are written. Nothing happens when it was closed meanwhile."""
        record = self._transfers.get(window.transfer)
        if record is None or not window.is_open:
            return
        window.is_open = False
        record.windows.discard(window)
        start = stream_offset(record.spans, Extent(window.offset, window.length))
        if start is not None:
            record.arrived.add(start, start + window.length)

    def arrived_to(self, transfer: int, start: int) -> int:
        """End of the stream bytes that arrived from `start` on without a gap."""
        return self._transfers[transfer].arrived.covered_to(start)

    def first_gap(self, transfer: int) -> tuple[int, int] | None:
        return self._transfers[transfer].arrived.first_gap()

    # Ending ----------------------------------------------------------------------------------------------------------

    def seal(self, transfer: int) -> None:
        self._close_windows(self._transfers[transfer])
        self._transfers[transfer].state = SpanState.SEALED

    def scattered(self, transfer: int) -> None:
        self._transfers[transfer].state = SpanState.SCATTERED

    def stop_writes(self, transfer: int) -> None:
        """Close every open window and swallow later claims; the bytes stay reserved until `release` or `quarantine`."""
        record = self._transfers[transfer]
        self._close_windows(record)
        record.is_stopped = True

    def release(self, transfer: int, *, writes_may_follow: bool = False) -> None:
        """Free the spans. With `writes_may_follow` the peer's later claims are swallowed until `forget`. Idempotent."""
        record = self._transfers.pop(transfer, None)
        if record is None:
            return
        self._close_windows(record)
        self._give_back(record.reserved)
        if writes_may_follow:
            self._revoked[transfer] = record.peer

    def quarantine(self, transfer: int) -> None:
        """Keep the spans: a write that cannot be stopped may still come. `release` frees them once that is
        disproved."""
        record = self._transfers[transfer]
        self._close_windows(record)
        record.state = SpanState.QUARANTINED

    def forget(self, transfer: int) -> None:
        """The peer reported that nothing of this transfer is in flight any more, or its link is gone."""
        self._revoked.pop(transfer, None)

    def _close_windows(self, record: _Transfer) -> None:
        for window in record.windows:
            window.is_open = False
        record.windows.clear()

    # Looking ---------------------------------------------------------------------------------------------------------

    def holder_of(self, extent: Extent) -> bytes | None:
        """The peer whose spans hold all of `extent`, quarantined ones included; None when it is free or split."""
        for record in self._transfers.values():
            if any(held.offset <= extent.offset and extent.end <= held.end for held in record.reserved):
                return record.peer
        return None

    def holder_of_transfer(self, transfer: int) -> bytes | None:
        """The peer that this transfer is granted to, or was while late writes may follow; None when it is unknown."""
        record = self._transfers.get(transfer)
        return self._revoked.get(transfer) if record is None else record.peer

    @property
    def quarantined_bytes(self) -> int:
        return sum(t.reserved_bytes for t in self._transfers.values() if t.state is SpanState.QUARANTINED)

    @property
    def quarantine_is_full(self) -> bool:
        """More is quarantined than allowed: the worker should drain and come back under a new epoch."""
        return self.quarantined_bytes > self._quarantine_limit

    def stats(self) -> LandingStats:
        by_state = dict.fromkeys(SpanState, 0)
        for record in self._transfers.values():
            by_state[record.state] += record.reserved_bytes
        return LandingStats(
            total_bytes=self.total_bytes,
            free_bytes=sum(hole.length for hole in self._free),
            by_state=by_state,
            largest_free_bytes=max((hole.length for hole in self._free), default=0),
            refused_writes=self.refused_writes,
            discarded_writes=self.discarded_writes,
            quarantine_is_full=self.quarantine_is_full,
        )


def full_quarantine(stats: LandingStats) -> str | None:
    """Why this registration of the landing region should end, if so: only a fresh process gets the bytes back."""
    if not stats.quarantine_is_full:
        return None
    return f"{stats.by_state[SpanState.QUARANTINED]:,} of {stats.total_bytes:,} landing bytes are quarantined"
