"""The ranks of one worker as threads of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import torch
from torch import Tensor

from baton_engine.collectives.collective import RankLostError, RankShare
from baton_kernels.dense.rms_norm import add_rms_norm

T = TypeVar("T")
WAIT_S: Final = 300.0
"""For a rank that never arrives: the machine may be busy."""


class ThreadMeeting:
    """Where the ranks' threads leave their tensors for each other."""

    def __init__(self, ranks: int) -> None:
        self.tensors: list[Tensor] = [torch.empty(0)] * ranks
        self.barrier = threading.Barrier(ranks, timeout=WAIT_S)


class ThreadCollective:
    """One rank's side of a meeting. Counts its calls and the elements that it brought."""

    def __init__(self, share: RankShare, meeting: ThreadMeeting) -> None:
        self.share = share
        self._meeting = meeting
        self.calls = 0
        self.elements = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sums of narrow types are added up in float32."""
        first, *others = self._exchange(x)
        total = first.to(torch.float64 if x.dtype == torch.float64 else torch.float32, copy=True)
        for other in others:
            total += other
        return total.to(x.dtype)

    def all_reduce_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(self.all_reduce(x), residual, weight, eps)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(x), -1)

    def check(self) -> None:
        """Do nothing: every exchange has waited for all ranks."""

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.calls += 1
        self.elements += x.numel()
        try:
            self._meeting.tensors[self.share.rank] = x.clone()
            self._meeting.barrier.wait()
            brought = list(self._meeting.tensors)
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RankLostError("another rank's thread ended") from error
        assert len({(part.shape, part.dtype) for part in brought}) == 1, "ranks brought different tensors"
        return brought


def run_ranks(ranks: int, run: Callable[[ThreadCollective], T]) -> list[T]:
    """Run every rank in a thread of its own. Returns what they return, in the order of the ranks."""
    meeting = ThreadMeeting(ranks)

    def one(rank: int) -> T:
        try:
            return run(ThreadCollective(RankShare(rank, ranks), meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks, "rank") as threads:
        futures = [threads.submit(one, rank) for rank in range(ranks)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, RankLostError)):
            raise error
        return [future.result() for future in futures]
