"""Top-k, top-p and min-p: which tokens may be drawn, by thresholds and so independent of any sort order.

With s = logits / temperature:
    top-k   keeps a token when fewer than k tokens have a strictly greater s                                (0 = off)
    top-p   keeps a token when the probability of the top-k survivors strictly above it is less than p      (1 = off)
    min-p   keeps a token when its probability is at least min_p times the largest                          (0 = off)
A token is kept when all three keep it; the greatest always is. Tokens with equal logits share one fate. The order
temperature, top-k, top-p (renormalised over the top-k survivors), min-p is that of Hugging Face `generate`.

Bytes: reads N·V logits and writes as many. The CPU sorts the rows that have top-k or top-p; the GPU bisects over float
bit patterns instead, which reads the row once per pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.sampling.cpu.sampling import on_rows, select, truncate
from baton_kernels.sampling.sampling_inputs import Truncation

_NEGATIVE_INFINITY = float("-inf")


def mask_top_k_top_p_min_p_reference(logits: Tensor, temperature: Tensor, truncation: Truncation) -> Tensor:
    """The definition above with a full sort. Shapes as in `mask_top_k_top_p_min_p`."""
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    ordered, _ = scaled.sort(dim=-1, descending=True)
    vocab = logits.shape[1]
    count = torch.where(truncation.top_k > 0, truncation.top_k, vocab).clamp(max=vocab).long()
    kth = ordered.gather(1, count[:, None] - 1)
    survivors = torch.where(ordered >= kth, ordered, _NEGATIVE_INFINITY).double().softmax(-1)
    # Mass up to each sorted place, without its own: at the first of a run of equal values, the mass strictly above.
    above = survivors.cumsum(-1) - survivors
    first_of_run = torch.searchsorted(-ordered, -ordered, side="left")
    strictly_above = above.gather(1, first_of_run)
    is_kept = (ordered >= kth) & ((strictly_above < truncation.top_p[:, None]) | (truncation.top_p >= 1.0)[:, None])
    is_kept &= ordered >= ordered[:, :1] + torch.log(truncation.min_p)[:, None]
    is_kept[:, 0] = True
    threshold = torch.where(is_kept, ordered, float("inf")).amin(-1, keepdim=True)
    masked = torch.where(scaled >= threshold, logits, _NEGATIVE_INFINITY)
    return torch.where((temperature > 0)[:, None], masked, logits)


def mask_top_k_top_p_min_p(logits: Tensor, temperature: Tensor, truncation: Truncation) -> Tensor:
    """Logits with every excluded token at -inf: logits [N, V] float32, before temperature → the same shape.

    temperature [N] float32. Greedy rows (temperature 0) and rows with everything off (0, 1, 0) stay as they are; when
    all do, the result is `logits` itself.
    """
    if logits.is_cuda:
        from baton_kernels.sampling.gpu.truncation import mask_top_k_top_p_min_p_triton

        return mask_top_k_top_p_min_p_triton(logits, temperature, truncation)
    per_row = (temperature, truncation.top_k, truncation.top_p, truncation.min_p)
    options = zip(*(values.tolist() for values in per_row), strict=True)
    rows = [n for n, (t, k, p, m) in enumerate(options) if t > 0 and (k > 0 or p < 1 or m > 0)]

    def change(part: Tensor, numbers: Tensor | None) -> Tensor:
        return truncate(part, *(select(values, numbers) for values in per_row))

    return on_rows(logits, rows, change)
