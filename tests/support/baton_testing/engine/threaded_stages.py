"""The stages of a pipeline as threads of the test's process, which hand tensors to each other in queues."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import torch
from torch import Tensor

from baton_wire.models.sharding.stages import StageShare, stage_shares

T = TypeVar("T")
WAIT_S: Final = 300.0
"""For a stage that never sends: the machine may be busy."""


class ThreadRelay:
    """One stage's side of the queues between the stages."""

    def __init__(self, share: StageShare, queues: list[queue.SimpleQueue[Tensor]]) -> None:
        self.share = share
        self._queues = queues

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        residual = self._queues[self.share.stage - 1].get(timeout=WAIT_S)
        assert (tuple(residual.shape), residual.dtype) == (shape, dtype), "stages take different steps"
        return residual

    def send(self, residual: Tensor) -> None:
        self._queues[self.share.stage].put(residual.clone())


def run_stages(layers: int, stages: int, run: Callable[[ThreadRelay], T]) -> list[T]:
    """Run every stage in a thread of its own. Returns what they return, in order."""
    queues = [queue.SimpleQueue[Tensor]() for _ in range(stages - 1)]
    with ThreadPoolExecutor(stages, "stage") as threads:
        relays = [ThreadRelay(share, queues) for share in stage_shares(layers, stages)]
        return list(threads.map(run, relays))
