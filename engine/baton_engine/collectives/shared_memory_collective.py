"""Sums and exchanges between ranks that are processes of one machine, through memory that all of them map.

Each rank has two slots in the memory and uses them in turn: it writes its tensor into one, counts up its counter for
every other rank, and reads the others' slots when theirs have counted up. A rank that writes into a slot again has been
through the exchange between, so that every other rank is done reading what the slot held before. Larger tensors go
through the slots piece by piece. A rank that waits sleeps at once: where all ranks share few cores, looking again and
again takes the time that the others need.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from baton_engine.collectives.collective import RankLostError, RankShare
from baton_engine.collectives.event_counter import EventCounter
from baton_engine.memory.shared_memory import SharedMemory
from baton_kernels.dense.rms_norm import add_rms_norm

SLOT_BYTES: Final = 1 << 20
DEADLINE_S: Final = 300.0
"""Longest wait for another rank. The worker's process ends all ranks far sooner when one of them is lost; a rank that
is merely slow computes one step."""
_HEAD: Final = struct.Struct("<QQ")
_HEAD_BYTES: Final = 64
_SLOT_STRIDE: Final = _HEAD_BYTES + SLOT_BYTES
_EXACT: Final = (torch.float32, torch.float64)
"""Types in which sums are added up; narrower ones are added up in float32 and rounded once."""


@dataclass(frozen=True, slots=True)
class CollectiveParts:
    """The memory and the counters of one group of ranks: made once, mapped by every rank."""

    memory: SharedMemory
    arrivals: tuple[tuple[EventCounter, ...], ...]
    """[i][j]: rank i adds one for each of its pieces that rank j may read. [i][i] is unused."""

    @classmethod
    def create(cls, ranks: int) -> Self:
        memory = SharedMemory.create("baton-sums", 2 * ranks * _SLOT_STRIDE)
        return cls(memory, tuple(tuple(EventCounter.create() for _ in range(ranks)) for _ in range(ranks)))

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.memory.descriptor, *(counter.descriptor for row in self.arrivals for counter in row))

    @classmethod
    def attach(cls, descriptors: Sequence[int], ranks: int) -> Self:
        """Map the parts that another process created, from its `descriptors`."""
        memory, *counters = descriptors
        rows = [counters[start : start + ranks] for start in range(0, ranks * ranks, ranks)]
        arrivals = tuple(tuple(EventCounter(descriptor) for descriptor in row) for row in rows)
        return cls(SharedMemory(memory, 2 * ranks * _SLOT_STRIDE), arrivals)

    def close(self) -> None:
        """Close the descriptors; the memory stays mapped while a tensor uses it."""
        self.memory.close_descriptor()
        for row in self.arrivals:
            for counter in row:
                counter.close()


class SharedMemoryCollective:
    """One rank's `Collective` over the parts of its group. One thread of the rank uses it."""

    def __init__(self, share: RankShare, parts: CollectiveParts, deadline_s: float = DEADLINE_S) -> None:
        self._share = share
        self._others = [rank for rank in range(share.ranks) if rank != share.rank]
        self._parts = parts
        self._deadline_s = deadline_s
        self._turn = 0
        self._ahead = [0] * share.ranks
        """Pieces of each other rank that have arrived and are not read yet: it may be one turn ahead."""
        self._views: dict[tuple[int, int, torch.dtype], Tensor] = {}

    @property
    def share(self) -> RankShare:
        return self._share

    def all_reduce(self, x: Tensor) -> Tensor:
        total = torch.empty_like(x, memory_format=torch.contiguous_format)
        flat = total.view(-1)
        for begin, end, parts in self._exchange(x):
            piece = flat[begin:end]
            if x.dtype in _EXACT:
                piece.copy_(parts[0])
                for part in parts[1:]:
                    piece.add_(part)
            else:
                wide = parts[0].float()
                for part in parts[1:]:
                    wide.add_(part)
                piece.copy_(wide)
        return total

    def all_reduce_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(self.all_reduce(x), residual, weight, eps)

    def check(self) -> None:
        """Do nothing: every exchange has waited for all ranks."""

    def all_gather(self, x: Tensor) -> Tensor:
        ranks = self._share.ranks
        gathered = torch.empty((ranks, x.numel()), dtype=x.dtype)
        for begin, end, parts in self._exchange(x):
            for rank, part in enumerate(parts):
                gathered[rank, begin:end].copy_(part)
        return gathered.view(ranks, *x.shape).movedim(0, -2).reshape(*x.shape[:-1], ranks * x.shape[-1])

    def _exchange(self, x: Tensor) -> Iterator[tuple[int, int, list[Tensor]]]:
        """Exchange a tensor piece by piece: where each piece begins and ends in the flat tensor, and the same piece of
        every rank, which is valid until the next one."""
        flat = x.reshape(-1)
        most = SLOT_BYTES // flat.element_size()
        for begin in range(0, flat.numel(), most):
            end = min(begin + most, flat.numel())
            size, half = (end - begin) * flat.element_size(), self._turn % 2
            rank = self._share.rank
            self._view(half, rank, x.dtype)[: end - begin].copy_(flat[begin:end])
            _HEAD.pack_into(self._parts.memory.bytes, self._offset(half, rank), self._turn, size)
            for other in self._others:
                self._parts.arrivals[rank][other].add()
            for other in self._others:
                self._await(other, half, size)
            self._turn += 1
            yield begin, end, [self._view(half, peer, x.dtype)[: end - begin] for peer in range(self._share.ranks)]

    def _await(self, other: int, half: int, size: int) -> None:
        """Wait until the other rank's piece of this turn is there."""
        counter = self._parts.arrivals[other][self._share.rank]
        until_s = time.monotonic() + self._deadline_s
        while self._ahead[other] == 0:
            self._ahead[other] += counter.wait(max(0.0, until_s - time.monotonic()))
            if self._ahead[other] == 0 and time.monotonic() >= until_s:
                raise RankLostError(f"rank {other} did not arrive at an exchange within {self._deadline_s:g} s")
        self._ahead[other] -= 1
        head = _HEAD.unpack_from(self._parts.memory.bytes, self._offset(half, other))
        if head != (self._turn, size):
            raise RankLostError(
                f"rank {other} exchanged {head[1]} bytes in turn {head[0]}, rank {self._share.rank} "
                f"{size} in turn {self._turn}"
            )

    def _offset(self, half: int, rank: int) -> int:
        return (2 * rank + half) * _SLOT_STRIDE

    def _view(self, half: int, rank: int, dtype: torch.dtype) -> Tensor:
        view = self._views.get((half, rank, dtype))
        if view is None:
            with torch.inference_mode(mode=False):  # a tensor of inference could not be written to elsewhere
                offset = self._offset(half, rank) + _HEAD_BYTES
                count = SLOT_BYTES // dtype.itemsize
                view = torch.frombuffer(self._parts.memory.bytes, dtype=dtype, count=count, offset=offset)
            self._views[half, rank, dtype] = view
        return view
