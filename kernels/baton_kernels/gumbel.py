"""Gumbel noise as a pure function of (seed, choice, token index, vocabulary id): no sampler state, so a sequence
can move.

    key  = splitmix64(splitmix64(splitmix64(seed) + choice) + index)           64 bits: halves k0, k1
    h    = mix32(mix32(id) ^ k0, k1)                                           32-bit integers, wrapping
    w    = min((h mod 2³¹ + ½) · 2⁻³¹, 1 - 2⁻²⁴)                               uniform in (0, 1), fine near 0
    E    = -log(1 - w), as w + w²/2 below 2⁻¹²                                 exponential
    g    = -log(E)                                                             Gumbel(0, 1)

The same integers come out of torch and Triton; g differs by the last bits of `log`. argmax(logits / temperature +
g) draws from softmax(logits / temperature). splitmix64: Steele, Lea, Flood 2014; mix32: the "lowbias32" constants
of C. Wellons' hash search. Fine resolution of w near 0 is what resolves large g, which decide an argmax over a
large vocabulary.

Bytes: writes N·V float32 (nothing when fused into the argmax, as on the GPU).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from baton_kernels.integer_hash import low_word, mix32, splitmix64

SMALL_W = 2.0**-12
LARGEST_W = 1.0 - 2.0**-24
W_STEP = 2.0**-31


def noise_keys(seed: Tensor, choice: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """(k0, k1), each [N] int32, of the three int64 [N] that identify a draw."""
    key = splitmix64(splitmix64(splitmix64(seed.long()) + choice.long()) + index.long())
    return low_word(key), low_word(key >> 32)


@lru_cache(maxsize=8)
def _mixed_ids(vocab: int, device: torch.device) -> Tensor:
    return mix32(torch.arange(vocab, dtype=torch.int32, device=device), 0)


def gumbel_noise_reference(seed: Tensor, choice: Tensor, index: Tensor, vocab: int) -> Tensor:
    """The formula above, written out. seed, choice, index [N] int64 → [N, vocab] float32."""
    k0, k1 = noise_keys(seed, choice, index)
    hashed = mix32(_mixed_ids(vocab, seed.device) ^ k0[:, None], k1[:, None])
    w = ((hashed & 0x7FFFFFFF).float() + 0.5).mul(W_STEP).clamp(max=LARGEST_W)
    exponential = torch.where(w < SMALL_W, w + w * w * 0.5, -torch.log(1.0 - w))
    return -torch.log(exponential)


def gumbel_noise(seed: Tensor, choice: Tensor, index: Tensor, vocab: int) -> Tensor:
    """Noise of N draws: seed (any int64), choice and token index [N] int64 → [N, vocab] float32, Gumbel(0, 1)."""
    return gumbel_noise_reference(seed, choice, index, vocab)
