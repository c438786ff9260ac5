"""The seam between hand-overs and the way bytes travel: a writer into one peer's landing region, and the landing side.

`tcp` is the implementation between processes, `memory` the deterministic twin; a one-sided one (UCX) fits the same
seam: the landing side's `descriptor` is what its writer needs to reach the region, opaque to everybody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes of `region` at `source`, in order, to the peer's landing bytes at `landing`, in order; equally many."""

    transfer: int
    region: memoryview
    source: tuple[Extent, ...]
    landing: tuple[Extent, ...]

    @property
    def length(self) -> int:
        return sum(extent.length for extent in self.landing)


WriteDone = Callable[[str | None], None]
"""None: the bytes stand at the peer. Else why not; nothing reads the source any more. Never called inside `write`."""


class Writer(Protocol):
    """The prefill worker's way into one decode worker's landing region."""

    @property
    def bytes_sent(self) -> int:
        """Payload of the landing extents that the peer took in whole: no headers, the landing side counts the same."""
        ...

    @property
    def lane(self) -> str:
        """What the bytes really travel over, for reports."""
        ...

    def write(self, write: Write, done: WriteDone) -> None:
        """Start a write. Raises ValueError when source and landing differ in length. `done` is called exactly once."""
        ...

    def close(self, detail: str) -> None:
        """Give every open write up with `detail`. Idempotent."""
        ...


class LandingGuard(Protocol):
    """Decides about every single write; asked by landing sides whose own code writes (never by one-sided ones)."""

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal: ...

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        """The window's bytes stand."""
        ...

    def breached(self, peer: bytes, detail: str) -> None:
        """The peer broke the protocol, or a connection of it broke; it must be cut."""
        ...


PROBE_TRANSFER = 0
"""Never granted to anybody: what a guarded landing side gets for it, it reads and throws away. For measuring."""


class Landing(Protocol):
    """The decode worker's side."""

    one_sided: bool
    """Writes happen without this process taking part: no guard is asked and nothing can be stopped from here."""

    @property
    def descriptor(self) -> bytes: ...

    @property
    def bytes_received(self) -> int:
        """Payload of the landing extents that came in whole, swallowed ones among them: no headers."""
        ...

    def drop(self, peer: bytes) -> None:
        """Unless one-sided: nothing of this peer writes any more when this returns."""
        ...


def slices(write: Write) -> list[tuple[Extent, list[memoryview]]]:
    """Per landing extent the source views that fill it. Raises ValueError when the lengths differ."""
    if sum(extent.length for extent in write.source) != write.length:
        raise ValueError(f"write: {sum(e.length for e in write.source)} source bytes for {write.length} landing bytes")
    pieces = [(extent.offset, extent.length) for extent in write.source]
    result: list[tuple[Extent, list[memoryview]]] = []
    at = 0
    for extent in write.landing:
        views: list[memoryview] = []
        rest = extent.length
        while rest:
            offset, length = pieces[at]
            taken = min(rest, length)
            views.append(write.region[offset : offset + taken])
            rest -= taken
            if taken == length:
                at += 1
            else:
                pieces[at] = (offset + taken, length - taken)
        result.append((extent, views))
    return result
