"""Rings between the stages of a pipeline: each carries the residual stream of one stage to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from baton_engine.collectives.collective import RankLostError
from baton_engine.ranks.byte_ring import RingParts, RingReader, RingWriter
from baton_wire.models.sharding.stages import StageShare

RING_BYTES: Final = 32 << 20
"""A stage goes on to the next step while its neighbour still computes, as long as its rows fit: 2,048 of 4,096 numbers
of four bytes."""
STEP_S: Final = 600.0
"""Longest step of a neighbour. A neighbour that dies or stops ends this process far sooner."""


def create_links(stages: int) -> list[RingParts]:
    """The rings of a pipeline, by the stage that writes."""
    return [RingParts.create(RING_BYTES) for _ in range(stages - 1)]


def attach_links(descriptors: Sequence[int], per_ring: int) -> list[RingParts]:
    """Map the rings that another process created, from their `descriptors`."""
    places = range(0, len(descriptors), per_ring)
    return [RingParts.attach(descriptors[place : place + per_ring], RING_BYTES) for place in places]


class RingRelay:
    """Implements `StageRelay`. One thread uses it."""

    def __init__(self, share: StageShare, links: Sequence[RingParts]) -> None:
        self.share = share
        self._reader = None if share.is_first else RingReader(links[share.stage - 1])
        self._writer = None if share.is_last else RingWriter(links[share.stage])

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        assert self._reader is not None, "the first stage receives nothing"
        frame = self._reader.receive(STEP_S)
        if frame is None:
            raise RankLostError(f"stage {self.share.stage - 1} sent nothing for {STEP_S:g} s")
        wanted = torch.Size(shape).numel() * dtype.itemsize
        if len(frame) != wanted:
            raise RankLostError(f"stage {self.share.stage - 1} sent {len(frame)} bytes where {wanted} were due")
        return torch.frombuffer(bytearray(frame), dtype=dtype).view(shape)

    def send(self, residual: Tensor) -> None:
        assert self._writer is not None, "the last stage sends nothing"
        self._writer.send(residual.contiguous().view(torch.uint8).numpy().tobytes(), STEP_S)
