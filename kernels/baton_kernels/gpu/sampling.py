"""Drawing tokens in Triton: noise made in registers, the vocabulary split over programs, a merge of their winners."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent_launch import after_previous, chain
from baton_kernels.gpu.integer_hash import gumbel

BLOCK = 2048
GREEDY_BLOCK = 4096


@triton.jit
def _gumbel_kernel(seed_ptr, choice_ptr, index_ptr, out_ptr, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    noise = gumbel(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(index_ptr + row), token)
    tl.store(out_ptr + row * vocab + token, noise, mask=token < vocab)


@triton.jit
def _sample_kernel(
    logits_ptr, temperature_ptr, seed_ptr, choice_ptr, index_ptr, best_ptr, best_id_ptr, vocab, BLOCK: tl.constexpr,
    NOISY: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token = part * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    noisy = tl.load(logits_ptr + row * vocab + token, mask=inside, other=float("-inf")).to(tl.float32)  # [BLOCK] of [V]
    if NOISY:
        temperature = tl.load(temperature_ptr + row)
        if temperature > 0.0:
            noise = gumbel(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(index_ptr + row), token)
            noisy = noisy * (1.0 / temperature) + noise
    best = tl.max(noisy, axis=0)
    tl.store(best_ptr + row * tl.num_programs(1) + part, best)
    tl.store(best_id_ptr + row * tl.num_programs(1) + part, tl.min(tl.where(noisy == best, token, vocab), axis=0))


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
    """As `baton_kernels.gumbel.gumbel_noise`."""
    out = torch.empty(seed.shape[0], vocab, dtype=torch.float32, device=seed.device)
    if out.numel():
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _gumbel_kernel[(seed.shape[0], triton.cdiv(vocab, block))](
            seed.long(), choice.long(), index.long(), out, vocab, block
        )
    return out


def sample_triton(logits: Tensor, temperature: Tensor, seed: Tensor, choice: Tensor, index: Tensor) -> Tensor:
    """As `baton_kernels.sampling.sample`; logits contiguous."""
    ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    return _draw(logits, (temperature, seed.long(), choice.long(), index.long()), ids, BLOCK)


def greedy_triton(logits: Tensor, out: Tensor | None) -> Tensor:
    """As `baton_kernels.sampling.greedy`; logits contiguous, of any floating dtype."""
    ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device) if out is None else out
    return _draw(logits, None, ids, GREEDY_BLOCK)


def _draw(logits: Tensor, noise: tuple[Tensor, Tensor, Tensor, Tensor] | None, ids: Tensor, block: int) -> Tensor:
    rows, vocab = logits.shape
    if rows == 0:
        return ids
    block = min(block, triton.next_power_of_2(vocab))
    parts = triton.cdiv(vocab, block)
    best = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    best_id = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    launch = chain(logits)
    _sample_kernel[(rows, parts)](
        logits, *(noise or (best,) * 4), best, best_id, vocab, block, noise is not None, bool(launch), **launch
    )
    _winner_kernel[(rows,)](best, best_id, ids, parts, vocab, triton.next_power_of_2(parts), bool(launch), **launch)
    return ids
