"""The exchange of tensors between the ranks of one worker: its interface, and the one of a worker without ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

from baton_kernels.dense.rms_norm import add_rms_norm


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

    def all_reduce_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """`add_rms_norm` of the sum of the ranks' tensors [T, H]: the normed rows and the new residual."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[..., n] of each rank → [..., ranks · n], in the order of the ranks."""
        ...

    def check(self) -> None:
        """Raises RankLostError where another rank did not arrive at an exchange that this one has launched."""
        ...


class RankLostError(RuntimeError):
    """Another rank of the worker died or stalled; nothing that this rank computes can be used any more."""


class SingleRank:
    """The collective of a worker with one rank: tensors come back as they are."""

    share: Final = WHOLE

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_reduce_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def check(self) -> None:
        """Do nothing: no other rank can be lost."""


SINGLE_RANK: Final = SingleRank()
