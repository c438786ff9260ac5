"""The seam to a GPU's memory: what UCX registers of a pool or of a landing region there, and who scatters from it.

Workers implement it; nothing here knows PyTorch. With the memory of the host behind it the same code runs without a
GPU, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton_kv_transfer.layout import Extent
from baton_kv_transfer.transports.ucx.binding import Memory
from baton_wire.kv_shape import PoolPart


class DeviceMemory(Protocol):
    """Bytes that UCX writes from or to. They stay where they are for as long as the transfer runs."""

    @property
    def memory(self) -> Memory:
        """The prefill worker's pool, or the decode worker's landing region."""
        ...

    @property
    def probe(self) -> Memory:
        """`bandwidth.PROBE_BYTES` of the same kind that nobody reads, for measuring."""
        ...

    def enter(self) -> None:
        """Called first in a thread that is going to call UCX, which looks for the thread's CUDA context."""
        ...


class DeviceLanding(DeviceMemory, Protocol):
    """A decode worker's landing region on a GPU, beside the pool that it is scattered into."""

    def scatter(
        self,
        landing: Extent,
        blocks: Sequence[int],
        unit_tokens: int,
        first_unit: int,
        end_unit: int,
        part: PoolPart | None = None,
        groups: int = 1,
        /,
    ) -> bytes:
        """Write units [first_unit, end_unit), which lie at `landing`, into the blocks; the checksums of what was read.

        As `KvSink.scatter`, with `decode_records.Scatter`'s `groups`; when it returns the blocks may be read.
        """
        ...
