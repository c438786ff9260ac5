"""Log-probabilities in Triton: one program a row; the k best by k passes, each for the greatest below the one
before."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit(do_not_specialize=["k"])
def _logprobs_kernel(logits_ptr, ids_ptr, chosen_ptr, top_ptr, top_ids_ptr, vocab, k, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * vocab
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [BLOCK] of [V]
        highest = tl.maximum(highest, logits)
    peak = tl.max(highest, axis=0)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [BLOCK] of [V]
        sums += tl.exp(logits - peak)
    total = peak + tl.log(tl.sum(sums, axis=0))
    tl.store(chosen_ptr + row, tl.load(row_ptr + tl.load(ids_ptr + row)).to(tl.float32) - total)

    last = tl.full([], float("inf"), tl.float32)
    last_id = tl.full([], -1, tl.int32)
    for rank in range(k):
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        best_id = tl.full([BLOCK], 2147483647, tl.int32)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [BLOCK] of [V]
            is_left = (token < vocab) & ((logits < last) | ((logits == last) & (token > last_id)))
            is_better = is_left & ((logits > best) | ((logits == best) & (token < best_id)))
            best = tl.where(is_better, logits, best)
            best_id = tl.where(is_better, token, best_id)
        last = tl.max(best, axis=0)
        last_id = tl.min(tl.where(best == last, best_id, 2147483647), axis=0)
        tl.store(top_ptr + row * k + rank, last - total)
        tl.store(top_ids_ptr + row * k + rank, last_id.to(tl.int64))


def logprobs_triton(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(chosen, top_ids, top) of `baton_kernels.sampling.logprobs.Logprobs`; logits contiguous. Equal logits come by
    ascending id."""
    rows, vocab = logits.shape
    k = min(k, vocab)
    chosen = torch.empty(rows, dtype=torch.float32, device=logits.device)
    top = torch.empty(rows, k, dtype=torch.float32, device=logits.device)
    top_ids = torch.empty(rows, k, dtype=torch.int64, device=logits.device)
    if rows:
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _logprobs_kernel[(rows,)](logits, ids, chosen, top, top_ids, vocab, k, block)
    return chosen, top_ids, top
