"""The seam to a GPU's memory: the operations that a transport uses on a pool or a landing region there.

Workers implement it; nothing here knows PyTorch. On host memory the same code runs without a GPU,
which is how it is tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton_kv_transfer.layout import Extent
from baton_wire.kv_shape import Units


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """`length` bytes at `address` of this or of another process: of the host, or of the GPU numbered `device`."""

    address: int
    length: int
    device: int | None = None

    def holds(self, other: MemoryRange) -> bool:
        inside = self.address <= other.address and other.address + other.length <= self.address + self.length
        return inside and self.device == other.device


class DeviceMemory(Protocol):
    """Bytes that a transport writes from or to. They stay where they are for as long as the transfer runs."""

    @property
    def memory(self) -> MemoryRange:
        """The prefill worker's pool, or the decode worker's landing region."""
        ...

    @property
    def probe(self) -> MemoryRange:
        """`bandwidth.PROBE_BYTES` of the same kind of memory, unused, for measuring."""
        ...

    def enter(self) -> None:
        """Called first in a thread that is going to call a library that looks for the thread's CUDA context."""
        ...


class DeviceLanding(DeviceMemory, Protocol):
    """A decode worker's landing region on a GPU, next to the pool that it is scattered into."""

    def scatter(self, landing: Extent, units: Units, /) -> bytes:
        """Write the units, which are at `landing`, into their blocks; returns the checksums of what was read.

        As `KvSink.scatter`; when it returns the blocks may be read.
        """
        ...
