"""Drawing one token per row among those that top-k, top-p and min-p keep, without sorting.

    id[n] = sample(mask_top_k_top_p_min_p(logits)[n])           as `sampling.py` and `truncation.py` define the two

On a GPU nothing is masked: with Gumbel noise, the winner among all tokens is the winner among the kept ones if it is
kept itself, and that is a matter of the mass above it. If it is not kept, nothing at or below its logit is, and the
next winner comes from above. A draw misses the nucleus with probability 1 - top_p at most, so one look is nearly
always enough. With top-k the few tokens in question are gathered, and threshold and draw are found in registers.

Bytes: reads N·V logits once to draw and once to check.
"""

from __future__ import annotations

from torch import Tensor

from baton_kernels.sampling import sample, sample_reference
from baton_kernels.truncation import mask_top_k_top_p_min_p, mask_top_k_top_p_min_p_reference


def truncated_draw_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    index: Tensor,
) -> Tensor:
    """The two references, one after the other. Shapes as in `truncated_draw`."""
    masked = mask_top_k_top_p_min_p_reference(logits.float(), temperature, top_k, top_p, min_p)
    return sample_reference(masked, temperature, seed, choice, index)


def truncated_draw(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    choice: Tensor,
    index: Tensor,
) -> Tensor:
    """One token per row: logits [N, V] (float32 on the CPU, any floating dtype on a GPU; at least one finite a row) →
    ids [N] int64. The other arguments are those of `mask_top_k_top_p_min_p` and `sample`."""
    if logits.is_cuda:
        from baton_kernels.gpu.truncated_draw import truncated_draw_triton

        return truncated_draw_triton(logits, temperature, top_k, top_p, min_p, seed, choice, index)
    masked = mask_top_k_top_p_min_p(logits, temperature, top_k, top_p, min_p)
    return sample(masked, temperature, seed, choice, index)
