"""Penalties in Triton: one tile of one row a program."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.sampling.sampling_inputs import Penalties

BLOCK = 1024


@triton.jit
def _penalties_kernel(
    logits_ptr, mask_ptr, counts_ptr, presence_ptr, frequency_ptr, repetition_ptr, out_ptr, vocab, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    place = row * vocab + token
    logits = tl.load(logits_ptr + place, mask=inside, other=0.0)  # [BLOCK] of [V], as the next two
    in_prompt = tl.load(mask_ptr + place, mask=inside, other=0) != 0
    count = tl.load(counts_ptr + place, mask=inside, other=0)
    repetition = tl.load(repetition_ptr + row)
    generated = count > 0
    repeated = tl.where(logits > 0, logits / repetition, logits * repetition)
    logits = tl.where(in_prompt | generated, repeated, logits)
    logits -= tl.load(frequency_ptr + row) * count.to(tl.float32)
    logits -= tl.load(presence_ptr + row) * generated.to(tl.float32)
    tl.store(out_ptr + place, logits, mask=inside)


def apply_penalties_triton(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    penalties: Penalties,
) -> Tensor:
    """As `baton_kernels.sampling.penalties.apply_penalties`; all contiguous."""
    rows, vocab = logits.shape
    out = torch.empty_like(logits)
    if rows:
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _penalties_kernel[(rows, triton.cdiv(vocab, block))](
            logits, prompt_mask.view(torch.uint8), output_counts, penalties.presence, penalties.frequency,
            penalties.repetition, out, vocab, block,
        )  # fmt: skip
    return out
