"""The noisy maximum of a stretch of a row, with few logarithms.

Noise is -log(E) with E = -log(1 - w) ≥ w, so a token whose uniform number w is not below exp(scaled logit - best so
far) cannot win; its weight exp(scaled logit - peak), which the sum of weights needs anyway, decides that with a
product. Of n tokens only about log(n) have to be looked at closely. One warp a program makes the branch a warp's own.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from baton_kernels.sampling.gpu.integer_hash import below_one, gumbel_of, uniform_or_one

LOG2_E = tl.constexpr(1.4426950408889634)
"""e^x is taken as 2^(x log2 e): Triton's exp spends four instructions on results too small to matter here."""
SLACK = tl.constexpr(1.0001)
"""Over rounding in the comparison, which may only err by looking too closely."""


@triton.jit
def noisy_winner(row_ptr, first, vocab, inverse, key, bound, lowest, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Search tokens first to first + STEPS · BLOCK with a logit above `bound` and at least `lowest` → (greatest noisy
    value, its id, or vocab when there is none, greatest logit, sum of weights relative to it)."""
    best = tl.full([], float("-inf"), tl.float32)
    winner = tl.full([], 0, tl.int32) + vocab
    peak = tl.full([], float("-inf"), tl.float32)
    masses = tl.full([BLOCK], 0.0, tl.float32)
    scale = inverse * LOG2_E
    for step in range(STEPS):
        token = first + step * BLOCK + tl.arange(0, BLOCK)
        logits = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")).to(tl.float32)  # [BLOCK] of [V]
        logits = tl.where((logits > bound) & (logits >= lowest), logits, float("-inf"))
        raised = tl.maximum(peak, tl.max(logits, axis=0))
        if raised > float("-inf"):
            weight = tl.exp2((logits - raised) * scale)
            masses = masses * tl.exp2((peak - raised) * scale) + weight
            peak = raised
            w = uniform_or_one(key, token)
            reach = weight * (tl.exp(tl.minimum(raised * inverse - best, 80.0)) * SLACK)
            if tl.max((w < reach).to(tl.int32), axis=0) > 0:
                noisy = logits * inverse + gumbel_of(below_one(w))
                greatest = tl.max(noisy, axis=0)
                if greatest > best:
                    best = greatest
                    winner = tl.min(tl.where(noisy == greatest, token, vocab), axis=0)
    return best, winner, peak, tl.sum(masses, axis=0)
