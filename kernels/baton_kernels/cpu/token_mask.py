"""Token masks on the CPU: numpy unpacks a row's bits, the other rows are not read."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def forbid_tokens_rows(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """As `baton_kernels.token_mask.forbid_tokens`."""
    octets = np.bitwise_not(allowed.numpy()).view(np.uint8)
    forbidden = np.unpackbits(octets, axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)
    values = logits.numpy()
    for row, where in zip(rows.tolist(), forbidden, strict=True):
        np.copyto(values[row], -np.inf, where=where)
