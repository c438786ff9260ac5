"""Sums and exchanges between ranks with a GPU each, through memory that every GPU maps.

The ranks tell each other their regions through the memory that their processes share, once. From then on only kernels
exchange: their signals and turns are counted on the devices, so that exchanges can be recorded in graphs. The region of
a rank that does not arrive is given up for good, and the rank's process looks after each step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_engine.collectives.collective import Collective, RankLostError, RankShare
from baton_engine.collectives.shared_device_memory import DeviceMemoryHandle
from baton_kernels.dense.rms_norm import add_rms_norm
from baton_kernels.exchange.rank_exchange import norms_together, rank_gather, rank_sum, rank_sum_norm
from baton_kernels.exchange.rank_region import LANDINGS_AT, MOST_LOOKS, REGION_BYTES, STATE_WORDS, RankRegion


class DeviceCollective:
    """One rank's `Collective` over tensors of its GPU. One stream of the rank uses it."""

    def __init__(self, host: Collective, device: torch.device, most_looks: int = MOST_LOOKS) -> None:
        """`host`: the same ranks' exchange of tensors of the host. Waits for all ranks. Raises RankLostError and
        DeviceMemoryError."""
        self._share = host.share
        self._own = torch.zeros(REGION_BYTES, dtype=torch.uint8, device=device)
        self._own[LANDINGS_AT:].fill_(0xFF)
        torch.cuda.synchronize(device)
        addresses = torch.tensor(self._map_regions(host), dtype=torch.int64, device=device)
        state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=device)
        self._region = RankRegion(host.share.rank, host.share.ranks, addresses, state, most_looks)
        self._looking = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lost = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        torch.cuda.synchronize(device)
        host.all_gather(torch.zeros(1))  # all have mapped all regions

    @property
    def share(self) -> RankShare:
        return self._share

    @property
    def device(self) -> torch.device:
        return self._own.device

    @property
    def region(self) -> RankRegion:
        """The memory that the kernels exchange through."""
        return self._region

    def all_reduce(self, x: Tensor) -> Tensor:
        return rank_sum(x, self._region)

    def all_reduce_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if norms_together(x):
            return rank_sum_norm(x, residual, weight, eps, self._region)
        return add_rms_norm(rank_sum(x, self._region), residual, weight, eps)

    def all_gather(self, x: Tensor) -> Tensor:
        return rank_gather(x, self._region)

    def check(self) -> None:
        with torch.cuda.stream(self._looking):  # apart from steps that are launched ahead
            self._lost.copy_(self._region.state[-1:], non_blocking=True)
        self._looking.synchronize()
        if self._lost.item():
            raise RankLostError(f"a GPU did not arrive at an exchange of rank {self._share.rank}")

    def _map_regions(self, host: Collective) -> list[int]:
        """Where each rank's region is in this process."""
        handle = bytearray(DeviceMemoryHandle.of(self._own).to_bytes())
        handles = host.all_gather(torch.frombuffer(handle, dtype=torch.uint8)).view(self._share.ranks, -1)
        return [
            self._own.data_ptr()
            if rank == self._share.rank
            else DeviceMemoryHandle.parse(bytes(data)).address(self._own.device)
            for rank, data in enumerate(handles.tolist())
        ]
