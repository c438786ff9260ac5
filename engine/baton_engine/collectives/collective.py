"""The exchange of tensors between the ranks of one worker: its interface, and the one of a worker without ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RankShare:
    """The share of a model that one rank computes: part `rank` of `ranks` equal parts."""

    rank: int
    ranks: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank: {self.rank} of {self.ranks} ranks; allowed: 0 to {self.ranks - 1}")


WHOLE: Final = RankShare(0, 1)


class Collective(Protocol):
    """The ranks of one worker. Every rank makes the same calls in the same order, with tensors of the same shape and
    dtype; each call waits for all ranks. Raises RankLostError where another rank did not arrive in time."""

    @property
    def share(self) -> RankShare: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of the ranks' tensors, added up in the order of the ranks: the same bits at every rank."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[..., n] of each rank → [..., ranks · n], in the order of the ranks."""
        ...


class RankLostError(RuntimeError):
    """Another rank of the worker died or stalled; nothing that this rank computes can be used any more."""


class SingleRank:
    """The collective of a worker with one rank: tensors come back as they are."""

    share: Final = WHOLE

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x


SINGLE_RANK: Final = SingleRank()
