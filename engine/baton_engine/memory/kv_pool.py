"""The KV cache's memory: one tensor of blocks, and its bytes as the hand-over sees them (checksums, packing,
scattering).

Which block belongs to whom is the block pool's business (`blocks.py`); this file only owns the memory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from mmap import mmap

import torch
from torch import Tensor

from baton_engine.memory.host_memory import HugePageArena
from baton_kernels.kv.kv_checksum import kv_checksums
from baton_kernels.kv.kv_copy import copy_blocks, pack_kv, scatter_kv
from baton_kernels.kv.kv_units import UnitRange
from baton_wire.kv_shape import KvGeometry, PoolPart, Units
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.kv_groups import kv_groups

WARM_UNITS = (0, 1, 2)
"""First units: kernels are compiled for 1 and for multiples of 16 apart."""


def kv_geometry(config: DecoderSpec, dtype: torch.dtype, block_tokens: int) -> KvGeometry:
    """The shape of a model's blocks when its keys and values are kept in `dtype`."""
    groups = kv_groups(config)
    layers = max((len(group.layers) for group in groups), default=config.num_layers)
    return KvGeometry(layers, config.num_kv_heads, config.head_dim, dtype.itemsize, block_tokens, groups)


class KvPool:
    """`tensor` is [num_blocks, layers, 2, kv_heads, block_tokens, head_dim], contiguous, zero at first.

    It is `KvSource` and `KvSink` of the KV transfer. Checksums come as little-endian uint64, one per piece, in stream
    order. Raises ValueError when units leave the blocks or their tokens do not divide the pool's block. Raises
    MemoryError when the pool does not fit.
    """

    def __init__(
        self,
        geometry: KvGeometry,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        with_checksums: bool = True,
        memory: mmap | Tensor | None = None,
    ) -> None:
        """`with_checksums`: `scatter` returns checksums. `memory`: the pool's bytes, which other processes may map too:
        of a CPU, or a tensor of bytes on the device; None for memory of its own. They are left as they are."""
        if geometry.element_bytes != dtype.itemsize:
            raise ValueError(f"element_bytes: {geometry.element_bytes} is not the size of {dtype} ({dtype.itemsize})")
        self.geometry = geometry
        self.num_blocks = num_blocks
        shape = (num_blocks, geometry.layers, 2, geometry.kv_heads, geometry.block_tokens, geometry.head_dim)
        if memory is not None and len(memory) < num_blocks * geometry.block_bytes:
            raise ValueError(f"memory: {len(memory)} bytes hold no {num_blocks} blocks of {geometry.block_bytes} bytes")
        try:
            self.tensor = _zeros(shape, dtype, device) if memory is None else _elements(memory, shape, dtype)
        except (MemoryError, RuntimeError) as error:  # torch has no narrower type for a failed allocation
            total = num_blocks * geometry.block_bytes
            raise MemoryError(
                f"KV cache: {num_blocks} blocks of {geometry.block_bytes} bytes ({total}) do not fit"
            ) from error
        self.aside = SideStream(device)
        self._with_checksums = with_checksums
        self._region = self.tensor.view(torch.uint8).view(-1).numpy().data if device.type == "cpu" else None

    def warm_up(self) -> None:
        """Run a hand-over in whole blocks once, so that nothing is compiled or loaded later.

        Block 0 is rewritten with its own bytes; it must not be in use meanwhile.
        """
        block = memoryview(bytearray(self.geometry.block_bytes))
        for units in self._warm_units():
            self.pack(units, block)
            self.checksums(units)
            self.scatter(block, units)

    def rehearse(self) -> None:
        """Launch what `warm_up` launches, and the copies of forked sequences, for `compiled_together`."""
        for units in self._warm_units():
            pool, table, within = self._of(units.part), self._table(units.blocks), _range(units)
            stream = torch.empty_like(self.tensor[0]).view(-1)
            pack_kv(pool, table, within, stream)
            checksums = kv_checksums(pool, table, within)
            scatter_kv(stream, pool, table, within, checksums.view(units.groups, units.count, -1, 2), units.groups)
        first = self._table([0])
        copy_blocks(self.tensor, first, first)

    def _warm_units(self) -> list[Units]:
        """Block 0 as one unit at different places."""
        tokens, whole = self.geometry.block_tokens, self.geometry.whole
        return [Units([0] * (first + 1), tokens, first, first + 1, whole) for first in WARM_UNITS]

    def region(self) -> memoryview | None:
        """The whole pool as writable bytes without a copy, valid as long as the pool; None unless it is on the CPU."""
        return self._region

    def checksums(self, units: Units) -> bytes:
        with self.aside.enter():
            return _as_bytes(kv_checksums(self._of(units.part), self._table(units.blocks), _range(units)))

    def pack(self, units: Units, out: memoryview) -> None:
        """Gather the units into `out`, which must be writable and exactly as long as they are."""
        with self.aside.enter():
            host = self._stream(out)
            stream = torch.empty_like(host, device=self.tensor.device)
            target = host if self.tensor.device.type == "cpu" else stream
            pack_kv(self._of(units.part), self._table(units.blocks), _range(units), target)
            if target is not host:
                host.copy_(target)

    def scatter(self, stream: memoryview, units: Units) -> bytes:
        """Write the stream's units into the blocks, and return the checksums of the bytes read from the stream.

        On a GPU checksums cost nothing and are computed even if they are not asked for.
        """
        with self.aside.enter():
            source = self._stream(stream).to(self.tensor.device)
            if self._with_checksums or source.is_cuda:
                return self.scatter_elements(source, units)
            pool, table = self._of(units.part), self._table(units.blocks)
            scatter_kv(source, pool, table, _range(units), groups=units.groups)
            return b""

    def scatter_elements(self, source: Tensor, units: Units) -> bytes:
        """Scatter from a flat tensor of the pool's dtype on its device. Complete when it returns."""
        with self.aside.enter():
            pool = self._of(units.part)
            shape = (units.groups, units.count, pool.shape[1] // units.groups, 2)
            checksums = torch.empty(shape, dtype=torch.int64, device=self.tensor.device)
            scatter_kv(source, pool, self._table(units.blocks), _range(units), checksums, units.groups)
            return _as_bytes(checksums)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks; none may be source and target at once."""
        copy_blocks(self.tensor, self._table(sources), self._table(targets))

    def _of(self, part: PoolPart) -> Tensor:
        """A view of some layers and heads of all blocks."""
        return self.tensor[:, part.first_layer : part.end_layer, :, part.first_head : part.end_head]

    def _table(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.tensor.device)

    def _stream(self, data: memoryview) -> Tensor:
        """The bytes as elements of the pool's dtype; without a copy when they are writable."""
        if data.nbytes % self.tensor.element_size():
            raise ValueError(f"stream: {data.nbytes} bytes are no whole number of {self.tensor.dtype} elements")
        if data.nbytes == 0:
            return torch.empty(0, dtype=self.tensor.dtype)
        return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=self.tensor.dtype)


class SideStream:
    """The stream on which a worker's transfer uses its device: it need not wait for the engine's launched kernels.

    The KV that it reads is complete before it is asked for (a collected step, an event, a Seal), and the KV that it
    writes is not read before it is done: it needs no events of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def enter(self) -> AbstractContextManager[object]:
        """Send kernels and copies of this thread to the stream while the context lasts."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _range(units: Units) -> UnitRange:
    """The units' range as the kernels take it."""
    return UnitRange(units.tokens, units.first, units.end)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros in memory that is mapped already: a step must not be the first to touch it."""
    if device.type == "cpu":
        return HugePageArena().empty(shape, dtype).zero_()
    return torch.zeros(shape, dtype=dtype, device=device)


def _elements(memory: mmap | Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if isinstance(memory, Tensor):
        return memory[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


def _as_bytes(checksums: Tensor) -> bytes:
    values = checksums.cpu().numpy()
    return (values if sys.byteorder == "little" else values.byteswap()).tobytes()
