"""Drawing tokens in Triton: noise made in registers, the vocabulary split over programs, a merge of their winners."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.launching.dependent_launch import after_previous, chain
from baton_kernels.sampling.gpu.integer_hash import gumbel, noise_key
from baton_kernels.sampling.gpu.noisy_winner import noisy_winner
from baton_kernels.sampling.sampling_inputs import Draws

BLOCK = 1024
GREEDY_BLOCK = 4096
STEP, STEPS = 512, 8
"""Logits that the one warp of a drawing program takes at a time, and how often."""


@triton.jit
def _gumbel_kernel(seed_ptr, choice_ptr, index_ptr, out_ptr, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    noise = gumbel(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(index_ptr + row), token)
    tl.store(out_ptr + row * vocab + token, noise, mask=token < vocab)


@triton.jit
def _sample_kernel(
    logits_ptr, temperature_ptr, seed_ptr, choice_ptr, index_ptr, best_ptr, best_id_ptr, vocab,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (STEPS * BLOCK)
    place = row * tl.num_programs(1) + tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        key = noise_key(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(index_ptr + row))
        best, winner, _, _ = noisy_winner(
            logits_ptr + row * vocab, first, vocab, 1.0 / temperature, key, float("-inf"), float("-inf"), STEPS, BLOCK
        )
    else:
        best = tl.full([], float("-inf"), tl.float32)
        winner = tl.full([], 0, tl.int32) + vocab
        for step in range(STEPS):
            token = first + step * BLOCK + tl.arange(0, BLOCK)
            logits = tl.load(logits_ptr + row * vocab + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
            greatest = tl.max(logits, axis=0)
            if greatest > best:
                best = greatest
                winner = tl.min(tl.where(logits == greatest, token, vocab), axis=0)
    tl.store(best_ptr + place, best)
    tl.store(best_id_ptr + place, winner)


@triton.jit
def _greedy_kernel(logits_ptr, best_ptr, best_id_ptr, vocab, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * vocab + token, mask=token < vocab, other=float("-inf")).to(
        tl.float32
    )  # [BLOCK]
    best = tl.max(logits, axis=0)
    tl.store(best_ptr + row * tl.num_programs(1) + part, best)
    tl.store(best_id_ptr + row * tl.num_programs(1) + part, tl.min(tl.where(logits == best, token, vocab), axis=0))


@triton.jit
def _winner_kernel(best_ptr, best_id_ptr, ids_ptr, parts, vocab, BLOCK_PARTS: tl.constexpr, CHAINED: tl.constexpr):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK_PARTS)
    best = tl.load(best_ptr + row * parts + part, mask=part < parts, other=float("-inf"))  # [parts]
    ids = tl.load(best_id_ptr + row * parts + part, mask=part < parts, other=vocab)  # [parts]
    winner = tl.min(tl.where(best == tl.max(best, axis=0), ids, vocab), axis=0)
    # A row of NaN has no winner; an id inside the vocabulary keeps the next step's embedding lookup in bounds.
    tl.store(ids_ptr + row, tl.minimum(winner, vocab - 1).to(tl.int64))


def gumbel_noise_triton(seed: Tensor, choice: Tensor, index: Tensor, vocab: int) -> Tensor:
    """As `baton_kernels.sampling.gumbel.gumbel_noise`."""
    out = torch.empty(seed.shape[0], vocab, dtype=torch.float32, device=seed.device)
    if out.numel():
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _gumbel_kernel[(seed.shape[0], triton.cdiv(vocab, block))](
            seed.long(), choice.long(), index.long(), out, vocab, block
        )
    return out


def sample_triton(logits: Tensor, draws: Draws) -> Tensor:
    """As `baton_kernels.sampling.sampling.sample`; logits contiguous."""
    ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    rows, vocab = logits.shape
    if rows == 0:
        return ids
    parts = triton.cdiv(vocab, STEPS * STEP)
    best, best_id = _scratch(logits, parts)
    launch = chain(logits)
    keys = (draws.seed.long(), draws.choice.long(), draws.index.long())
    _sample_kernel[(rows, parts)](
        logits, draws.temperature, *keys, best, best_id, vocab, STEPS, STEP, bool(launch), num_warps=1, **launch
    )
    _winner_kernel[(rows,)](best, best_id, ids, parts, vocab, triton.next_power_of_2(parts), bool(launch), **launch)
    return ids


def greedy_triton(logits: Tensor, out: Tensor | None) -> Tensor:
    """As `baton_kernels.sampling.sampling.greedy`; logits contiguous, of any floating dtype."""
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if rows == 0:
        return ids
    block = min(GREEDY_BLOCK, triton.next_power_of_2(vocab))
    parts = triton.cdiv(vocab, block)
    best, best_id = _scratch(logits, parts)
    launch = chain(logits)
    _greedy_kernel[(rows, parts)](logits, best, best_id, vocab, block, bool(launch), **launch)
    _winner_kernel[(rows,)](best, best_id, ids, parts, vocab, triton.next_power_of_2(parts), bool(launch), **launch)
    return ids


def _scratch(logits: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    best = torch.empty(logits.shape[0], parts, dtype=torch.float32, device=logits.device)
    return best, torch.empty_like(best, dtype=torch.int32)
