"""The KV cache's memory: one tensor of blocks, and its bytes as the hand-over sees them (checksums, packing,
scattering).

Which block belongs to whom is the block pool's business (`blocks.py`); this file only owns the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from baton_engine.memory.host_memory import HugePageArena
from baton_engine.model.config import ModelConfig
from baton_kernels.kv_checksum import kv_checksums
from baton_kernels.kv_copy import copy_blocks, pack_kv, scatter_kv
from baton_wire.kv_shape import KvGeometry, PoolPart


def kv_geometry(config: ModelConfig, dtype: torch.dtype, block_tokens: int) -> KvGeometry:
    """The shape of a model's blocks when its keys and values are kept in `dtype`."""
    return KvGeometry(config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize, block_tokens)


class KvPool:
    """`tensor` is [num_blocks, layers, 2, kv_heads, block_tokens, head_dim], contiguous, zero at first.

    `blocks` below is a sequence's block table in logical order; unit u covers its tokens [u · unit_tokens, (u + 1) ·
    unit_tokens), of which `part` (None: all) says the layers and heads. Checksums come as little-endian uint64, one per
    piece, in stream order. Raises ValueError when units leave the blocks or unit_tokens does not divide the pool's
    block, MemoryError when the pool does not fit.
    """

    def __init__(self, geometry: KvGeometry, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        if geometry.element_bytes != dtype.itemsize:
            raise ValueError(f"element_bytes: {geometry.element_bytes} is not the size of {dtype} ({dtype.itemsize})")
        self.geometry = geometry
        self.num_blocks = num_blocks
        shape = (num_blocks, geometry.layers, 2, geometry.kv_heads, geometry.block_tokens, geometry.head_dim)
        try:
            self.tensor = _zeros(shape, dtype, device)
        except (MemoryError, RuntimeError) as error:  # torch has no narrower type for a failed allocation
            total = num_blocks * geometry.block_bytes
            raise MemoryError(
                f"KV cache: {num_blocks} blocks of {geometry.block_bytes} bytes ({total}) do not fit"
            ) from error

    def region(self) -> memoryview:
        """The whole pool as writable bytes without a copy. Only on the CPU; valid as long as the pool."""
        if self.tensor.device.type != "cpu":
            raise ValueError(f"region: a pool on {self.tensor.device} has no bytes on the host")
        return self.tensor.view(torch.uint8).view(-1).numpy().data

    def checksums(
        self, blocks: Sequence[int], unit_tokens: int, first_unit: int, end_unit: int, part: PoolPart | None = None
    ) -> bytes:
        return _as_bytes(kv_checksums(self._of(part), self._table(blocks), unit_tokens, first_unit, end_unit))

    def pack(
        self,
        blocks: Sequence[int],
        unit_tokens: int,
        first_unit: int,
        end_unit: int,
        out: memoryview,
        part: PoolPart | None = None,
    ) -> None:
        """Gather the units into `out`, which must be writable and exactly as long as they are."""
        host = self._stream(out)
        stream = torch.empty_like(host, device=self.tensor.device)
        target = host if self.tensor.device.type == "cpu" else stream
        pack_kv(self._of(part), self._table(blocks), unit_tokens, first_unit, end_unit, target)
        if target is not host:
            host.copy_(target)

    def scatter(
        self,
        stream: memoryview,
        blocks: Sequence[int],
        unit_tokens: int,
        first_unit: int,
        end_unit: int,
        part: PoolPart | None = None,
        with_checksums: bool = True,
    ) -> bytes:
        """Write the stream's units into the blocks and return the checksums of what was read from the stream.

        Without checksums nothing is returned; on a GPU they cost nothing and are computed all the same.
        """
        source = self._stream(stream).to(self.tensor.device)
        if not with_checksums and not source.is_cuda:
            scatter_kv(source, self._of(part), self._table(blocks), unit_tokens, first_unit, end_unit)
            return b""
        return self.scatter_elements(source, blocks, unit_tokens, first_unit, end_unit, part)

    def scatter_elements(
        self,
        source: Tensor,
        blocks: Sequence[int],
        unit_tokens: int,
        first_unit: int,
        end_unit: int,
        part: PoolPart | None = None,
        groups: int = 1,
    ) -> bytes:
        """As `scatter`, from a flat tensor of the pool's dtype on its device; done when it returns.

        The stream holds all units of the first of `groups` equal groups of layers, then those of the next.
        """
        pool = self._of(part)
        shape = (groups, end_unit - first_unit, pool.shape[1] // groups, 2)
        checksums = torch.empty(shape, dtype=torch.int64, device=self.tensor.device)
        scatter_kv(source, pool, self._table(blocks), unit_tokens, first_unit, end_unit, checksums, groups)
        return _as_bytes(checksums)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks; none may be source and target at once."""
        copy_blocks(self.tensor, self._table(sources), self._table(targets))

    def _of(self, part: PoolPart | None) -> Tensor:
        """A view of some layers and heads of all blocks. On a GPU all heads: the kernels count on it."""
        if part is None:
            return self.tensor
        heads = slice(part.first_head, part.end_head)
        if self.tensor.is_cuda and part.end_head - part.first_head != self.geometry.kv_heads:
            raise ValueError(f"part: heads [{part.first_head}, {part.end_head}) of {self.geometry.kv_heads} on a GPU")
        return self.tensor[:, part.first_layer : part.end_layer, :, heads]

    def _table(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.tensor.device)

    def _stream(self, data: memoryview) -> Tensor:
        """The bytes as elements of the pool's dtype; without a copy when they are writable."""
        if data.nbytes % self.tensor.element_size():
            raise ValueError(f"stream: {data.nbytes} bytes are no whole number of {self.tensor.dtype} elements")
        if data.nbytes == 0:
            return torch.empty(0, dtype=self.tensor.dtype)
        return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=self.tensor.dtype)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose memory is really there: a step must not be the first to touch it."""
    if device.type == "cpu":
        return HugePageArena().empty(shape, dtype).zero_()
    return torch.zeros(shape, dtype=dtype, device=device)


def _as_bytes(checksums: Tensor) -> bytes:
    values = checksums.cpu().numpy()
    return (values if sys.byteorder == "little" else values.byteswap()).tobytes()
