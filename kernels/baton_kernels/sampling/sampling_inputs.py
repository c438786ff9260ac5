"""Inputs of the sampling ops besides logits: options and noise of N rows, each [N] on the logits' device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """Float32; neutral values are 0, 0 and 1."""

    presence: Tensor
    frequency: Tensor
    repetition: Tensor


@dataclass(frozen=True, slots=True)
class Truncation:
    """top_k int32 (0 = off), top_p float32 (1 = off), min_p float32 (0 = off)."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """temperature float32 (0 = greedy); seed, choice and token index int64: what the noise is a function of."""

    temperature: Tensor
    seed: Tensor
    choice: Tensor
    index: Tensor
