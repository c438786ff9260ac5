"""Top-k, top-p and min-p in Triton without a sort: one program a row bisects the float's bit pattern for each
threshold.

`order_bits` maps float32 to uint32 so that the order is kept. From the highest bit down, a bit of the threshold is
set when the tokens at or above it still number at least k (or hold at least top_p of the mass): after 32 passes the
threshold is exactly the pattern of the last token kept. A pass reads the row once; rows fit into the L2 cache.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.sampling.sampling_inputs import Truncation

BLOCK = 1024


@triton.jit
def order_bits(x):
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _row_max(row_ptr, vocab, BLOCK: tl.constexpr):
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        best = tl.maximum(best, tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")))  # [BLOCK] of [V]
    return tl.max(best, axis=0)


@triton.jit
def mass_from(row_ptr, vocab, threshold, highest, temperature, BLOCK: tl.constexpr):
    """Sum of exp((l - highest) / temperature) over tokens at or above the threshold."""
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [BLOCK] of [V]
        mass += tl.where(order_bits(logits) >= threshold, tl.exp((logits - highest) / temperature), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def count_from(row_ptr, vocab, threshold, BLOCK: tl.constexpr):
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [BLOCK] of [V]
        count += ((order_bits(logits) >= threshold) & (token < vocab)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _truncation_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, out_ptr, vocab, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * vocab
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    threshold = tl.full([], 0, tl.uint32)
    gap = float("-inf")
    highest = 0.0
    if temperature > 0.0:
        highest = _row_max(row_ptr, vocab, BLOCK)
        if min_p > 0.0:
            gap = tl.minimum(tl.log(min_p), 0.0) * temperature
        if top_k > 0:
            for step in range(32):
                candidate = threshold | (tl.full([], 0x80000000, tl.uint32) >> step)
                if count_from(row_ptr, vocab, candidate, BLOCK) >= top_k:
                    threshold = candidate
        if top_p < 1.0:
            wanted = top_p * mass_from(row_ptr, vocab, threshold, highest, temperature, BLOCK)
            # Bits are set afresh: a threshold below the k-th token's can hold no less mass than the survivors do.
            nucleus = tl.full([], 0, tl.uint32)
            for step in range(32):
                candidate = nucleus | (tl.full([], 0x80000000, tl.uint32) >> step)
                if (
                    candidate <= threshold
                    or mass_from(row_ptr, vocab, candidate, highest, temperature, BLOCK) >= wanted
                ):
                    nucleus = candidate
            threshold = tl.minimum(tl.maximum(threshold, nucleus), order_bits(highest))
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < vocab
        logits = tl.load(row_ptr + token, mask=inside, other=float("-inf"))  # [BLOCK] of [V]
        is_kept = (order_bits(logits) >= threshold) & (logits - highest >= gap)
        tl.store(out_ptr + row * vocab + token, tl.where(is_kept, logits, float("-inf")), mask=inside)


def mask_top_k_top_p_min_p_triton(logits: Tensor, temperature: Tensor, truncation: Truncation) -> Tensor:
    """As `baton_kernels.sampling.truncation.mask_top_k_top_p_min_p`; logits contiguous."""
    rows, vocab = logits.shape
    out = torch.empty_like(logits)
    if rows:
        block = min(BLOCK, triton.next_power_of_2(vocab))
        top_k, top_p, min_p = truncation.top_k, truncation.top_p, truncation.min_p
        _truncation_kernel[(rows,)](logits, temperature, top_k, top_p, min_p, out, vocab, block)
    return out
