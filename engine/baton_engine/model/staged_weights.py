"""Large tensors on their way from mapped files to a GPU: threads copy pieces into pinned memory, and on from there.

A plain copy of a mapped file goes through one thread, page by page, and then through the driver's own pinned memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

import numpy as np
import torch
from torch import Tensor

from baton_engine.model.tensor_headers import TensorHeader
from baton_engine.model.weights import WeightSource

PIECE_BYTES: Final = 16 << 20
"""A GPU takes it in 0.3 ms."""
MOST_THREADS: Final = 8


class _Lane:
    """Memory that a piece passes through, and the stream of its copy; one piece at a time."""

    def __init__(self, piece_bytes: int, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._staged = torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=self._stream is not None)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy bytes, and wait until they have arrived."""
        staged = self._staged[: len(source)]
        np.copyto(staged.numpy(), source.numpy())  # without the interpreter's lock, on this thread alone
        if self._stream is None:
            target.copy_(staged)
            return
        with torch.cuda.stream(self._stream):
            target.copy_(staged, non_blocking=True)
        self._stream.synchronize()


class StagedWeights:
    """The tensors of `source`, moved to the device. Valid inside `staged`."""

    def __init__(
        self, source: WeightSource, device: torch.device, piece_bytes: int, threads: ThreadPoolExecutor, count: int
    ) -> None:
        """`count`: number of threads."""
        self._source, self._device, self._piece_bytes, self._threads = source, device, piece_bytes, threads
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()
        for _ in range(count):
            self._lanes.put(_Lane(piece_bytes, device))

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        return self._source.headers

    def read(self, name: str) -> Tensor:
        tensor = self._source.read(name)
        if tensor.nbytes < self._piece_bytes:
            return tensor.to(self._device)
        source = tensor.reshape(-1).view(torch.uint8)
        target = torch.empty(len(source), dtype=torch.uint8, device=self._device)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # it may still use what the target's memory was
        pieces = zip(torch.split(source, self._piece_bytes), torch.split(target, self._piece_bytes), strict=True)
        for moved in [self._threads.submit(self._move, *piece) for piece in pieces]:
            moved.result()
        return target.view(tensor.dtype).view(tensor.shape)

    @torch.inference_mode()
    def _move(self, source: Tensor, target: Tensor) -> None:
        lane = self._lanes.get_nowait()  # there are as many as threads
        try:
            lane.move(source, target)
        finally:
            self._lanes.put(lane)


@contextmanager
def staged(source: WeightSource, device: torch.device, piece_bytes: int = PIECE_BYTES) -> Iterator[StagedWeights]:
    """Read `source` for a device. Memory that reading needed besides is given back at the end."""
    count = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(count, "weights") as threads:
        yield StagedWeights(source, device, piece_bytes, threads, count)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what is free is about to be counted
