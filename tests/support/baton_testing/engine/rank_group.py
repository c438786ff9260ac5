"""Real rank processes over a tiny model, with their pools and a runner that plans for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

import torch
from torch import Tensor

from baton_engine.collectives.collective import RankLostError
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.model_directory import read_spec
from baton_engine.ranks.rank_frames import LoadShare, MakeRunner
from baton_engine.ranks.rank_processes import RankProcesses
from baton_engine.ranks.ranked_runner import RankedRunner
from baton_testing.engine.tiny_llama import FOLDER
from baton_wire.models.sharding.shard_spec import shard_spec

CPU = torch.device("cpu")
BLOCK_TOKENS = 16


@dataclass(slots=True)
class RankGroup:
    processes: RankProcesses
    pools: Sequence[KvPool]
    losses: list[RankLostError] = field(default_factory=list)
    are_stages: bool = False

    @property
    def pids(self) -> list[int]:
        return self.processes.pids

    def runner(self, masks: RowMasks | None = None) -> RankedRunner:
        """A runner for this group; nothing of an earlier one may be in flight."""
        return RankedRunner(self.processes, masks, are_stages=self.are_stages)


@contextmanager
def rank_group(
    ranks: int,
    model: Path = FOLDER,
    blocks: int = 400,
    slots: int = 16,
    gpus: tuple[int, ...] = (),
    are_stages: bool = False,
) -> Iterator[RankGroup]:
    """Ranks that are ready, on CPUs unless `gpus` names the GPU of each. They are killed at the end. `are_stages`: the
    stages of a pipeline, with one pool."""
    processes = RankProcesses.start(ranks, are_stages=are_stages)
    try:
        spec = read_spec(model)
        layers = spec.num_layers if are_stages else None
        processes.load(LoadShare(str(model), "float32", None, 1, gpus, layers))
        parts = [spec] if are_stages else [shard_spec(spec, rank, ranks) for rank in range(ranks)]
        shapes = [kv_geometry(part, torch.float32, BLOCK_TOKENS) for part in parts]
        order = MakeRunner(blocks, BLOCK_TOKENS, slots, decodes=True, hands_over=True)
        size = blocks * shapes[0].block_bytes
        memories: list[mmap | Tensor]
        if gpus:
            devices = [torch.device("cuda", gpu) for gpu in gpus]
            handles = processes.make_runners_on_gpus(order)
            memories = [handle.map(size, device) for handle, device in zip(handles, devices, strict=True)]
        else:
            devices = [CPU] * len(shapes)
            memories = [memory.bytes for memory in processes.make_runners(order, size)]
        pools = [
            KvPool(shape, blocks, torch.float32, device, memory=memory)
            for shape, device, memory in zip(shapes, devices, memories, strict=True)
        ]
        group = RankGroup(processes, pools, are_stages=are_stages)
        processes.watch_loss(group.losses.append)
        yield group
    finally:
        processes.close()
