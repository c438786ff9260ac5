"""Token masks on the CPU: numpy unpacks a row's bits, the other rows are not read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def forbid_tokens_rows(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """As `baton_kernels.token_mask.forbid_tokens`."""
    vocab = logits.shape[1]
    octets = allowed.numpy().view(np.uint8)
    for row, bits in zip(rows.tolist(), octets, strict=True):
        forbidden = np.unpackbits(~bits, count=vocab, bitorder="little").view(np.bool_)
        logits[row].masked_fill_(torch.from_numpy(forbidden), float("-inf"))
