"""The coefficients of the KV checksum: c(i) = splitmix64(i + 1) | 1, position-dependent and odd."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from baton_kernels.sampling.integer_hash import splitmix64


@lru_cache(maxsize=16)
def coefficients(words: int, device: torch.device) -> Tensor:
    """c(0) … c(words - 1): [words] int64, bit patterns of the unsigned values."""
    return splitmix64(torch.arange(words, dtype=torch.int64, device=device) + 1) | 1
