"""The regions of ranks in one process: one rank's kernel runs, and finds what the others would have left there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton_kernels.exchange.rank_exchange import rank_sum_reference
from baton_kernels.exchange.rank_region import (
    LANDING_BYTES,
    LANDINGS_AT,
    MAX_RANKS,
    PROGRAMS,
    REGION_BYTES,
    SIGNAL_BYTES,
    SLOT_BYTES,
    STATE_WORDS,
    RankRegion,
)


class RankRegions:
    """Regions on one device, as of a turn in which all other ranks have arrived."""

    def __init__(self, ranks: int, device: str, turn: int = 0, most_looks: int = 3) -> None:
        self.ranks, self.turn = ranks, turn
        self.regions = [torch.zeros(REGION_BYTES, dtype=torch.uint8, device=device) for _ in range(ranks)]
        for region in self.regions:
            region[LANDINGS_AT:].fill_(0xFF)
        self._addresses = torch.tensor([region.data_ptr() for region in self.regions], device=device)
        self._most_looks = most_looks
        self.states = [torch.zeros(STATE_WORDS, dtype=torch.int32, device=device) for _ in range(ranks)]
        for state in self.states:
            state[:PROGRAMS] = turn

    def of(self, rank: int) -> RankRegion:
        return RankRegion(rank, self.ranks, self._addresses, self.states[rank], self._most_looks)

    def signals(self, rank: int) -> Tensor:
        """[PROGRAMS, MAX_RANKS] int32."""
        return self.regions[rank][:SIGNAL_BYTES].view(torch.int32).view(PROGRAMS, MAX_RANKS)

    def slot(self, rank: int, second: bool = False) -> Tensor:
        begin = SIGNAL_BYTES + (self.turn & 1) * 2 * SLOT_BYTES + second * SLOT_BYTES
        return self.regions[rank][begin : begin + SLOT_BYTES]

    def landings(self, rank: int, turn: int | None = None) -> Tensor:
        """[MAX_RANKS, LANDING_BYTES] uint8 of a turn."""
        turn = self.turn if turn is None else turn
        return self.regions[rank][LANDINGS_AT:].view(2, MAX_RANKS, LANDING_BYTES)[turn & 1]

    def run(self, parts: Sequence[Tensor], call: Callable[[Tensor, RankRegion], Tensor]) -> list[Tensor]:
        """Run a call of one turn at every rank, one after the other: what the others bring lies there."""
        return [self._run_rank(rank, parts, call) for rank in range(self.ranks)]

    def _run_rank(self, rank: int, parts: Sequence[Tensor], call: Callable[[Tensor, RankRegion], Tensor]) -> Tensor:
        for other, part in enumerate(parts):
            self.slot(other)[: part.nbytes + 4096].fill_(0xFF)  # not a number, whatever the type
            if other != rank:
                put(self.slot(other), part)
                put(self.slot(other, second=True), _sums_of(other, parts))
                if part.nbytes <= LANDING_BYTES:
                    put(self.landings(rank)[other], part)
        self.signals(rank).fill_(wrapped(2 * self.turn + 2))  # the second signal of the turn
        return call(parts[rank], self.of(rank))


def put(slot: Tensor, values: Tensor) -> None:
    raw = values.contiguous().view(-1).view(torch.uint8)
    slot[: raw.numel()].copy_(raw)


def _sums_of(rank: int, parts: Sequence[Tensor]) -> Tensor:
    """The part of the sum that a rank adds up in a two-shot sum."""
    if not parts[0].is_floating_point():
        return parts[0][:0]
    size = -(-parts[0].numel() // (len(parts) * 64)) * 64
    return rank_sum_reference(parts).view(-1)[rank * size : (rank + 1) * size]


def wrapped(number: int) -> int:
    """A number as 32 bits hold it."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
