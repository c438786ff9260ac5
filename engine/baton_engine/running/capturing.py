"""Recording work on a GPU as CUDA graphs that share their memory."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from baton_kernels.dense.linear import recording

T = TypeVar("T")
LayersWritten = Callable[[int], None]


class Recorder:
    """One stream and one pool of memory for all graphs: the next graph takes what the last one left free."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._memory: Any = torch.cuda.graph_pool_handle()

    def capture(
        self, rehearse: Callable[[], None], work: Callable[[LayersWritten], None], ends: Container[int] = ()
    ) -> tuple[torch.cuda.CUDAGraph, ...]:
        """Rehearse, so that no kernel is compiled, loaded or chosen while recording, then record the work.

        When the work reports a number of written layers that is in `ends`, a graph ends and the next begins.
        """
        graphs = [torch.cuda.CUDAGraph()]

        def begin() -> None:
            graphs[-1].capture_begin(pool=self._memory, capture_error_mode="thread_local")

        def written(layers: int) -> None:
            if layers in ends:
                graphs[-1].capture_end()
                graphs.append(torch.cuda.CUDAGraph())
                begin()

        self._stream.wait_stream(torch.cuda.current_stream())
        with recording(), torch.cuda.stream(self._stream):
            rehearse()
            with no_garbage_collection():
                begin()
                try:
                    work(written)
                finally:
                    graphs[-1].capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return tuple(graphs)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection: freeing a graph of an earlier engine would end a recording with an error."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def smallest_at_least(by_size: Mapping[int, T]) -> tuple[T, ...]:
    """For each number of rows, 0 included, the capture of the smallest size that holds them."""
    ascending = sorted(by_size)
    sizes = np.array(ascending)[np.searchsorted(ascending, np.arange(ascending[-1] + 1))]
    return tuple(by_size[int(size)] for size in sizes)
