"""A worker's memory on a GPU as a transport sees it: the prefill worker's pool, the decode worker's landing region.

None of it passes through the host: the transport copies from pool blocks to landing bytes, and a kernel scatters them.
Both classes work on any device; tests use them on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton_engine.memory.kv_pool import KvPool
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.prefill.carrier import ordinary_memory
from baton_kv_transfer.transports.bandwidth import PROBE_BYTES
from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.seam import Transport
from baton_wire.kv_shape import Units


class PoolDevice:
    """`DeviceMemory` of a prefill worker."""

    def __init__(self, pool: KvPool) -> None:
        self._device = pool.tensor.device
        self._probe, self._allocation = allocate_apart(PROBE_BYTES, self._device)
        self.memory = memory_of(pool.tensor)
        self.probe = memory_of(self._probe)

    def enter(self) -> None:
        enter(self._device)


class LandingDevice:
    """`DeviceLanding` of a decode worker: its own allocation, since a peer that maps a part of one maps all of it."""

    def __init__(self, pool: KvPool, landing_bytes: int) -> None:
        """Raises MemoryError when it does not fit."""
        self._pool = pool
        self._device = pool.tensor.device
        try:
            self._bytes, self._allocation = allocate_apart(landing_bytes + PROBE_BYTES, self._device)
        except RuntimeError as error:  # torch has no narrower type for a failed allocation
            raise MemoryError(f"landing region: {landing_bytes} bytes do not fit on {self._device}") from error
        self.memory = memory_of(self._bytes[:landing_bytes])
        self.probe = memory_of(self._bytes[landing_bytes:])

    def enter(self) -> None:
        enter(self._device)

    def scatter(self, landing: Extent, units: Units) -> bytes:
        if landing.end > self.memory.length:
            raise ValueError(f"landing: bytes to {landing.end} of {self.memory.length}")
        stream = self._bytes[landing.offset : landing.end].view(self._pool.tensor.dtype)
        return self._pool.scatter_elements(stream, units)


def pool_device(pool: KvPool, transports: Sequence[Transport]) -> PoolDevice | None:
    """The pool, when it is on a GPU and a transport that reaches it may be used."""
    return PoolDevice(pool) if pool.tensor.is_cuda and any(map(_reaches_devices, transports)) else None


def landing_device(pool: KvPool, landing_bytes: int, transports: Sequence[Transport]) -> LandingDevice | None:
    """A landing region next to the pool, when the pool is on a GPU and a transport that reaches it may be used.

    Raises MemoryError.
    """
    is_reached = pool.tensor.is_cuda and any(map(_reaches_devices, transports))
    return LandingDevice(pool, landing_bytes) if is_reached else None


def _reaches_devices(transport: Transport) -> bool:
    return transport.reaches_devices


def memory_of(tensor: Tensor) -> MemoryRange:
    """The address range of a contiguous tensor."""
    return MemoryRange(tensor.data_ptr(), tensor.nbytes, tensor.device.index if tensor.is_cuda else None)


def allocate_apart(length: int, device: torch.device) -> tuple[Tensor, object]:
    """Allocate zero bytes [length], with nothing else in the allocation. Returns them and an object to keep as long.

    Raises RuntimeError when they do not fit.
    """
    if device.type == "cpu":
        return torch.zeros(length, dtype=torch.uint8), None
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device):
        return torch.zeros(length, dtype=torch.uint8, device=device), pool


def enter(device: torch.device) -> None:
    """Give this thread the device's CUDA context."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)


def staging(pool: KvPool) -> Callable[[int], memoryview]:
    """Allocator of host memory to pack into: for a GPU pinned memory, which it reaches directly and which is reused."""
    if not pool.tensor.is_cuda:
        return ordinary_memory
    return lambda length: torch.empty(length, dtype=torch.uint8, pin_memory=True).numpy().data
