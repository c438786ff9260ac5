"""The seam between hand-overs and the way bytes travel.

A prefill worker has one `Sender` of each transport, which makes a `Writer` for each linked decode worker. A decode
worker has one `Landing` of each. A `Transport` is the row of the table that makes both. The landing side's `descriptor`
is the data with which writers reach the region, opaque to everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import DataConnection
from baton_kv_transfer.transports.device import DeviceLanding, DeviceMemory
from baton_wire.messages.pair_link import PairHello


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
"""None: the bytes have reached the peer. Otherwise the reason why not. Nothing reads the source any more. Never called
inside `write`."""

FromDevice = Callable[[Callable[[], Sequence[Extent]], Sequence[Extent], WriteDone], None]
"""Write from these extents of the pool on a GPU to those landing bytes. The source is asked for when it is needed."""


class Writer(Protocol):
    """The prefill worker's way into one decode worker's landing region."""

    @property
    def bytes_sent(self) -> int:
        """Payload of the landing extents that the peer took in whole: no headers, the landing side counts the same."""
        ...

    @property
    def lane(self) -> str:
        """Name of the lane that the bytes really take, for reports."""
        ...

    @property
    def from_device(self) -> FromDevice | None:
        """For whole blocks of a pool on a GPU; None where bytes go through the host."""
        ...

    def probe(self, length: int, done: WriteDone) -> None:
        """Write at most `bandwidth.PROBE_BYTES` to unused memory; not counted as sent."""
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
        """All bytes of the window are written."""
        ...

    def breached(self, peer: bytes, detail: str) -> None:
        """The peer broke the protocol, or a connection of it broke; it must be cut."""
        ...


PROBE_TRANSFER = 0
"""Never granted: a guarded landing side reads its bytes and drops them. For measuring."""


@dataclass(frozen=True, slots=True)
class SenderParts:
    """The memory that a prefill worker sends from, and its options."""

    epoch: bytes
    lanes: int
    """Data connections per pair, where a transport may choose."""
    regions: Sequence[memoryview]
    """The pool of each rank that is host memory."""
    device: DeviceMemory | None
    """The pool where it is a GPU's."""


class Sender(Protocol):
    """The prefill worker's side: makes writers, in the loop of the transfer's thread."""

    @property
    def connections(self) -> int:
        """Number of data connections that a writer needs."""
        ...

    async def start(self) -> None:
        """Raises TransferError when the transport does not come up."""
        ...

    async def stop(self) -> None:
        """After the writers were closed."""
        ...

    async def open(
        self, hello: PairHello, connections: Sequence[DataConnection], on_lost: Callable[[str], None], timeout_s: float
    ) -> Writer:
        """A writer to the worker that sent `hello`. Raises TransferError; the connections are the caller's then.

        `on_lost` is called once when the way breaks; every open write has then been given up.
        """
        ...


@dataclass(frozen=True, slots=True)
class LandingParts:
    """The memory where a decode worker's KV lands, and the callbacks of its owner."""

    epoch: bytes
    region: memoryview
    device: DeviceLanding | None
    """Where one-sided writes land instead of in `region`."""
    guard: LandingGuard
    on_writes_ended: Callable[[int], None]
    """Called for a link that is down, once nothing granted over it can be written any more (one-sided)."""
    handshake_s: float


class Landing(Protocol):
    """The decode worker's side."""

    one_sided: bool
    """Writes happen without this process taking part: no guard is asked and nothing can be stopped from here."""

    @property
    def descriptor(self) -> bytes:
        """Known once started; empty where writers need none."""
        ...

    @property
    def bytes_received(self) -> int:
        """Payload of the landing extents that came in whole, swallowed ones among them: no headers."""
        ...

    @property
    def lanes(self) -> int:
        """Open data connections."""
        ...

    async def start(self) -> None:
        """Raises TransferError when the transport does not come up."""
        ...

    async def stop(self) -> None: ...

    def attach(self, connection: DataConnection, peer: bytes, link: int) -> None:
        """An authenticated data connection of a linked worker, closed here from now on."""
        ...

    def link_down(self, peer: bytes, link: int, is_stranger: Callable[[], bool]) -> None:
        """The control link is down. Unless one-sided: nothing of this peer writes any more when this returns.

        `is_stranger`: whether no data connection of the peer came without a link, asked after some time.
        """
        ...


def _always() -> bool:
    return True


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Transport:
    """A row of the table."""

    name: str
    """The name in hellos."""
    send: Callable[[SenderParts], Sender]
    land: Callable[[LandingParts], Landing]
    reaches_devices: bool = False
    """True if it can use the memory of a GPU."""
    is_installed: Callable[[], bool] = _always
    needs: str = ""
    """The extra or package that it needs."""
    suits: Callable[[], bool] = _always
    """True if this machine has hardware that makes it worth offering by default."""
    load: Callable[[], None] = _nothing
    """Brings its libraries into this process, from any thread: what the first `start` would take long for. May be left
    out. Raises TransferError."""


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
