"""The GPUs of a worker's ranks: one each, alike, with access to each other's memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from baton_engine.collectives.shared_device_memory import peer_objection
from baton_worker.errors import ConfigError

SHARE_VARIABLE: Final = "BATON_TEST_RANKS_SHARE_GPU"
"""For tests alone: 1 lets all ranks use the first GPU, in turns and slowly."""


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU of this machine: its name and its memory in bytes."""

    name: str
    memory: int


def rank_gpus(ranks: int, environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """The GPU of each rank, as this machine numbers them. Raises ConfigError by the flag."""
    if environment.get(SHARE_VARIABLE) == "1":
        return (0,) * ranks
    gpus = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        gpus.append(FoundGpu(properties.name, properties.total_memory))
    return check_gpus(ranks, gpus, peer_objection)


def check_gpus(ranks: int, gpus: Sequence[FoundGpu], objection: Callable[[int, int], str | None]) -> tuple[int, ...]:
    """The first of these GPUs, one for each rank. `objection`: the reason why two cannot exchange tensors."""
    flag = f"argument --tensor-parallel: {ranks}"
    if ranks > len(gpus):
        raise ConfigError(f"{flag}, but this machine has {len(gpus)} GPUs; allowed: up to {max(1, len(gpus))}")
    first = gpus[0]
    for number, gpu in enumerate(gpus[:ranks]):
        if gpu != first:
            raise ConfigError(
                f"{flag}, but GPU {number} is {gpu.name} with {gpu.memory} bytes and GPU 0 is {first.name} with "
                f"{first.memory}; allowed with several ranks: equal GPUs"
            )
    for number in range(ranks):
        for other in range(ranks):
            if number != other and (why := objection(number, other)) is not None:
                raise ConfigError(f"{flag}, but {why}; allowed here: 1")
    return tuple(range(ranks))
