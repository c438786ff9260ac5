"""Penalties and biases on the logits, before temperature.

    seen = prompt_mask or output_counts > 0
    l ← l / repetition if l > 0 else l · repetition                    where seen
    l ← l - frequency · output_counts - presence · [output_counts > 0]

Repetition follows Hugging Face, presence and frequency the OpenAI API (generated tokens only). Neutral values are
1, 0 and 0.

Bytes: reads N·V logits, N·V prompt mask (1 byte) and N·V counts (4 bytes), writes N·V logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.sampling.cpu.sampling import on_rows, select
from baton_kernels.sampling.sampling_inputs import Penalties


def apply_penalties_reference(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    penalties: Penalties,
) -> Tensor:
    """The formula above, written out. Shapes as in `apply_penalties`."""
    generated = output_counts > 0
    seen = prompt_mask | generated
    factor = penalties.repetition[:, None]
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(seen, repeated, logits)
    return logits - penalties.frequency[:, None] * output_counts - penalties.presence[:, None] * generated


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    penalties: Penalties,
) -> Tensor:
    """Penalised logits: logits [N, V] float32 → the same shape; `logits` itself when every row's penalties are
    neutral.

    prompt_mask [N, V] bool; output_counts [N, V] int32.
    """
    if logits.is_cuda:
        from baton_kernels.sampling.gpu.penalties import apply_penalties_triton

        return apply_penalties_triton(logits, prompt_mask, output_counts, penalties)
    per_row = (penalties.presence, penalties.frequency, penalties.repetition)
    options = zip(*(values.tolist() for values in per_row), strict=True)
    rows = [n for n, option in enumerate(options) if option != (0.0, 0.0, 1.0)]

    def change(part: Tensor, numbers: Tensor | None) -> Tensor:
        mask, counts = select(prompt_mask, numbers), select(output_counts, numbers)
        return apply_penalties_reference(
            part, mask, counts, Penalties(*(select(values, numbers) for values in per_row))
        )

    return on_rows(logits, rows, change)


def apply_bias(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Add values[b] to logits[rows[b], ids[b]]: logits [N, V], rows and ids [B] int64, values [B] float32 → new [N,
    V].

    -inf forbids a token (stop ids before min_tokens). An entry named twice gets the sum. Library op on every
    device: B is small.
    """
    return logits.index_put((rows, ids), values, accumulate=True)
