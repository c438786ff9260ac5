"""Gumbel noise as a pure function of (seed, choice, token index, vocabulary id): no sampler state to move or to lose.

    key  = splitmix64(splitmix64(seed + choice · golden) + index)              64 bits: halves k0 (low), k1
    h    = mix32(mix32(id, 0) ^ k0, k1)                                        32-bit integers, wrapping
    w    = min((h mod 2³¹ + ½) · 2⁻³¹, 1 - 2⁻²⁴)                               uniform in (0, 1), fine near 0
    E    = -log(1 - w), as w + w²/2 below 2⁻¹²                                 exponential
    g    = -log(E)                                                             Gumbel(0, 1)

The inner splitmix64 is the choice-th output of the splitmix64 generator with that seed.

argmax(logits / temperature + g) draws from softmax(logits / temperature). The same integers come out of torch and
Triton; g differs by the last bits of `log`. With u = 1 - w this is -log(-log(u)): written in w, because a large g,
which decides an argmax over a large vocabulary, comes from a w near 0, where float32 is fine, and u near 1 is not.

Bytes: writes N·V float32 (nothing when fused into the argmax, as on the GPU).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from baton_kernels.sampling.integer_hash import GOLDEN, mix32, signed, splitmix64

SMALL_W = 2.0**-12
LARGEST_W = 1.0 - 2.0**-24
W_STEP = 2.0**-31


def noise_keys(seed: Tensor, choice: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """(k0, k1), each [N] int32, of the three int64 [N] that identify a draw."""
    key = splitmix64(splitmix64(seed + choice * signed(GOLDEN, 64)) + index)
    halves = key.view(torch.int32).view(-1, 2)  # little-endian, as every host that torch runs on
    return halves[:, 0], halves[:, 1]


@lru_cache(maxsize=4)
def _mixed_ids(first: int, count: int, device: torch.device) -> Tensor:
    return mix32(torch.arange(first, first + count, dtype=torch.int32, device=device), 0)


def gumbel_noise_reference(seed: Tensor, choice: Tensor, index: Tensor, vocab: int) -> Tensor:
    """The formula above, written out. seed, choice, index [N] int64 → [N, vocab] float32."""
    return noise_of_keys(*noise_keys(seed, choice, index), vocab)


def noise_of_keys(k0: Tensor, k1: Tensor, count: int, first: int = 0) -> Tensor:
    """Noise of the keys [N] int32 for the vocabulary ids from `first` on → [N, count] float32."""
    hashed = mix32(_mixed_ids(first, count, k0.device) ^ k0[:, None], k1[:, None])
    w = hashed.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(W_STEP).clamp_(max=LARGEST_W)
    small = torch.addcmul(w, w, w, value=0.5)
    large = torch.rsub(w, 1.0).log_().neg_()
    return torch.where(w < SMALL_W, small, large).log_().neg_()


def gumbel_noise(seed: Tensor, choice: Tensor, index: Tensor, vocab: int) -> Tensor:
    """Noise of N draws: seed (any int64), choice and token index [N] int64 → [N, vocab] float32, Gumbel(0, 1)."""
    if seed.is_cuda:
        from baton_kernels.sampling.gpu.sampling import gumbel_noise_triton

        return gumbel_noise_triton(seed, choice, index, vocab)
    return gumbel_noise_reference(seed, choice, index, vocab)
