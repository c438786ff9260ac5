"""The buffers that captured graphs read and write, each at a fixed place on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from baton_engine.memory.host_memory import upload
from baton_engine.model.decoder import Decoder
from baton_engine.scheduling.step_plan import BlockUpdate


class GraphBuffers:
    """The buffers of one model over one pool. A step's numbers begin with the slots that draw."""

    def __init__(
        self,
        model: Decoder,
        kv_pool: Tensor,
        last_tokens: Tensor,
        max_blocks: int,
        *,
        draws: int,
        numbers: int,
    ) -> None:
        """`last_tokens` is [slots + 1] int64: the last entry belongs to padding. `draws`: most rows that draw;
        `numbers`: most numbers of a step."""
        device = kv_pool.device
        self.model = model
        self.sample = model.sample()
        """One layer of each kind: it launches the same kernels for a step as the model."""
        self.kv_pool = kv_pool
        self.last_tokens = last_tokens
        self.padding_slot = last_tokens.numel() - 1
        self.tables = torch.zeros(model.kv_groups, last_tokens.numel(), max_blocks, dtype=torch.int32, device=device)
        self.numbers = torch.zeros(numbers, dtype=torch.int64, device=device)
        self.hidden = torch.empty(draws, model.embedding.shape[1], dtype=model.embedding.dtype, device=device)
        """The head's input for the rows that draw; valid until the next step."""
        self.ids = torch.zeros(draws, dtype=torch.int64, device=device)

    def load(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self.numbers[: len(numbers)].copy_(upload(numbers, self.numbers.device))

    def set_blocks(self, updates: Sequence[BlockUpdate]) -> None:
        """Keep the tables on the device as the plan says; costs nothing when nothing changed."""
        if not updates:
            return
        # A later update of the same entry wins, as on the host: index_copy_ promises no order.
        _, slots, blocks = self.tables.shape
        entries = {(update.kv_group * slots + update.slot) * blocks + update.index: update.block for update in updates}
        packed = np.array((list(entries), list(entries.values())), dtype=np.int64)
        places, numbers = upload(packed, self.tables.device)
        self.tables.view(-1).index_copy_(0, places, numbers.int())
