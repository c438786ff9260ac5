"""Token masks in Triton: one tile of one masked row a program; only forbidden logits are written."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _forbid_kernel(logits_ptr, rows_ptr, allowed_ptr, vocab, words, WORD_BITS: tl.constexpr, BLOCK: tl.constexpr):
    masked = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    word = tl.load(allowed_ptr + masked * words + token // WORD_BITS, mask=inside, other=0)
    is_forbidden = ((word >> (token % WORD_BITS)) & 1) == 0
    row = tl.load(rows_ptr + masked)
    nothing = tl.full([BLOCK], float("-inf"), tl.float32)
    tl.store(logits_ptr + row * vocab + token, nothing, mask=inside & is_forbidden)


def forbid_tokens_triton(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """As `baton_kernels.sampling.token_mask.forbid_tokens`."""
    vocab, (masked, words) = logits.shape[1], allowed.shape
    word_bits = 8 * allowed.element_size()
    if masked:
        _forbid_kernel[(masked, triton.cdiv(vocab, BLOCK))](logits, rows, allowed, vocab, words, word_bits, BLOCK)
